"""A way to a server that a test can cut."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Any


class Relay:
    """Passes connections on to a server until it is cut, and again after it was restored."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self.port = 0
        self._lock = threading.Lock()
        self.restore()

    def restore(self) -> None:
        """Listen where it listened before it was cut."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self.port = int(self._listener.getsockname()[1])
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def cut(self) -> None:
        """Close the listener and every connection."""
        with self._lock:
            for one in (self._listener, *self._sockets):
                with contextlib.suppress(OSError):  # its other end may have closed it
                    one.shutdown(socket.SHUT_RDWR)
                one.close()
            threads = list(self._threads)
        for thread in threads:
            thread.join(10)

    def _start(self, target: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._target)
            with self._lock:
                self._sockets += [near, far]
                self._start(self._pass_on, near, far)
                self._start(self._pass_on, far, near)

    @staticmethod
    def _pass_on(source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            return
