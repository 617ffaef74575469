"""The ground of the browser's tests: pages are shown as asked, and their faults fail a test."""

from __future__ import annotations

import pytest

from browsing import NARROW, overflow, paged

WIDER = "<meta name=viewport content='width=device-width'><p style='width:500px'>wide</p>"


def test_a_page_is_as_wide_and_as_dark_as_asked(browse):
    page = browse(width=NARROW, dark=True)
    page.set_content(WIDER)
    assert overflow(page) > 0
    assert page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")


@pytest.mark.parametrize(
    "content, message",
    [
        ("<script>throw new Error('broken script')</script>", "broken script"),
        ("<img src='https://example.org/a.png'>", "asked for https://example.org"),
        (
            "<meta http-equiv=Content-Security-Policy content=\"img-src 'none'\"><img src='data:,'>",
            "Content Security Policy",
        ),
    ],
)
def test_a_fault_of_a_page_fails_the_test(browser, content, message):
    with pytest.raises(AssertionError, match=message), paged(browser) as page:
        page.set_content(content)
        page.wait_for_load_state("networkidle")
