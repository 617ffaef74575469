"""One browser for all tests of pages, and a page of its own for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import pytest

from browsing import launched, paged

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A headless Chromium; skips with a reason where it or its driver is absent."""
    with launched() as found:
        yield found


@pytest.fixture
def browse(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens pages: `browse(width=390, dark=True, touch=True)`; arguments as of `browsing.paged`."""
    with ExitStack() as opened:
        one = partial(paged, browser)
        yield lambda **look: opened.enter_context(one(**look))


@pytest.fixture
def page(browse: Callable[..., Page]) -> Page:
    """A page as wide as a desk's, in light colours."""
    return browse()
