"""An API that is away in the middle of a run of a deployment: the run goes on, and tells how it ended when it is back.

`ragbraid run` outside of deployments: `test_prefect_lost.py`. Thirty seconds, and a server that is restarted, by hand:
`docs/measurements.md`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from recovery_parts import Shop, served, until_ended, wait_for
from relay import Relay

# Prefect's engine asks for the default result storage with a client that it does not close.
pytestmark = [pytest.mark.prefect, pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")]


@pytest.fixture
def shop(tmp_path: Path, prefect_api: Any) -> Shop:
    return Shop(tmp_path, prefect_api)


def test_a_run_that_ends_while_the_api_is_away_is_recorded_when_it_is_back(shop: Shop) -> None:
    relay = Relay(int(re.search(r":(\d+)/", shop.server.url)[1]))  # type: ignore[index]  # the fixture's own address
    shop.write()
    shop.hold()
    # With one attempt Prefect's own client gives up after two seconds.
    away = {"PREFECT_API_URL": f"http://127.0.0.1:{relay.port}/api", "PREFECT_CLIENT_MAX_RETRIES": "1"}
    with served(shop, env=away) as process:
        run = shop.begin()
        shop.until_held()
        relay.cut()
        shop.release()
        wait_for(lambda: any("does not answer (" in line for line in process.stderr or ()))
        assert any(line.startswith("end ") for line in shop.take_done())
        relay.restore()
        done = until_ended(run)
    relay.cut()
    assert done.state.name == "Completed", done.state
