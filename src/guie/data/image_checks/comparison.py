"""Align two pictures by scale, shift and crop, and measure their largest local difference."""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from PIL import Image

from guie.data.images import open_as_seen

REDUCED_PX = 128  # the shorter side is box-filtered down to between this and twice as much
PLAIN = 24  # grey levels that a border may vary by, and still be one
CONTENT = 0.02  # share of a line that must differ from the border for the line to be content
MIN_CONTENT_PX = 16  # of the reduced picture: a smaller speck is no picture
CUT = 0.05  # of each side


def content(image: Image.Image) -> Image.Image:
    """The picture without plain borders: its own margin, and the frame that somebody put around."""
    return _without_border(_without_border(image))


def centre(image: Image.Image) -> Image.Image:
    """What a slight crop leaves: the picture without a twentieth at each side."""
    x, y = round(CUT * image.width), round(CUT * image.height)
    return image.crop((x, y, image.width - x, image.height - y))


def altered(image: Image.Image) -> Image.Image:
    """A copy as the web makes them, cut and compressed: how alike copies are under a model."""
    buffer = io.BytesIO()
    centre(content(image)).save(buffer, "JPEG", quality=75)
    return Image.open(buffer).convert("RGB")


def reduction(image: Image.Image) -> int:
    """The integer factor that a picture may be reduced by before its coarse structure is read."""
    return max(1, min(image.size) // REDUCED_PX)


def _without_border(image: Image.Image) -> Image.Image:
    factor = reduction(image)
    grey = image if image.mode == "L" else image.convert("L")
    box = _content_box(np.asarray(grey if factor == 1 else grey.reduce(factor)))
    if box is None:
        return image
    left, top, right, bottom = (factor * side for side in box)
    return image.crop((left, top, min(right, image.width), min(bottom, image.height)))


def _content_box(grey_HW: np.ndarray) -> tuple[int, int, int, int] | None:
    """Left, top, right, bottom of what a plain border surrounds; None where there is no border."""
    corners = grey_HW[[0, 0, -1, -1], [0, -1, 0, -1]]
    if np.ptp(corners) > PLAIN:
        return None
    differs_HW = np.abs(grey_HW.astype(np.int16) - int(np.median(corners))) > PLAIN
    rows = np.flatnonzero(differs_HW.mean(axis=1) > CONTENT)
    columns = np.flatnonzero(differs_HW.mean(axis=0) > CONTENT)
    if min(len(rows), len(columns)) < MIN_CONTENT_PX:
        return None
    box = int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1
    return None if box == (0, 0, *grey_HW.shape[::-1]) else box


VIEWS = {"content": content, "altered": altered}


SIDE_PX = 96  # of a working picture
COARSE = (4, 2)  # reductions at which two pictures are brought near each other first
ITERATIONS = {4: 8, 2: 5, 1: 5}  # at most, by reduction
BLUR_PX = 0.7  # standard deviation: what was scaled is softer than what was not
SCALES = (1.0, 0.9, 1 / 0.9)  # tried at the start: as it is, and one cut by 5 % a side
SCALE_MAX = 1.4  # of one side against the other
SHIFT_MAX = 0.2  # of the side
CONVERGED = 2e-4  # of the side: smaller steps change nothing
HOPELESS = 0.5  # correlation without which finer pictures are not looked at
LUMA = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R BT.601


class Working(NamedTuple):
    """A picture as it is compared: its whole and, if it has a plain border, what is within."""

    colour_VSSC: np.ndarray  # float32 grey levels
    grey_VSS: list[list[np.ndarray]]  # by view and reduction
    detail_V2: list[tuple[int, int]]  # width and height in px that each view had, 96 at the most


class Placement(NamedTuple):
    """Where a point of one picture lies in the other: scale * point + shift, from the centre.

    In shares of the side.
    """

    scale_x: float = 1.0
    scale_y: float = 1.0
    shift_x: float = 0.0
    shift_y: float = 0.0


class Alignment(NamedTuple):
    """How a view of the other picture lies on a view of the one."""

    view: int
    other_view: int
    placement: Placement


def working(image: Image.Image) -> Working:
    """The working picture of an RGB one, whatever its size and shape."""
    within = content(image)
    views = [image] if within.size == image.size else [image, within]
    colour = np.stack([_scaled(view) for view in views])
    detail = [(min(view.width, SIDE_PX), min(view.height, SIDE_PX)) for view in views]
    return Working(colour, [_pyramid(view_SSC @ LUMA) for view_SSC in colour], detail)


def mirrored(picture: Working) -> Working:
    """The working picture of the mirror image."""
    flipped = [[np.ascontiguousarray(grey[:, ::-1]) for grey in view] for view in picture.grey_VSS]
    colour = np.ascontiguousarray(picture.colour_VSSC[:, :, ::-1])
    return picture._replace(colour_VSSC=colour, grey_VSS=flipped)


def align(one: Working, other: Working) -> Alignment:
    """Find the views and the placement under which the two differ least.

    Gauss-Newton on grey levels from coarse to fine, contrast fitted along: Lucas and Kanade, An
    Iterative Image Registration Technique (1981); Baker and Matthews, Lucas-Kanade 20 Years On (2004).
    """
    views = product(range(len(one.grey_VSS)), range(len(other.grey_VSS)), SCALES)
    starts = [
        _correlation(one.grey_VSS[view][0], other.grey_VSS[other_view][0], scale)
        + (view, other_view)
        for view, other_view, scale in views
    ]
    _, placement, view, other_view = max(starts, key=lambda start: start[0])
    levels = zip((*COARSE, 1), one.grey_VSS[view], other.grey_VSS[other_view], strict=True)
    for reduction, one_SS, other_SS in levels:
        placement, correlation = _refined(one_SS, other_SS, placement, ITERATIONS[reduction])
        if correlation < HOPELESS:
            break
    return Alignment(view, other_view, placement)


def placed(picture: np.ndarray, placement: Placement) -> np.ndarray:
    """The other picture, grey or in colour, as it lies on the one."""
    side = len(picture)
    centre = (side - 1) / 2
    scale_x, scale_y, shift_x, shift_y = placement
    matrix = np.array(
        [
            [scale_x, 0, centre * (1 - scale_x) + shift_x * side],
            [0, scale_y, centre * (1 - scale_y) + shift_y * side],
        ]
    )
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    return cv2.warpAffine(
        picture, matrix, (side, side), flags=flags, borderMode=cv2.BORDER_REPLICATE
    )


def overlap(placement: Placement, side: int) -> tuple[slice, slice]:
    """Rows and columns of the one that the other lies on; either may be empty."""
    scale_x, scale_y, shift_x, shift_y = placement
    return _span(scale_y, shift_y, side), _span(scale_x, shift_x, side)


def _span(scale: float, shift: float, side: int) -> slice:
    """Positions p with |scale * p + shift| <= 1/2, p in shares of the side from the centre."""
    centre = (side - 1) / 2
    first = np.ceil(centre + side * (-0.5 - shift) / scale)
    last = np.floor(centre + side * (0.5 - shift) / scale)
    return slice(int(max(first, 0)), int(min(last, side - 1)) + 1)


def _scaled(image: Image.Image) -> np.ndarray:
    small = image.resize((SIDE_PX, SIDE_PX), Image.Resampling.BICUBIC, reducing_gap=2.0)
    return cv2.GaussianBlur(np.asarray(small, np.float32), (0, 0), BLUR_PX)


def _pyramid(grey_SS: np.ndarray) -> list[np.ndarray]:
    """From coarse to fine."""
    sides = [SIDE_PX // reduction for reduction in COARSE]
    area = cv2.INTER_AREA
    return [*(cv2.resize(grey_SS, (side, side), interpolation=area) for side in sides), grey_SS]


def _correlation(one_SS: np.ndarray, other_SS: np.ndarray, scale: float) -> tuple:
    placement = Placement(scale, scale)
    rows, columns = overlap(placement, len(one_SS))
    one, other = one_SS[rows, columns], placed(other_SS, placement)[rows, columns]
    one, other = one - one.mean(), other - other.mean()
    norm = np.sqrt(np.vdot(one, one) * np.vdot(other, other))
    return float(np.vdot(one, other) / (norm + 1)), placement


def _refined(
    one_SS: np.ndarray, other_SS: np.ndarray, placement: Placement, iterations: int
) -> tuple[Placement, float]:
    """The placement of the highest correlation that the steps came by, and the correlation."""
    side = len(one_SS)
    points = ((np.arange(side) - (side - 1) / 2) / side).astype(np.float32)
    best = placement, -1.0
    for step in range(iterations + 1):
        rows, columns = overlap(placement, side)
        one = one_SS[rows, columns]
        if min(one.shape) < side // 2:
            break
        other_all = placed(other_SS, placement)
        other = other_all[rows, columns]
        one, other = one - one.mean(), other - other.mean()
        covariance, power = float(np.vdot(one, other)), float(np.vdot(other, other))
        correlation = covariance / (float(np.sqrt(np.vdot(one, one) * power)) + 1)
        if correlation > best[1]:
            best = placement, correlation
        if step == iterations:
            break
        gain = min(max(covariance / (power + 1e-3), 0.5), 2.0)
        across, down = (gain * slope[rows, columns] for slope in _slopes(other_all, placement))
        jacobian = np.stack(
            [
                (across * points[columns]).ravel(),
                (down * points[rows, None]).ravel(),
                across.ravel(),
                down.ravel(),
                other.ravel(),
                np.ones(other.size, np.float32),
            ]
        )
        normal = jacobian @ jacobian.T + np.diag([1e-2 * other.size] * 4 + [1e-3, 1e-3])
        residual = (one - gain * other).ravel()
        change = np.clip(np.linalg.solve(normal, jacobian @ residual)[:4], -0.1, 0.1)
        placement = Placement(*(np.array(placement) + change).tolist())
        if _too_far(placement) or np.abs(change).max() < CONVERGED:
            break
    return best


def _slopes(picture_SS: np.ndarray, placement: Placement) -> tuple[np.ndarray, np.ndarray]:
    """By how many grey levels a placed picture changes for a shift by its whole side."""
    side = len(picture_SS)
    edge = cv2.BORDER_REPLICATE
    across = cv2.Sobel(picture_SS, cv2.CV_32F, 1, 0, scale=side / 8, borderType=edge)
    down = cv2.Sobel(picture_SS, cv2.CV_32F, 0, 1, scale=side / 8, borderType=edge)
    return across / placement.scale_x, down / placement.scale_y


def _too_far(placement: Placement) -> bool:
    scales, shifts = np.array(placement[:2]), np.abs(placement[2:])
    return bool((np.abs(np.log(scales)) > np.log(SCALE_MAX)).any() or (shifts > SHIFT_MAX).any())


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
