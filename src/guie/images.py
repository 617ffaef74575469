"""Decoding: two ways to open a picture, and nothing else opens one.

`open_as_seen` gives what a person sees (curation, training). `open_as_host` gives what the
challenge's scorer sees (validation, embedding, parity with the submission).
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from guie.errors import UserError

# Pillow's own limit warns at 89 Mpx and refuses at twice that; a bomb must not pass with a warning.
MAX_PIXELS = 100_000_000


def open_as_seen(path: str | Path, least_px: int | None = None) -> Image.Image:
    """RGB as a viewer shows it: EXIF turned, 16 bit scaled, transparency on white, first frame.

    With `least_px` a JPEG may come smaller, by a half, a quarter or an eighth: its shorter side has
    at least so many pixels. It is decoded to that at once, which takes a fraction of the time.

    Raises UserError naming the file if it cannot be decoded whole.
    """
    return _decode(path, partial(_as_seen, least_px=least_px))


def open_as_host(path: str | Path) -> Image.Image:
    """RGB exactly as the scoring notebook decodes: `convert("RGB")`, no EXIF turn.

    Raises UserError naming the file if it cannot be decoded whole.
    """
    return _decode(path, lambda image: image.convert("RGB"))


def _decode(path: str | Path, convert: Callable[[Image.Image], Image.Image]) -> Image.Image:
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            raise UserError(f"{path}: not a regular file")  # opening a pipe would wait for ever
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # corrupt EXIF and large-image warnings
            with Image.open(path) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise UserError(
                        f"{path}: {image.width} x {image.height} is over {MAX_PIXELS:,} pixels;"
                        " refused as a decompression bomb"
                    )
                return convert(image)
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(f"{path}: no such image") from None
    except Exception as error:  # Pillow's plugins raise almost anything on damaged files
        raise UserError(f"{path}: not a readable image: {error}") from None


def _as_seen(image: Image.Image, least_px: int | None) -> Image.Image:
    if least_px is not None and min(image.size) > least_px:
        scale = least_px / min(image.size)
        image.draft(None, tuple(math.ceil(side * scale) for side in image.size))
    image.load()  # damaged pixels are refused here, whatever the later steps forgive
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
    """8 bit of 16; `convert` would clip everything above 255 to white."""
    pixels = np.asarray(image)
    if pixels.min() < 0 or pixels.max() > 65_535:
        raise ValueError("32-bit integer pixels have no agreed range; save as 8 or 16 bit")
    return Image.fromarray((pixels >> 8).astype(np.uint8))


def _turned(image: Image.Image) -> Image.Image:
    with suppress(Exception):  # a corrupt EXIF block: the picture itself is fine
        ImageOps.exif_transpose(image, in_place=True)
    return image
