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

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.figure import Figure
from PIL import Image
from tqdm import tqdm

from guie.base.errors import UserError
from guie.base.files import write_text
from guie.data.images import open_as_seen
from guie.report.figures.style import ACCENT, BEFORE, FAINT, INK, LOST, MUTED, TOOLTIP
from guie.rows.comparison import difference_picture, working

# CSS variables of the page, lighter in dark mode
VARIABLES = {
    **{INK: "ink", MUTED: "muted", FAINT: "faint"},
    **{ACCENT: "accent", LOST: "lost", BEFORE: "before"},
}
PX_PER_INCH = 110  # 8 pt are 12 px
REFERENCE = re.compile(r"(?:href=\"|url\()#([\w.-]+)")
DIGITS = re.compile(r"(\d+\.\d\d)\d+")
SIDE_PX = 128
QUALITY = 75


def write_page(
    path: str | Path, template: str, values: Mapping[str, Any], picture: Pictures | None
) -> None:
    """Render a template of `pages/templates` and write it as one self-contained file.

    Raises UserError if the file cannot be written.
    """
    page = _templates().get_template(template).render(values, picture=picture)
    if picture:
        picture.bar.close()
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


def inline_svg(figure: Figure, name: str, label: str) -> Markup:
    """Render a figure as one <svg> element, deterministically; an inch becomes PX_PER_INCH pixels.

    The text of `tooltip` becomes a <title>, which browsers show on hover. `name` is the seed of the ids and
    unique for each chart of a page. `label` is for screen readers.
    """
    drawing = io.StringIO()
    # Text is kept as text: it is small, searchable, and browsers have fonts for every script.
    style: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": name}
    style |= {"font.sans-serif": ["DejaVu Sans"]}
    with rc_context(style), warnings.catch_warnings():
        # Glyphs are only measured here; browsers have fonts for more characters.
        warnings.filterwarnings("ignore", "Glyph .* missing")
        figure.savefig(drawing, format="svg", transparent=True)
    text = drawing.getvalue()
    for color, variable in VARIABLES.items():
        text = text.replace(color, f"var(--{variable})")
    svg = ElementTree.fromstring(text)
    _simplify(svg, set(REFERENCE.findall(text)))
    width, height = (f"{PX_PER_INCH * inches:.0f}" for inches in figure.get_size_inches())
    size = {"width": width, "height": height, "viewBox": svg.attrib["viewBox"]}
    svg.attrib = {"class": "chart", "role": "img", "aria-label": label, **size}
    return Markup(ElementTree.tostring(svg, encoding="unicode").replace(" />", "/>"))


def _simplify(svg: ElementTree.Element, referenced: set[str]) -> None:
    """Remove what a page does not need: namespaces, metadata, unused ids, whitespace, digits."""
    for element in svg.iter():
        children = [one for one in element if not one.tag.endswith(("}metadata", "}style"))]
        element.tag = element.tag.rpartition("}")[2]
        name = element.attrib.pop("id", "")
        attributes = {key.rpartition("}")[2]: value for key, value in element.attrib.items()}
        element.attrib = {key: DIGITS.sub(r"\1", value) for key, value in attributes.items()}
        element.text, element.tail = (element.text or "").strip() and element.text, None
        if name in referenced:
            element.set("id", name)
        elif name.startswith(TOOLTIP):
            title = ElementTree.Element("title")
            title.text = name.removeprefix(TOOLTIP)
            children.insert(0, title)
        element[:] = children


class Picture(NamedTuple):
    """A thumbnail as a data URI, or in `fault` the reason why there is none."""

    uri: str = ""
    width: int = 0
    height: int = 0
    fault: str = ""


class Pictures:
    """Thumbnails by image_path and largest side; each is decoded once and counted on a bar."""

    def __init__(self, root: str | Path, title: str = "page"):
        self.root, self.bar = Path(root), tqdm(desc=title, unit="img", disable=None)
        self.known: dict[tuple[str, int], Picture] = {}

    def __call__(self, image_path: str, side_px: int = SIDE_PX) -> Picture:
        key = image_path, side_px
        if key not in self.known:
            path = self.root / image_path
            try:
                self.known[key] = thumbnail(open_as_seen(path), side_px)
            except (UserError, ValueError) as error:  # ValueError: a NUL in the path
                self.known[key] = Picture(fault=str(error).replace(f"{path}: ", "", 1))
            self.bar.update()
        return self.known[key]

    def difference(self, image_path: str, other_path: str, mirrored: bool) -> Picture:
        """Return the difference picture of two images, aligned as in cleaning."""
        paths = (image_path, other_path)
        try:
            one, other = (working(open_as_seen(self.root / path)) for path in paths)
        except (UserError, ValueError) as error:
            return Picture(fault=str(error))
        rest_HWC = difference_picture(one, other, mirrored)
        if rest_HWC is None:
            return Picture(fault="the two images cannot be aligned")
        return _embedded(Image.fromarray(rest_HWC))


def thumbnail(image: Image.Image, side_px: int) -> Picture:
    """Return an image of at most this side, embedded as JPEG without metadata."""
    small = image.copy()
    small.thumbnail((side_px, side_px), Image.Resampling.BICUBIC, reducing_gap=2.0)
    return _embedded(small)


def _embedded(image: Image.Image) -> Picture:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=QUALITY, optimize=True, comment=b"")  # not the source's
    encoded = base64.b64encode(buffer.getvalue()).decode("ascii")
    return Picture(f"data:image/jpeg;base64,{encoded}", *image.size)
