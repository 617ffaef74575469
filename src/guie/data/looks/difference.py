"""What differs between two pictures that lie on each other, light and contrast set equal.

Shapes: S side in px, H height and W width of the overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

from guie.data.images import open_as_seen
from guie.data.looks.alignment import (
    LUMA,
    Placement,
    Working,
    align,
    mirrored,
    overlap,
    placed,
    working,
)

GAIN_MAX = 1.5  # of contrast: beyond it a picture is another one
CLIPPED = 4  # grey levels from black and from white that may have been cut off there
FEW = 0.02  # share of unclipped values below which all are used
FINE_PX, BROAD_PX = 3, 13  # sides over which brightness and colour are averaged
COLOUR = 1.5  # how much a grey level of colour weighs; compression spreads colour, not much else
LESS = 1.25  # times the detail, in px, from which on a picture is sharper than another
NONE = 10.0  # the difference of pictures that do not lie on each other at all


class Comparison(NamedTuple):
    """Two pictures compared."""

    difference: float  # the largest difference in one place, of the pictures' own spread
    placement: Placement = Placement()
    gain: float = 1.0  # of the other picture's contrast
    offset: float = 0.0  # grey levels
    overlap: float = 0.0  # share of the one picture


def compare(one: Working, other: Working, mirror: bool = False) -> Comparison:
    """How much two pictures differ where they differ most, as they lie best on each other.

    The difference is the largest one of brightness, averaged over 3 x 3 px of 96, or of colour,
    over 13 x 13 px, divided by the standard deviation of the picture: a copy keeps every part of
    a picture, a look-alike most of them.

    Args:
        mirror: try the mirror image of the other too.
    """
    found = _compare(one, other)[0]
    if mirror:
        found = min(found, _compare(one, mirrored(other))[0], key=lambda one: one.difference)
    return found


def compare_files(root: Path, mirror: bool, pair: tuple[str, str]) -> Comparison:
    """`compare` of two images. Raises UserError naming a file that cannot be decoded."""
    one, other = (_opened(root, path) for path in pair)
    return compare(one, other, mirror)


def difference_picture(one: Working, other: Working, mirror: bool) -> np.ndarray | None:
    """(H, W, 3) uint8: mid grey where they agree, differences four times as strong; None: apart."""
    compared = [_compare(one, other)]
    if mirror:
        compared.append(_compare(one, mirrored(other)))
    rest_HWC = min(compared, key=lambda found: found[0].difference)[1]
    return None if rest_HWC is None else (128 + 4 * rest_HWC).clip(0, 255).astype(np.uint8)


@lru_cache(maxsize=256)  # a few dozen MB a process; pairs come sorted
def _opened(root: Path, image_path: str) -> Working:
    return working(open_as_seen(root / image_path))


def _compare(one: Working, other: Working) -> tuple[Comparison, np.ndarray | None]:
    found = align(one, other)
    side = one.colour_VSSC.shape[1]
    rows, columns = overlap(found.placement, side)
    if min(rows.stop - rows.start, columns.stop - columns.start) < side // 2:
        return Comparison(NONE), None
    detail = _common_detail(one.detail_V2[found.view], other.detail_V2[found.other_view], side)
    one_HWC = _softened(one.colour_VSSC[found.view], detail)[rows, columns]
    other_SSC = _softened(other.colour_VSSC[found.other_view], detail)
    other_HWC = placed(other_SSC, found.placement)[rows, columns]
    gain, offset = _exposure(one_HWC, other_HWC)
    lit_HWC = (gain * other_HWC + offset).clip(0, 255)
    # what the other has lost in black or white, nobody can find in it again
    seen_HWC = one_HWC.clip(*np.clip((offset, gain * 255 + offset), 0, 255))
    rest_HWC = seen_HWC - lit_HWC
    spread = min(float(one_HWC.std()), float(lit_HWC.std())) + 1
    share = rest_HWC.shape[0] * rest_HWC.shape[1] / side**2
    difference = min(_largest(rest_HWC) / spread, NONE)
    return Comparison(difference, found.placement, gain, offset, share), rest_HWC


def _common_detail(one: Sequence[int], other: Sequence[int], side: int) -> list[int]:
    """Width and height in px to compare by: the whole side, but where one picture has clearly less."""
    pairs = zip(one, other, strict=True)
    return [side if max(pair) < LESS * min(pair) else min(pair) for pair in pairs]


def _softened(picture_SSC: np.ndarray, detail: list[int]) -> np.ndarray:
    """The picture with no more detail than that."""
    side = len(picture_SSC)
    if min(detail) == side:
        return picture_SSC
    small = cv2.resize(picture_SSC, detail, interpolation=cv2.INTER_AREA)
    return cv2.resize(small, (side, side), interpolation=cv2.INTER_LINEAR)


def _exposure(one_HWC: np.ndarray, other_HWC: np.ndarray) -> tuple[float, float]:
    """Gain and offset that bring the other to the one's light, the same for all colours."""
    low, high = CLIPPED, 255 - CLIPPED
    whole_HWC = (np.minimum(one_HWC, other_HWC) > low) & (np.maximum(one_HWC, other_HWC) < high)
    if whole_HWC.mean() < FEW:
        whole_HWC[:] = True
    one, other = one_HWC[whole_HWC], other_HWC[whole_HWC]
    for _ in range(3):  # without the pixels that fit worst
        gain, offset = _fitted(one, other)
        off = np.abs(one - gain * other - offset)
        near = off <= 2.5 * np.median(off) + 4
        if near.all() or near.sum() < 100:
            break
        one, other = one[near], other[near]
    return gain, offset


def _fitted(one: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    mean, other_mean = float(one.mean()), float(other.mean())
    apart = other - other_mean
    gain = float(np.vdot(one - mean, apart)) / (float(np.vdot(apart, apart)) + 1e-3)
    gain = min(max(gain, 1 / GAIN_MAX), GAIN_MAX)
    return gain, mean - gain * other_mean


def _largest(rest_HWC: np.ndarray) -> float:
    grey_HW = rest_HWC @ LUMA
    colour_HWC = np.ascontiguousarray(rest_HWC[..., ::2]) - grey_HW[..., None]
    fine = np.abs(cv2.blur(grey_HW, (FINE_PX, FINE_PX))).max()
    broad = np.abs(cv2.blur(colour_HWC, (BROAD_PX, BROAD_PX))).max()
    return float(max(fine, COLOUR * broad))
