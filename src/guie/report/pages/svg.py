"""A chart as SVG that stands in the page itself, takes the page's colours and reads like its text."""

from __future__ import annotations

import io
import re
import warnings
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.figure import Figure

from guie.report.figures.style import ACCENT, BEFORE, FAINT, INK, LOST, MUTED, TELLING

if TYPE_CHECKING:
    from matplotlib.typing import RcKeyType

PX_PER_INCH = 110  # 8 pt are 12 px
COLORS = {  # what the page calls them, lighter where it is dark
    **{INK: "var(--ink)", MUTED: "var(--muted)", FAINT: "var(--faint)"},
    **{ACCENT: "var(--accent)", LOST: "var(--lost)", BEFORE: "var(--before)"},
}
# Text stays text: small, found by a search, and every script there is a font for.
SETTINGS: dict[RcKeyType, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "guie",
    "font.sans-serif": ["DejaVu Sans"],
}
FAMILY = re.compile(r"font-family: [^;]+;? ?")  # the page has its own
SHORTHAND = re.compile(r"font: (?:(\d+) )?([\d.]+px) [^;]+")  # as matplotlib 3.9 writes it
DIGITS = re.compile(r"\d+\.\d+")
REFERENCE = re.compile(r"(?:^#|(?<=url\()#)([\w.-]+)")  # in an attribute, to an id
NO_TURN = re.compile(r"^rotate\(-?0 ")


def inline_svg(figure: Figure, name: str, label: str) -> Markup:
    """A figure as one <svg> element; the same figure gives the same text.

    Args:
        figure: its inches become PX_PER_INCH pixels each.
        name: begins the ids in it; no two charts of a page have the same.
        label: what a screen reader says in place of the picture.
    """
    drawing = io.BytesIO()
    with rc_context(SETTINGS), warnings.catch_warnings():
        # A glyph is only measured here; browsers have fonts for more.
        warnings.filterwarnings("ignore", "Glyph .* missing")
        figure.savefig(drawing, format="svg", transparent=True)
    root = ElementTree.fromstring(drawing.getvalue())
    _rename_ids(root, name)
    _simplify(root)
    width, height = (f"{PX_PER_INCH * inches:.0f}" for inches in figure.get_size_inches())
    about = {"class": "chart", "role": "img", "aria-label": label, "width": width, "height": height}
    root.attrib = about | {"viewBox": root.attrib["viewBox"]}
    root.tail = None
    return Markup(ElementTree.tostring(root, encoding="unicode").replace(" />", "/>"))


def _rename_ids(root: Element, name: str) -> None:
    """Ids that something refers to become `name-0`, `name-1` ...; the others go.

    An id set by `telling` becomes a <title>, which browsers show where the mouse rests.
    """
    elements = list(root.iter())
    attributes = (text for element in elements for text in element.attrib.values())
    wanted = {found for text in attributes for found in REFERENCE.findall(text)}
    kept = [element.get("id") for element in elements if element.get("id") in wanted]
    new = {old: f"{name}-{number}" for number, old in enumerate(kept)}
    for element in elements:
        old = element.attrib.pop("id", "")
        if old in new:
            element.set("id", new[old])
        elif old.startswith(TELLING):
            title = Element("title")
            title.text = old.removeprefix(TELLING)
            element.insert(0, title)
        for key, text in element.items():
            element.set(key, REFERENCE.sub(lambda found: f"#{new.get(found[1], found[1])}", text))


def _simplify(parent: Element) -> None:
    """Take out what a page has no use for: namespaces, metadata, invisible shapes, empty groups."""
    parent.tag = _local(parent.tag)
    parent.attrib = {_local(key): _short(key, text) for key, text in parent.attrib.items()}
    parent.tail = None
    if parent.tag == "text":
        if NO_TURN.match(parent.get("transform", "")):
            del parent.attrib["transform"]
    elif parent.tag != "title":
        parent.text = None
    kept = []
    for child in list(parent):
        if _local(child.tag) not in ("metadata", "style"):
            _simplify(child)
            kept += _unwrapped(child)
    parent[:] = kept


def _unwrapped(child: Element) -> list[Element]:
    """What stands in the page for an element: nothing, the element, or what a bare group holds."""
    if child.tag == "path" and child.get("style") == "fill:none":
        return []
    if child.tag in ("g", "defs") and not len(child):
        return []
    bare = child.tag == "g" and not child.attrib and child[0].tag != "title"
    return list(child) if bare else [child]


def _local(name: str) -> str:
    return name.rpartition("}")[2]


def _short(key: str, text: str) -> str:
    """An attribute with the page's colours and font, and hundredths of a point at the finest."""
    if key == "style":
        for color, ours in COLORS.items():
            text = text.replace(color, ours)
        text = FAMILY.sub("", SHORTHAND.sub(_longhand, text))
        return text.replace(": ", ":").replace("; ", ";").rstrip(";")
    if key in ("d", "x", "y", "transform", "points"):
        return " ".join(DIGITS.sub(_rounded, text).split())
    return text


def _longhand(font: re.Match[str]) -> str:
    weight = f"font-weight: {font[1]}; " if font[1] else ""
    return f"{weight}font-size: {font[2]}"


def _rounded(number: re.Match[str]) -> str:
    return f"{float(number[0]):.2f}".rstrip("0").rstrip(".")
