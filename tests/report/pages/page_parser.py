"""What a page holds, as a browser would see it."""

from __future__ import annotations

import re
from html.parser import HTMLParser

VOID = {"meta", "img", "br", "input"}


class Page(HTMLParser):
    """The elements of a page, its text, and whether each element is closed where it should be."""

    def __init__(self, html: str):
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] not in (["script"], ["style"]) and data.strip():
            self.text.append(" ".join(data.split()))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.elements if name == tag]


def describe(html: str) -> list[str]:
    """What pages show where the mouse rests on something drawn, as it stands in the file."""
    return re.findall("<g><title>(.*?)</title>", html)


def drawings(html: str) -> list[str]:
    return re.findall("<svg.*?</svg>", html, flags=re.DOTALL)
