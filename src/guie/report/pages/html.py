"""Parts of self-contained HTML pages: escaping templates, charts as SVG, embedded thumbnails."""

from __future__ import annotations

import base64
import io
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.figure import Figure
from PIL import Image
from tqdm import tqdm

from guie.base.errors import UserError
from guie.base.files import write_text
from guie.data.image_checks.comparison import difference_picture, working
from guie.data.images import open_as_seen
from guie.report.figures.style import ACCENT, BEFORE, FAINT, INK, LOST, MUTED, TELLING


def write_page(path: str | Path, template: str, values: Mapping[str, Any]) -> None:
    """Render a template of `pages/templates` and write it as one self-contained file.

    Raises UserError if the file cannot be written.
    """
    page = _environment().get_template(template).render(values)
    # a file name may contain bytes that are not UTF-8
    write_text(path, page.encode("utf-8", "backslashreplace").decode("utf-8"))


def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("guie.report.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


if TYPE_CHECKING:
    from matplotlib.typing import RcKeyType

PX_PER_INCH = 110  # 8 pt are 12 px
COLORS = {  # CSS variables of the page, lighter in dark mode
    **{INK: "var(--ink)", MUTED: "var(--muted)", FAINT: "var(--faint)"},
    **{ACCENT: "var(--accent)", LOST: "var(--lost)", BEFORE: "var(--before)"},
}
# Text is kept as text: it is small, searchable, and browsers have fonts for every script.
SETTINGS: dict[RcKeyType, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "guie",
    "font.sans-serif": ["DejaVu Sans"],
}
FAMILY = re.compile(r"font-family: [^;]+;? ?")  # the page sets its own font
SHORTHAND = re.compile(r"font: (?:(\d+) )?([\d.]+px) [^;]+")  # as matplotlib 3.9 writes it
DIGITS = re.compile(r"\d+\.\d+")
REFERENCE = re.compile(r"(?:^#|(?<=url\()#)([\w.-]+)")  # an attribute's reference to an id
NO_TURN = re.compile(r"^rotate\(-?0 ")


def inline_svg(figure: Figure, name: str, label: str) -> Markup:
    """Render a figure as one <svg> element, deterministically.

    Args:
        figure: one inch becomes PX_PER_INCH pixels.
        name: prefix of the ids; unique for each chart of a page.
        label: text for screen readers.
    """
    drawing = io.BytesIO()
    with rc_context(SETTINGS), warnings.catch_warnings():
        # Glyphs are only measured here; browsers have fonts for more characters.
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
    """Rename referenced ids to `name-0`, `name-1`, ... and remove all others.

    An id set by `telling` becomes a <title>, which browsers show as a tooltip.
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
    """Remove what a page does not need: namespaces, metadata, invisible shapes, empty groups."""
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
    """Return the page's replacement of an element: nothing, itself, or the children of a bare group."""
    if child.tag == "path" and child.get("style") == "fill:none":
        return []
    if child.tag in ("g", "defs") and not len(child):
        return []
    bare = child.tag == "g" and not child.attrib and child[0].tag != "title"
    return list(child) if bare else [child]


def _local(name: str) -> str:
    return name.rpartition("}")[2]


def _short(key: str, text: str) -> str:
    """Give an attribute the page's colours and font, and round it to hundredths of a point."""
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


SIDE_PX = 128  # maximum of the longer side
QUALITY = 75


class Picture(NamedTuple):
    """A thumbnail as a data URI, or in `fault` the reason why there is none."""

    uri: str
    width: int
    height: int
    fault: str


class Pictures:
    """Thumbnails by image_path; each is decoded once and counted on `bar`."""

    def __init__(self, root: Path, bar: tqdm):
        self.root, self.bar = root, bar
        self.known: dict[str, Picture] = {}

    def __call__(self, image_path: str) -> Picture:
        if image_path not in self.known:
            self.known[image_path] = self._thumbnail(image_path)
            self.bar.update()
        return self.known[image_path]

    def difference(self, image_path: str, other_path: str, mirrored: bool) -> Picture:
        """Return the difference picture of two images, aligned as in cleaning."""
        try:
            one, other = (
                working(open_as_seen(self.root / path)) for path in (image_path, other_path)
            )
        except (UserError, ValueError) as error:
            return Picture("", 0, 0, str(error))
        rest_HWC = difference_picture(one, other, mirrored)
        if rest_HWC is None:
            return Picture("", 0, 0, "the two images cannot be aligned")
        return _embedded(Image.fromarray(rest_HWC))

    def _thumbnail(self, image_path: str) -> Picture:
        path = self.root / image_path
        try:
            image = open_as_seen(path)
        except (UserError, ValueError) as error:  # ValueError: a NUL in the path
            return Picture("", 0, 0, str(error).replace(f"{path}: ", "", 1))
        image.thumbnail((SIDE_PX, SIDE_PX), Image.Resampling.BICUBIC, reducing_gap=2.0)
        return _embedded(image)


def _embedded(image: Image.Image) -> Picture:
    buffer = io.BytesIO()
    image.save(
        buffer, "JPEG", quality=QUALITY, optimize=True, comment=b""
    )  # not the source's comment
    encoded = base64.b64encode(buffer.getvalue()).decode("ascii")
    return Picture(f"data:image/jpeg;base64,{encoded}", *image.size, "")
