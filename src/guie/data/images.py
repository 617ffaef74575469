"""Decode images. All code that opens an image uses one of these functions.

`open_as_seen` returns what a person sees (curation); `open_part` returns a crop of that, fast (training).
`open_as_host` returns what the challenge's scorer sees (validation, embedding, parity with the
submission). `with_retries` tries again when a network disk fails for a moment. A path is that of a file, or
the address of an image in a shard, see `guie.data.shards`.
"""

from __future__ import annotations

import io
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import cv2
import numpy as np
from PIL import ExifTags, Image, ImageFile, ImageOps, UnidentifiedImageError

from guie.base.errors import UserError
from guie.base.files import refuse_special
from guie.data.names import read_head, why_unread
from guie.data.shards.opening import open_in_shard

# Parallel work uses processes. If OpenCV started its thread pool before a fork, the child would hang at
# its next OpenCV call.
cv2.setNumThreads(0)

# Pillow only warns at 89 Mpx and rejects at twice that; a decompression bomb must not pass with a warning.
MAX_PIXELS = 100_000_000
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

PLAIN = ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK")  # modes that Pillow always converts to RGB

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

    Raises UserError naming the file if it cannot be decoded whole.
    """
    return _decode(path, _as_seen)


def picture_of(data: bytes) -> Image.Image:
    """Decode bytes received from others, in a format of FOREIGN, like `open_as_seen`. Raises UserError."""
    return _decode(io.BytesIO(data), _as_seen, "the picture", FOREIGN)


def open_part(
    path: str | Path,
    part_of: Callable[[int, int], Region],
    enough: Callable[[int, int], bool],
) -> tuple[np.ndarray, tuple[int, int]]:
    """Return a crop of `open_as_seen`, uint8 (h, w, 3), and the height and width of the whole.

    A JPEG may be decoded at 1/2, 1/4 or 1/8 size, if `enough(rows, columns)` holds for the crop. That
    takes a fraction of the time.

    Args:
        part_of: returns the crop for the height and width in pixels of the whole, as seen. They are
            never those of a reduced decoding.

    Raises UserError naming the file if it cannot be decoded whole.
    """
    return _decode(path, partial(_part, part_of=part_of, enough=enough))


def open_as_host(path: str | Path) -> Image.Image:
    """Return RGB exactly as the scoring notebook decodes it: `convert("RGB")`, no EXIF rotation.

    Raises UserError naming the file if it cannot be decoded whole.
    """
    return _decode(path, lambda image: image.convert("RGB"))


def size_as_host(path: str | Path) -> tuple[int, int]:
    """Return the size of `open_as_host`'s image from the header alone. Raises UserError like it."""
    return _decode(path, lambda image: image.size)


def check_bytes(data: bytes, name: str) -> None:
    """Raise UserError, which calls the bytes `name`, unless `open_as_seen` and `open_as_host` read them."""

    def both(image: ImageFile.ImageFile) -> None:
        _as_seen(image)
        if image.mode not in PLAIN:
            image.convert("RGB")

    _decode(io.BytesIO(data), both, name)


def open_as_host_once_seen(path: str | Path) -> Image.Image:
    """Check like `open_as_host` a file that `open_as_seen` has decoded: mostly the header suffices.

    Raises UserError like it.
    """
    return _decode(path, lambda image: image if image.mode in PLAIN else image.convert("RGB"))


# Cache keys stay the same when a function is renamed.
DECODER_KEYS: dict[Any, str] = {
    open_as_seen: "open_as_seen",
    open_as_host: "open_as_host",
    open_as_host_once_seen: "open_as_host_once_seen",
}


def decoder_key(open_image: Callable[..., Any]) -> str:
    """Return the cache key of a decoder; for an unlisted function, its name."""
    return DECODER_KEYS.get(open_image, open_image.__name__)


def with_retries(open_image: Callable[[], T]) -> T:
    """Return `open_image()`, retried with a printed line if the operating system cannot read the file.

    Raises its UserError: at once if the file was read and is bad, else after the last try.
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
    file: str | Path | BinaryIO,
    convert: Callable[[ImageFile.ImageFile], T],
    name: str | None = None,
    formats: Sequence[str] = FORMATS,
) -> T:
    path = name or file
    try:
        if isinstance(file, str | Path):
            in_shard = open_in_shard(str(file))
            if in_shard is None:
                refuse_special(file)
            else:
                file = in_shard
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # corrupt EXIF and large-image warnings
            with Image.open(file, formats=_available(formats)) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise UserError(
                        f"{path}: {image.width} x {image.height} is over {MAX_PIXELS:,} pixels;"
                        " refused as a decompression bomb"
                    )
                return convert(image)
    except UserError:
        raise
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such image") from error
    except Exception as error:  # Pillow's plugins raise almost anything on damaged files
        unknown = isinstance(error, UnidentifiedImageError)
        said = f"it is none of {', '.join(_available(formats))}" if unknown else str(error)
        said = (unknown and why_unread(read_head(file))) or said
        raise UserError(f"{path}: not a readable image: {said}") from error


@lru_cache
def _available(formats: Sequence[str]) -> list[str]:
    """Return the formats that this Pillow build reads; MPO is read as JPEG."""
    Image.init()
    return [one for one in formats if one in Image.OPEN]


def _part(
    image: ImageFile.ImageFile,
    part_of: Callable[[int, int], Region],
    enough: Callable[[int, int], bool],
) -> tuple[np.ndarray, tuple[int, int]]:
    if image.format not in ("JPEG", "MPO"):
        whole = np.array(_as_seen(image))
        height, width = whole.shape[:2]
        return whole[part_of(height, width).of(height, width)], (height, width)
    turn = _orientation(image)
    width, height = image.size if turn < 5 else image.size[::-1]
    part = part_of(height, width)
    reduction = 1
    for reduction in REDUCTIONS:
        rows, columns = part.of(-(-height // reduction), -(-width // reduction))
        if enough(rows.stop - rows.start, columns.stop - columns.start):
            break
    seen = _jpeg(image, reduction) if turn == 1 else None
    if seen is None:
        image.draft(None, (image.width // reduction, image.height // reduction))
        seen = np.array(_as_seen(image))
    return seen[part.of(*seen.shape[:2])], (height, width)


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
    image.load()  # raises on damaged pixels, which later steps may tolerate
    image = _turned(image)
    if image.mode.startswith("I;16") or image.mode == "I":
        image = _from_16_bit(image)
    elif image.mode == "F":
        raise ValueError("32-bit float pixels have no agreed range; save as 8 or 16 bit")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, image)
    return image if image.mode == "RGB" else image.convert("RGB")


def _from_16_bit(image: Image.Image) -> Image.Image:
    """Scale 16 bit to 8; `convert` would clip everything above 255 to white."""
    pixels = np.asarray(image)
    if pixels.min() < 0 or pixels.max() > 65_535:
        raise ValueError("32-bit integer pixels have no agreed range; save as 8 or 16 bit")
    return Image.fromarray((pixels >> 8).astype(np.uint8))


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation, 1 to 8; from 5 on width and height are swapped."""
    with suppress(Exception):  # as in `_turned`
        found: Any = image.getexif().get(ExifTags.Base.Orientation)
        return found if found in range(1, 9) else 1
    return 1


def _turned(image: Image.Image) -> Image.Image:
    with suppress(Exception):  # the EXIF block is corrupt, but the image is fine
        ImageOps.exif_transpose(image, in_place=True)
    return image
