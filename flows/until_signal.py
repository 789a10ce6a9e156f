"""Work without an end on an event loop of its own, until Ctrl-C or SIGTERM asks it to stop."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import click


def run_until_signal(work: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> bool:
    """Run `work` until it ends by itself or a signal comes, which sets its event; a second one ends the process at once.

    The loop has a thread of its own: Prefect's engine takes over SIGTERM wherever it runs in the main thread, and would
    raise it into whatever step happens to be running.

    Returns:
        Whether it was Ctrl-C.
    """
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    received: list[int] = []
    failure: list[BaseException] = []

    def target() -> None:
        try:
            loop.run_until_complete(work(stop))
        except BaseException as error:  # noqa: BLE001 - raised again below, in the main thread
            failure.append(error)
        finally:
            loop.close()

    def on_signal(number: int, _: object) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)
        click.echo("stopping", err=True)
        loop.call_soon_threadsafe(stop.set)

    thread = threading.Thread(target=target, name="ragbraid-loop", daemon=True)
    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        thread.start()
        while thread.is_alive():
            thread.join(0.5)  # a wait without an end would not let a signal in
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if failure:
        raise failure[0]
    return signal.SIGINT in received
