"""Parts of self-contained HTML pages: escaping templates, charts as SVG, embedded thumbnails."""

from __future__ import annotations

import base64
import io
import re
import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
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
from guie.data.images import open_as_seen
from guie.report.figures.style import ACCENT, BEFORE, FAINT, INK, LOST, MUTED, TELLING
from guie.rows.comparison import difference_picture, working


def write_page(path: str | Path, template: str, values: Mapping[str, Any]) -> None:
    """Render a template of `pages/templates` and write it as one self-contained file.

    Raises UserError if the file cannot be written.
    """
    page = _templates().get_template(template).render(values)
    # a file name may contain bytes that are not UTF-8
    write_text(path, page.encode("utf-8", "backslashreplace").decode("utf-8"))


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=PackageLoader("guie.report.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["thousands"] = "{:,}".format
    return environment


# CSS variables of the page, lighter in dark mode
COLORS = {
    INK: "ink",
    MUTED: "muted",
    FAINT: "faint",
    ACCENT: "accent",
    LOST: "lost",
    BEFORE: "before",
}
PX_PER_INCH = 110  # 8 pt are 12 px
REFERENCE = re.compile(r"(?:href=\"|url\()#([\w.-]+)")
DIGITS = re.compile(r"(\d+\.\d\d)\d+")


def inline_svg(figure: Figure, name: str, label: str) -> Markup:
    """Render a figure as one <svg> element, deterministically.

    An id set by `telling` becomes a <title>, which browsers show as a tooltip.

    Args:
        figure: one inch becomes PX_PER_INCH pixels.
        name: seed of the ids; unique for each chart of a page.
        label: text for screen readers.
    """
    drawing = io.StringIO()
    # Text is kept as text: it is small, searchable, and browsers have fonts for every script.
    style: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": name,
        "font.sans-serif": ["DejaVu Sans"],
    }
    with rc_context(style), warnings.catch_warnings():
        # Glyphs are only measured here; browsers have fonts for more characters.
        warnings.filterwarnings("ignore", "Glyph .* missing")
        figure.savefig(drawing, format="svg", transparent=True)
    text = drawing.getvalue()
    for color, variable in COLORS.items():
        text = text.replace(color, f"var(--{variable})")
    root = ElementTree.fromstring(text)
    _strip(root, set(REFERENCE.findall(text)))
    width, height = (f"{PX_PER_INCH * inches:.0f}" for inches in figure.get_size_inches())
    about = {"class": "chart", "role": "img", "aria-label": label, "width": width, "height": height}
    root.attrib = about | {"viewBox": root.attrib["viewBox"]}
    return Markup(ElementTree.tostring(root, encoding="unicode").replace(" />", "/>"))


def _strip(element: Element, referenced: set[str]) -> None:
    """Remove what a page does not need: namespaces, metadata, unused ids, whitespace, digits."""
    name = element.attrib.pop("id", "")
    element.tag = _local(element.tag)
    element.attrib = {_local(key): DIGITS.sub(r"\1", v) for key, v in element.attrib.items()}
    element.tail = None
    if not (element.text or "").strip():
        element.text = None
    element[:] = [child for child in element if _local(child.tag) not in ("metadata", "style")]
    for child in element:
        _strip(child, referenced)
    if name in referenced:
        element.set("id", name)
    elif name.startswith(TELLING):
        title = Element("title")
        title.text = name.removeprefix(TELLING)
        element.insert(0, title)


def _local(name: str) -> str:
    return name.rpartition("}")[2]


class Panel(NamedTuple):
    """A small chart in a grid of charts."""

    title: str
    note: str
    chart: Markup


SIDE_PX = 128
QUALITY = 75


class Picture(NamedTuple):
    """A thumbnail as a data URI, or in `fault` the reason why there is none."""

    uri: str
    width: int
    height: int
    fault: str


class Pictures:
    """Thumbnails by image_path; each is decoded once and counted on `bar`.

    Args:
        side_px: maximum of the longer side.
    """

    def __init__(self, root: Path, bar: tqdm, side_px: int = SIDE_PX):
        self.root, self.bar, self.side_px = root, bar, side_px
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
        return thumbnail(image, self.side_px)


def thumbnail(image: Image.Image, side_px: int) -> Picture:
    """Return an image of at most this side, embedded as JPEG without metadata."""
    small = image.copy()
    small.thumbnail((side_px, side_px), Image.Resampling.BICUBIC, reducing_gap=2.0)
    return _embedded(small)


def _embedded(image: Image.Image) -> Picture:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=QUALITY, optimize=True, comment=b"")  # not the source's
    encoded = base64.b64encode(buffer.getvalue()).decode("ascii")
    return Picture(f"data:image/jpeg;base64,{encoded}", *image.size, "")
