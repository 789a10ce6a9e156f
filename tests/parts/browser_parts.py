"""A real browser for tests of pages: the machine's own Chromium, which `make browser` installs from Debian."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
_QUIET = ("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-quic")


@contextmanager
def chromium() -> Iterator[Any]:
    """A headless browser; the test is skipped where there is none. No event loop may run in this thread meanwhile."""
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        pytest.skip("no Chromium is installed; `make browser` installs Debian's")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is in the dependency group `test`")
    with playwright.sync_playwright() as driver:
        # In a container the browser runs as root, where its sandbox cannot.
        browser = driver.chromium.launch(executable_path=found, args=list(_QUIET), chromium_sandbox=False)
        try:
            yield browser
        finally:
            browser.close()


class Watched:
    """A page of the browser with what it loaded, what it said on its console and what went wrong in it."""

    def __init__(self, browser: Any, *, width: int = 1200, dark: bool = False) -> None:
        scheme = "dark" if dark else "light"
        self.page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        self.requests: list[str] = []
        self.said: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))

    def open(self, file: Path) -> Any:
        """Open a file and return the page of playwright."""
        self.page.goto(file.as_uri())
        return self.page

    def violations(self) -> list[str]:
        """What axe-core finds against WCAG 2.1 AA and good practice."""
        axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
        tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
        found = axe.run(self.page, options={"runOnly": tags}).response["violations"]
        return [f"{each['id']}: {[node['target'] for node in each['nodes']]}" for each in found]
