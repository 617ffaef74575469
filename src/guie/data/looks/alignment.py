"""Two pictures brought onto each other: by scale, shift and cut, as copies are made.

Shapes: V views, S side in px, P pixels of the overlap. Turns and shears are left out: nobody makes
copies so, and with them one drawing of a letter could be bent onto another.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import cv2
import numpy as np
from PIL import Image

from guie.data.looks.views import content

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
