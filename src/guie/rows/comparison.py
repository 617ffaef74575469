"""Align two pictures by scale, shift and crop, and measure their largest local difference."""

import io
from typing import NamedTuple

import cv2
import numpy as np
from PIL import Image

REDUCED_PX = 128  # the shorter side is box-filtered down to between this and twice as much
PLAIN = 24  # tolerated variation of a plain border, in grey levels
CONTENT = 0.02  # a line is content if this fraction of it differs from the border
MIN_CONTENT_PX = 16  # of the reduced picture: anything smaller is a speck
CUT = 0.05  # of each side

SIDE_PX = 96  # of a working picture
COARSE_PX = 24  # of the picture on which the first scale is chosen
BLUR_PX = 0.7  # standard deviation: rescaled pictures are softer than originals
# First scales: unchanged, and either one cropped by 2.5, 4 or 8 % a side
SCALES = (1.0, 0.95, 0.92, 0.84, 1 / 0.95, 1 / 0.92, 1 / 0.84)
SCALE_MAX = 1.4  # of one side against the other
SHIFT_MAX = 0.2  # of the side
SHEAR_MAX = 0.03  # copies are neither turned nor sheared; a fit beyond this has gone astray
STEPS = (cv2.TERM_CRITERIA_COUNT | cv2.TERM_CRITERIA_EPS, 12, 1e-4)  # of an alignment
FILTER_PX = 3  # side of the Gaussian filter of an alignment

LUMA = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R BT.601

GAIN_MAX = 1.5  # of contrast: beyond it, the pictures are different ones
CLIPPED = 4  # values this close to black or white may be clipped
FEW = 0.02  # if fewer values than this fraction are unclipped, all are used
FINE_PX, BROAD_PX = 3, 13  # sides over which brightness and colour are averaged
COLOUR = 1.5  # weight of a grey level of colour; compression spreads colour more than brightness
LESS = 1.25  # a picture is sharper than another from this ratio of their detail in px on
NONE = 10.0  # the difference of pictures that do not overlap


def content(image: Image.Image) -> Image.Image:
    """Crop plain borders: the picture's own margin, and a frame added around it."""
    without_frame = _without_border(image)
    return image if without_frame is image else _without_border(without_frame)


def cut(image: Image.Image, share: float = CUT) -> Image.Image:
    """Crop that share of the width or height at each side."""
    x, y = round(share * image.width), round(share * image.height)
    return image.crop((x, y, image.width - x, image.height - y))


def compressed(image: Image.Image, quality: int) -> Image.Image:
    """Compress as JPEG and decode again."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return Image.open(buffer).convert("RGB")


def altered(image: Image.Image) -> Image.Image:
    """Return a typical web copy, cropped and compressed, to measure a model's similarity of copies."""
    return compressed(cut(content(image)), quality=75)


def reduction(image: Image.Image) -> int:
    """Return the integer reduction factor that suffices for the coarse structure of a picture."""
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
    """Return left, top, right, bottom of the content within a plain border; None without a border."""
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


class Working(NamedTuple):
    """A picture prepared for comparison: the whole and, if it has a plain border, the content within."""

    colour_VSSC: np.ndarray  # float32 grey levels
    grey_VSS: np.ndarray  # float32
    coarse_VCC: np.ndarray  # the same, smaller
    detail_V2: list[tuple[int, int]]  # original width and height in px of each view, at most 96


class Placement(NamedTuple):
    """Map a point of one picture to the other: scale * point + shift, from the centre, in sides."""

    scale_x: float = 1.0
    scale_y: float = 1.0
    shift_x: float = 0.0
    shift_y: float = 0.0


class Alignment(NamedTuple):
    """The views of two pictures, and how the second is placed on the first."""

    view: int
    other_view: int
    placement: Placement


def working(image: Image.Image) -> Working:
    """Prepare an RGB picture of any size and shape for comparison."""
    within = content(image)
    views = [image] if within.size == image.size else [image, within]
    detail = [(min(view.width, SIDE_PX), min(view.height, SIDE_PX)) for view in views]
    square, coarse = (SIDE_PX, SIDE_PX), (COARSE_PX, COARSE_PX)
    small = [view.resize(square, Image.Resampling.BICUBIC, reducing_gap=2.0) for view in views]
    blurred = [cv2.GaussianBlur(np.asarray(one, np.float32), (0, 0), BLUR_PX) for one in small]
    colour_VSSC = np.stack(blurred)
    grey_VSS = colour_VSSC @ LUMA
    coarse_VCC = [cv2.resize(grey, coarse, interpolation=cv2.INTER_AREA) for grey in grey_VSS]
    return Working(colour_VSSC, grey_VSS, np.stack(coarse_VCC), detail)


def mirrored(picture: Working) -> Working:
    """Return the prepared mirror image."""
    colour, grey, coarse = (np.ascontiguousarray(views[:, :, ::-1]) for views in picture[:3])
    return Working(colour, grey, coarse, picture.detail_V2)


def align(one: Working, other: Working) -> Alignment:
    """Find the views and the placement with the largest correlation of grey levels.

    Evangelidis and Psarakis, Parametric Image Alignment Using Enhanced Correlation Coefficient
    Maximization (2008), by OpenCV.
    """
    starts = [
        (_correlation(one_CC, other_CC, Placement(scale, scale)), view, other_view, scale)
        for view, one_CC in enumerate(one.coarse_VCC)
        for other_view, other_CC in enumerate(other.coarse_VCC)
        for scale in SCALES
    ]
    _, view, other_view, scale = max(starts, key=lambda start: start[0])
    placement = _refined(one.grey_VSS[view], other.grey_VSS[other_view], Placement(scale, scale))
    return Alignment(view, other_view, placement)


def placed(picture: np.ndarray, placement: Placement) -> np.ndarray:
    """Warp the other picture, grey or in colour, onto the first."""
    side = len(picture)
    flags, border = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP, cv2.BORDER_REPLICATE
    matrix = _matrix(placement, side)
    return cv2.warpAffine(picture, matrix, (side, side), flags=flags, borderMode=border)


def _matrix(placement: Placement, side: int) -> np.ndarray:
    """Return the (2, 3) map of a point of the first picture to the other, in px."""
    centre = (side - 1) / 2
    scale_x, scale_y, shift_x, shift_y = placement
    right, down = centre * (1 - scale_x) + shift_x * side, centre * (1 - scale_y) + shift_y * side
    return np.array([[scale_x, 0, right], [0, scale_y, down]], np.float32)


def overlap(placement: Placement, side: int) -> tuple[slice, slice]:
    """Return the rows and columns of the first picture that the other covers; either may be empty.

    They are the positions p with |scale * p + shift| <= 1/2, p in fractions of the side from the centre.
    """

    def span(scale: float, shift: float) -> slice:
        centre = (side - 1) / 2
        first = np.ceil(centre + side * (-0.5 - shift) / scale)
        last = np.floor(centre + side * (0.5 - shift) / scale)
        return slice(int(max(first, 0)), int(min(last, side - 1)) + 1)

    scale_x, scale_y, shift_x, shift_y = placement
    return span(scale_y, shift_y), span(scale_x, shift_x)


def _correlation(one_SS: np.ndarray, other_SS: np.ndarray, placement: Placement) -> float:
    covered = overlap(placement, len(one_SS))
    one, other = one_SS[covered], placed(other_SS, placement)[covered]
    one, other = one - one.mean(), other - other.mean()
    return float(np.vdot(one, other) / (np.sqrt(np.vdot(one, one) * np.vdot(other, other)) + 1))


def _refined(one_SS: np.ndarray, other_SS: np.ndarray, start: Placement) -> Placement:
    """Return the best placement near `start`, or `start` itself if none is better."""
    side = len(one_SS)
    all_SS = np.ones((side, side), np.uint8)
    try:
        _, matrix_23 = cv2.findTransformECC(
            one_SS, other_SS, _matrix(start, side), cv2.MOTION_AFFINE, STEPS, all_SS, FILTER_PX
        )
    except cv2.error:  # a flat picture, or one that looks alike when it is turned
        return start
    (scale_x, shear, _), (turn, scale_y, _) = matrix_23.tolist()
    centre = (side - 1) / 2
    shift_x, shift_y = ((matrix_23 @ [centre, centre, 1] - centre) / side).tolist()
    found = Placement(scale_x, scale_y, shift_x, shift_y)
    astray = (
        max(abs(shear), abs(turn)) > SHEAR_MAX
        or max(abs(shift_x), abs(shift_y)) > SHIFT_MAX
        or not all(1 / SCALE_MAX < scale < SCALE_MAX for scale in found[:2])
    )
    if astray or _correlation(one_SS, other_SS, found) < _correlation(one_SS, other_SS, start):
        return start
    return found


def compare(one: Working, other: Working, mirror: bool = False) -> float:
    """Align two pictures; return their largest local difference, in their standard deviations.

    Brightness is averaged over 3 x 3 px of 96, colour over 13 x 13 px. The larger of both differences is
    divided by the standard deviation of the picture. A copy matches everywhere; a look-alike does not.
    With `mirror`, the mirror image of the other is tried too.
    """
    return _differences(one, other, mirror)[0]


def difference_picture(one: Working, other: Working, mirror: bool) -> np.ndarray | None:
    """Return the difference, amplified 4 times around mid grey, (H, W, 3) uint8; None: no overlap."""
    rest_HWC = _differences(one, other, mirror)[1]
    return None if rest_HWC is None else (128 + 4 * rest_HWC).clip(0, 255).astype(np.uint8)


def _differences(
    one: Working, other: Working, mirror: bool = False
) -> tuple[float, np.ndarray | None]:
    """Return the largest local difference and, if the pictures overlap, all of them."""
    if mirror:
        both = _differences(one, other), _differences(one, mirrored(other))
        return min(both, key=lambda found: found[0])
    found = align(one, other)
    side = one.colour_VSSC.shape[1]
    rows, columns = overlap(found.placement, side)
    if min(rows.stop - rows.start, columns.stop - columns.start) < side // 2:
        return NONE, None
    # Width and height to compare at: less than the side where one picture is clearly softer
    pairs = zip(one.detail_V2[found.view], other.detail_V2[found.other_view], strict=True)
    detail = [side if max(pair) < LESS * min(pair) else min(pair) for pair in pairs]
    one_HWC = _softened(one.colour_VSSC[found.view], detail)[rows, columns]
    other_SSC = _softened(other.colour_VSSC[found.other_view], detail)
    other_HWC = placed(other_SSC, found.placement)[rows, columns]
    gain, offset = _exposure(one_HWC, other_HWC)
    lit_HWC = (gain * other_HWC + offset).clip(0, 255)
    # detail that the other picture lost to clipping cannot be compared
    seen_HWC = one_HWC.clip(*np.clip((offset, gain * 255 + offset), 0, 255))
    rest_HWC = seen_HWC - lit_HWC
    grey_HW = rest_HWC @ LUMA
    colour_HWC = np.ascontiguousarray(rest_HWC[..., ::2]) - grey_HW[..., None]
    fine = np.abs(cv2.blur(grey_HW, (FINE_PX, FINE_PX))).max()
    broad = np.abs(cv2.blur(colour_HWC, (BROAD_PX, BROAD_PX))).max()
    spread = min(float(one_HWC.std()), float(lit_HWC.std())) + 1
    return min(float(max(fine, COLOUR * broad)) / spread, NONE), rest_HWC


def _softened(picture_SSC: np.ndarray, detail: list[int]) -> np.ndarray:
    """Reduce the picture's detail to this width and height in px."""
    side = len(picture_SSC)
    if min(detail) == side:
        return picture_SSC
    small = cv2.resize(picture_SSC, detail, interpolation=cv2.INTER_AREA)
    return cv2.resize(small, (side, side), interpolation=cv2.INTER_LINEAR)


def _exposure(one_HWC: np.ndarray, other_HWC: np.ndarray) -> tuple[float, float]:
    """Return gain and offset, shared by all channels, that match the other's exposure to the first."""
    low, high = CLIPPED, 255 - CLIPPED
    whole_HWC = (np.minimum(one_HWC, other_HWC) > low) & (np.maximum(one_HWC, other_HWC) < high)
    if whole_HWC.mean() < FEW:
        whole_HWC[:] = True
    one, other = one_HWC[whole_HWC], other_HWC[whole_HWC]
    for _ in range(3):  # refit without the pixels that fit worst
        mean, other_mean = float(one.mean()), float(other.mean())
        apart = other - other_mean
        gain = float(np.vdot(one - mean, apart)) / (float(np.vdot(apart, apart)) + 1e-3)
        gain = min(max(gain, 1 / GAIN_MAX), GAIN_MAX)
        offset = mean - gain * other_mean
        off = np.abs(one - gain * other - offset)
        near = off <= 2.5 * np.median(off) + 4
        if near.all() or near.sum() < 100:
            break
        one, other = one[near], other[near]
    return gain, offset
