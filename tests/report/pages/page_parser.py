"""What a page holds, as a browser would see it."""

import re
from html.parser import HTMLParser

VOID = {"meta", "img", "br", "input"}


class Page(HTMLParser):
    """The elements of a page, its text, and the elements that are never closed."""

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


def check_self_contained(html: str) -> None:
    """No address, no script in an attribute, whole links, labelled pictures, unique ids."""
    page = Page(html)
    assert page.open == []
    assert not page.all("link") and not page.all("iframe")
    assert "@import" not in html and "://" not in html
    assert not re.search(r"(url\(|href=\")(?!#)", html)
    assert not any(name.startswith("on") for _, attrs in page.elements for name in attrs)
    for attrs in page.all("img"):
        assert attrs["src"].startswith("data:image/jpeg;base64,") and attrs["alt"]
    [policy] = [attrs for attrs in page.all("meta") if "http-equiv" in attrs]
    assert policy["content"].startswith("default-src 'none'")
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    wanted = set(re.findall(r'(?:url\(|href="|aria-labelledby=")#?([\w.-]+)', html))
    assert wanted and wanted <= set(ids)
    assert all(attrs.get("scope") in ("col", "row") for attrs in page.all("th"))
    assert all(chart["role"] in ("img", "application") for chart in page.all("svg"))


def drawings(html: str) -> list[str]:
    return re.findall("<svg.*?</svg>", html, flags=re.DOTALL)
