"""A real browser for tests: Debian's Chromium, driven by playwright; what is absent is named, not hidden."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

NAMES = ("chromium", "chromium-browser", "google-chrome")
WIDE, NARROW = 1400, 390  # CSS pixels: a desk, a phone
HEIGHT = 900
HERE = ("file:", "data:", "blob:", "http://127.0.0.1:", "http://localhost:", "http://[::1]:")


def chromium() -> str:
    """The browser's program; skips where there is none."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("no Chromium; on Debian: apt-get install chromium, then make browser")
    return found


@contextmanager
def launched() -> Iterator[Browser]:
    """A headless browser; skips where the driver or the program is absent."""
    why = "no playwright: make browser"
    api = pytest.importorskip("playwright.sync_api", reason=why)
    program = chromium()
    with api.sync_playwright() as driver:
        # Chromium's own sandbox does not start as root.
        browser = driver.chromium.launch(
            executable_path=program, chromium_sandbox=os.geteuid() != 0
        )
        yield browser
        browser.close()


@contextmanager
def paged(
    browser: Browser, width: int = WIDE, dark: bool = False, touch: bool = False
) -> Iterator[Page]:
    """A page of its own that may reach nothing beyond this machine.

    A script that throws, a broken content policy or a wish for the network fails the test at its end.
    """
    context = browser.new_context(
        viewport={"width": width, "height": HEIGHT},
        color_scheme="dark" if dark else "light",
        has_touch=touch,
        reduced_motion="reduce",
    )
    faults: list[str] = []

    def guard(route: Route) -> None:
        if route.request.url.startswith(HERE):
            route.continue_()
        else:
            faults.append(f"requested {route.request.url}")
            route.abort()

    context.route("**/*", guard)
    page = context.new_page()
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda message: faults.append(message.text) if _is_fault(message) else None)
    page.set_default_timeout(10_000)
    yield page
    context.close()
    assert not faults, faults


def overflow(page: Page) -> float:
    """How many CSS pixels the page is wider than the window."""
    return page.evaluate("document.documentElement.scrollWidth - innerWidth")


def _is_fault(message) -> bool:
    """An error of the page; answers of a server such as 400 are for the test to judge."""
    return message.type == "error" and not message.text.startswith("Failed to load resource")
