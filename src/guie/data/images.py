"""Decode images. All code that opens an image uses one of these functions.

`open_as_seen` returns what a person sees, `open_as_host` what the challenge's scorer sees. A manifest's
sidecar chooses one of them for training and embedding, see `DECODERS`. `open_part` returns a crop of either,
fast (training). `with_retries` tries again when a network disk fails for a moment. A path is that of a
file, or the address of an image in a shard, see `guie.data.shards`.
"""

import io
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import cv2
import numpy as np
from PIL import ExifTags, Image, ImageFile, ImageOps, UnidentifiedImageError

from guie.base.errors import UserError, why_unreadable
from guie.base.files import refuse_special
from guie.config.types import Decode
from guie.data.names import read_head, why_unread
from guie.data.shards.opening import open_in_shard

# Parallel work uses processes. If OpenCV started its thread pool before a fork, the child would hang at
# its next OpenCV call.
cv2.setNumThreads(0)

LIMIT, LIMIT_MEGAPIXELS = "GUIE_MAX_MEGAPIXELS", 100.0
HALVED = 4  # a JPEG may have so many times more pixels: it is decoded at half its sides
# Reduction factors n at which a JPEG can be decoded (sides / n), with OpenCV's flags.
REDUCTIONS = {
    8: cv2.IMREAD_REDUCED_GRAYSCALE_8 | cv2.IMREAD_COLOR_RGB,
    4: cv2.IMREAD_REDUCED_GRAYSCALE_4 | cv2.IMREAD_COLOR_RGB,
    2: cv2.IMREAD_REDUCED_GRAYSCALE_2 | cv2.IMREAD_COLOR_RGB,
    1: cv2.IMREAD_COLOR_RGB,
}
# A file server that restarts is away for seconds; a file that is gone costs the same wait, once.
WAITS_S = (0.5, 1.0, 2.0, 4.0)

# Accepted formats of bytes received from others, and of files, whatever a file's name. Other Pillow
# readers start programs (EPS) or are rarely reviewed.
FOREIGN = ("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")
FORMATS = (*FOREIGN, "PPM", "JPEG2000")
JPEGS = ("JPEG", "MPO")
PNG_PIXELS = (b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND", b"eXIf")  # chunks that a picture needs

# Keys in `info` of a decoded image: why `seen` and `host` differ on it; its size if it was halved
DIFFERS, WHOLE_PX = "guie_differs", "guie_whole_px"
DIFFERENCES = ("", "EXIF turn", "16 bits", "transparency")

T = TypeVar("T")


class Region(NamedTuple):
    """A box of an image, as fractions of its sides."""

    top: float
    left: float
    bottom: float
    right: float

    def of(self, height: int, width: int) -> tuple[slice, slice]:
        """Return the rows and columns in an image of this size in pixels, at least one of each."""
        return _span(self.top, self.bottom, height), _span(self.left, self.right, width)


def open_as_seen(path: str | Path) -> Image.Image:
    """Return RGB as a viewer shows it: EXIF-rotated, 16 bit scaled, transparency on white, first frame.

    A JPEG of more pixels than `max_pixels` is decoded at half its sides; `whole_px` returns its size.

    Raises UserError naming the file if it cannot be decoded whole.
    """
    return _decode(path, _as_seen)


def picture_of(
    data: bytes, decode: Decode = "seen", formats: Sequence[str] = FOREIGN
) -> Image.Image:
    """Decode bytes, by default those received from others. Raises UserError."""
    return _decode(io.BytesIO(data), CONVERTERS[decode], "the picture", formats)


def cropped(image: Image.Image, box: tuple[int, int, int, int] | None) -> Image.Image:
    """Crop an image to left, top, right, bottom in pixels; None keeps it whole. Raises UserError."""
    if box is None:
        return image
    left, top, right, bottom = box
    if not (0 <= left < right <= image.width and 0 <= top < bottom <= image.height):
        where = f"in the image of {image.width} x {image.height}"
        fault = f"box {','.join(map(str, box))}: is not {where}"
        raise UserError(f"{fault}; it is left,top,right,bottom in pixels")
    return image.crop(box)


def open_part(
    path: str | Path,
    part_of: Callable[[int, int], Region],
    enough: Callable[[int, int], bool],
    decode: Decode = "seen",
) -> tuple[np.ndarray, tuple[int, int]]:
    """Return a crop of the decoder's image, uint8 (h, w, 3), and the height and width of the whole.

    A JPEG may be decoded at 1/2, 1/4 or 1/8 size, if `enough(rows, columns)` holds for the crop. That
    takes a fraction of the time.

    Args:
        part_of: returns the crop for the height and width in pixels of the whole, never of a reduction.

    Raises UserError naming the file if it cannot be decoded whole.
    """
    convert = CONVERTERS[decode]

    def cropped(image: ImageFile.ImageFile) -> tuple[np.ndarray, tuple[int, int]]:
        if image.format not in JPEGS:
            whole = np.array(convert(image))
            height, width = whole.shape[:2]
            return whole[part_of(height, width).of(height, width)], (height, width)
        width, height = _seen_size(image) if decode == "seen" else image.size
        box = part_of(height, width)
        least = 2 if height * width > max_pixels() else 1
        for reduction in REDUCTIONS:
            rows, columns = box.of(-(-height // reduction), -(-width // reduction))
            if reduction == least or enough(rows.stop - rows.start, columns.stop - columns.start):
                break
        turned = decode == "seen" and _orientation(image) > 1
        pixels = None if turned else _jpeg(image, reduction)
        if pixels is None:
            image.draft(None, (image.width // reduction, image.height // reduction))
            pixels = np.array(convert(image))
        return pixels[box.of(*pixels.shape[:2])], (height, width)

    return _decode(path, cropped)


def open_as_host(path: str | Path) -> Image.Image:
    """Return RGB exactly as the scoring notebook decodes it: `convert("RGB")`, no EXIF rotation.

    It reads all that `open_as_seen` reads, so also some files that Pillow refuses. Raises UserError.
    """
    return _decode(path, _as_host)


DECODERS = {"seen": open_as_seen, "host": open_as_host}


def size_as(decode: Decode, path: str | Path) -> tuple[int, int]:
    """Return the width and height of the decoder's image, mostly from the header. Raises UserError."""
    return _decode(path, lambda image: _seen_size(image) if decode == "seen" else image.size)


def whole_px(image: Image.Image) -> tuple[int, int]:
    """Return the width and height that a decoded image has in its file, also if it was halved."""
    return image.info.get(WHOLE_PX, image.size)


def difference(image: Image.Image) -> str:
    """Return which of DIFFERENCES is between `seen` and `host` for an image of a decoder."""
    return image.info.get(DIFFERS, "")


def max_pixels() -> float:
    """Return the pixels that an image is decoded to at most, from GUIE_MAX_MEGAPIXELS. Raises UserError.

    Pillow's limit is raised to as many as `HALVED` allows, and stays above a higher one.
    """
    text = os.environ.get(LIMIT, "")
    try:
        limit = 1e6 * float(text or LIMIT_MEGAPIXELS)
    except ValueError:
        limit = math.nan
    if not 0 < limit < math.inf:
        raise UserError(f"{LIMIT}={text}: must be a number of megapixels above 0, such as 200")
    if Image.MAX_IMAGE_PIXELS is not None:  # Pillow refuses from twice this number on
        Image.MAX_IMAGE_PIXELS = max(Image.MAX_IMAGE_PIXELS, int(HALVED * limit / 2))
    return limit


def with_retries(open_image: Callable[[], T]) -> T:
    """Return `open_image()`, retried with a printed line if the operating system cannot read the file.

    Raises UserError at once if the file was read and is bad, else after the last try.
    """
    for wait_s in WAITS_S:
        try:
            return open_image()
        except UserError as error:
            if getattr(error.__cause__, "errno", None) is None:  # Pillow's own OSErrors have none
                raise
            print(f"{error}; trying again in {wait_s:g} s", file=sys.stderr, flush=True)
        time.sleep(wait_s)
    return open_image()


def _decode(
    file: str | Path | io.BytesIO,
    convert: Callable[[ImageFile.ImageFile], T],
    name: str | None = None,
    formats: Sequence[str] = FORMATS,
) -> T:
    path = name or file
    try:
        if isinstance(file, str | Path):
            if in_shard := open_in_shard(str(file)):
                file = in_shard
            else:
                refuse_special(file)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # corrupt EXIF and large-image warnings
            try:
                return _converted(file, convert, formats)
            except (UserError, Image.DecompressionBombError):
                raise
            except Exception:
                bare = _without_metadata(file)
                if bare is None:
                    raise
                return _converted(bare, convert, formats)
    except FileNotFoundError as error:
        raise UserError(why_unreadable(str(path), "image") or f"{path}: no such image") from error
    except Image.DecompressionBombError as error:
        size, _, _ = str(error).partition(" exceeds")
        raise UserError(
            f"{path}: {size}, more than {max_pixels() / 1e6:g} megapixels ({HALVED} times as many in a"
            f" JPEG), perhaps a decompression bomb; shrink it, or set {LIMIT} to more"
        ) from error
    except UserError:
        raise
    except Exception as error:  # Pillow's plugins raise almost anything on damaged files
        why = str(error)
        if isinstance(error, UnidentifiedImageError):
            why = why_unread(read_head(file)) or f"it is none of {', '.join(_available(formats))}"
        raise UserError(f"{path}: not a readable image: {why}") from error


def _converted(
    file: str | Path | io.BytesIO,
    convert: Callable[[ImageFile.ImageFile], T],
    formats: Sequence[str],
) -> T:
    limit = max_pixels()
    with Image.open(file, formats=_available(formats)) as image:
        if image.width * image.height > limit * (HALVED if image.format in JPEGS else 1):
            raise Image.DecompressionBombError(f"{image.width} x {image.height} pixels")
        return convert(image)


def _without_metadata(file: str | Path | io.BytesIO) -> io.BytesIO | None:
    """Return a PNG or JPEG with little more than its pixels; None if nothing is left out.

    Pillow refuses a good picture whose text or colour profile is large or damaged.
    """
    data = file.getvalue() if isinstance(file, io.BytesIO) else Path(file).read_bytes()
    kept: list[bytes] = []
    if data.startswith(b"\x89PNG"):
        at = 8
        while at < len(data):
            end = at + 12 + int.from_bytes(data[at : at + 4], "big")
            if data[at + 4 : at + 8] in PNG_PIXELS:
                kept.append(data[at:end])
            at = end
        bare = b"".join([data[:8], *kept])
    elif data.startswith(b"\xff\xd8"):
        at = 2
        while data[at : at + 1] == b"\xff" and data[at + 1 : at + 2] not in (b"", b"\xda"):
            end = at + 2 + max(2, int.from_bytes(data[at + 2 : at + 4], "big"))
            is_metadata = 0xE0 <= data[at + 1] <= 0xEF or data[at + 1] == 0xFE
            # EXIF may turn the picture, and Adobe's segment says how its colours are stored
            if not is_metadata or data[at + 4 : at + 9] in (b"Exif\0", b"Adobe"):
                kept.append(data[at:end])
            at = end
        bare = b"".join([data[:2], *kept, data[at:]])
    else:
        return None
    return io.BytesIO(bare) if len(bare) < len(data) else None


@lru_cache
def _available(formats: Sequence[str]) -> list[str]:
    """Return the formats that this Pillow build reads; MPO is read as JPEG."""
    Image.init()
    return [one for one in formats if one in Image.OPEN]


def _jpeg(image: ImageFile.ImageFile, reduction: int) -> np.ndarray | None:
    """Decode with OpenCV: equal to Pillow to the bit, as both use libjpeg-turbo, but faster.

    Return None if the two could differ, or OpenCV cannot decode the file: Pillow then reports the error.
    But OpenCV decodes some damaged baseline files that Pillow refuses: only checks of images name those.
    """
    if image.fp is None or image.format != "JPEG" or image.mode not in ("RGB", "L"):
        return None
    image.fp.seek(0)
    flags = REDUCTIONS[reduction] | cv2.IMREAD_IGNORE_ORIENTATION
    return cv2.imdecode(np.frombuffer(image.fp.read(), np.uint8), flags)


def _span(start: float, stop: float, size: int) -> slice:
    first = min(round(start * size), size - 1)
    return slice(first, max(first + 1, round(stop * size)))


def _as_seen(image: Image.Image) -> Image.Image:
    about: dict[Any, Any] = {}
    if image.width * image.height > max_pixels():
        about[WHOLE_PX] = _seen_size(image)
        image.draft(None, (image.width // 2, image.height // 2))
    image.load()  # raises on damaged pixels, which later steps may tolerate
    about[DIFFERS] = _difference(image)
    with suppress(Exception):  # the EXIF block is corrupt, but the image is fine
        ImageOps.exif_transpose(image, in_place=True)
    if image.mode.startswith("I;16") or image.mode == "I":
        pixels = np.asarray(image)
        if pixels.min() < 0 or pixels.max() > 65_535:
            raise ValueError("32-bit integer pixels have no agreed range; save as 8 or 16 bit")
        # `convert` would clip everything above 255 to white
        image = Image.fromarray((pixels >> 8).astype(np.uint8))
    elif image.mode == "F":
        raise ValueError("32-bit float pixels have no agreed range; save as 8 or 16 bit")
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, image.convert("RGBA"))
    seen = image if image.mode == "RGB" else image.convert("RGB")
    seen.info |= about
    return seen


def _as_host(image: Image.Image) -> Image.Image:
    image.load()
    differs = _difference(image)
    host = image.convert("RGB")
    host.info[DIFFERS] = differs
    return host


CONVERTERS = {"seen": _as_seen, "host": _as_host}


def _difference(image: Image.Image) -> str:
    """Return `difference` of an image that is loaded, but neither turned nor converted."""
    if _orientation(image) > 1:
        return "EXIF turn"
    if image.mode.startswith("I"):
        return "16 bits"
    if not image.has_transparency_data:
        return ""
    least, _ = image.convert("RGBA").getchannel("A").getextrema()
    return "transparency" if least != 255 else ""


def _seen_size(image: Image.Image) -> tuple[int, int]:
    """Return the size of an image as seen, before it is loaded; Pillow itself turns a TIFF."""
    turned = image.format != "TIFF" and _orientation(image) >= 5
    return image.size[::-1] if turned else image.size


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation, 1 to 8; from 5 on width and height are swapped."""
    with suppress(Exception):  # as in `_as_seen`
        found: Any = image.getexif().get(ExifTags.Base.Orientation)
        return found if found in range(1, 9) else 1
    return 1
