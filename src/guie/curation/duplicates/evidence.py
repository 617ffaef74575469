"""Evidence for duplicates: features, altered copies, and limits on differences measured in each domain."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from accelerate import Accelerator
from PIL import Image, ImageEnhance
from scipy.optimize import brentq

from guie.base.devices import make_accelerator
from guie.config.data import CleaningConfig, NearConfig
from guie.models.loading import LoadedModel, open_model
from guie.rows.checks import thumbnails
from guie.rows.comparison import VIEWS, compressed, cut
from guie.rows.embedding import stored_features
from guie.rows.store import Rows

# Paths and the name of a view -> (N, D) features of unit length.
Embed = Callable[[Sequence[str], str], np.ndarray | Rows]


def embed_for(
    config: CleaningConfig, root: Path, folder: Path, workers: int, part: tuple[int, int] = (0, 1)
) -> Embed:
    """Return the features that cleaning compares: cached ones of its model, or thumbnails.

    The model is opened at first use, because most mixes have no near-duplicates to confirm. Raises
    UserError if there is no such model.
    """
    word = config.model
    if word is None:
        return partial(thumbnails, root=root, workers=workers)

    reopen = partial(open_model, word, config.size_px)

    @lru_cache(maxsize=1)
    def opened() -> tuple[Accelerator, LoadedModel]:
        return make_accelerator(), reopen()

    def embed(paths: Sequence[str], view: str) -> Rows:
        look = None if view == "whole" else (view, VIEWS[view])
        settings: dict[str, Any] = {"workers": workers, "part": part, "reopen": reopen}
        return stored_features(*opened(), paths, root, folder, view=look, **settings)

    return embed


EACH = 3  # altered copies of an image


def resized(image: Image.Image, scale: float) -> Image.Image:
    """Scale both sides, to at least one pixel."""
    width, height = (max(round(scale * side), 1) for side in image.size)
    return image.resize((width, height), Image.Resampling.BICUBIC)


def brighter(image: Image.Image, gain: float) -> Image.Image:
    """Multiply every level by `gain`."""
    return ImageEnhance.Brightness(image).enhance(gain)


def contrasted(image: Image.Image, gain: float) -> Image.Image:
    """Multiply every level's distance from the mean by `gain`."""
    return ImageEnhance.Contrast(image).enhance(gain)


# The alterations that cleaning should find: see configs/studies/
# log/2026-11-22.md, "A copy is not a look-alike".
ALTERATIONS: tuple[Callable[[Image.Image], Image.Image], ...] = (
    partial(compressed, quality=30),
    partial(resized, scale=0.5),
    partial(cut, share=0.04),
    partial(brighter, gain=1.3),
    partial(resized, scale=2.0),
    partial(contrasted, gain=0.7),
    partial(cut, share=0.02),
    partial(contrasted, gain=1.3),
    partial(brighter, gain=0.7),
)


def altered_copies(image: Image.Image, number: int) -> list[Image.Image]:
    """Return altered copies of image `number`; nine images use every alteration equally often."""
    chosen = ((EACH * number + n) % len(ALTERATIONS) for n in range(EACH))
    return [ALTERATIONS[n](image) for n in chosen]


REACH, ROOM = 0.99, 1.5  # quantile of altered copies' differences, and the factor on it
REACH_MIN, REACH_MAX = 0.5, 1.0
APART = 2.0  # pairs that differ by more are not near; all near pairs are compared fully
SPAN = 1.5  # the tail is fitted up to this multiple of `reach`,
ENOUGH = 100  # or up to this many pairs if that is farther
FEWEST = 10  # pairs for a fit in one domain; with fewer, the fit of all domains is used
EXPONENT = 2.0  # if all domains together have too few pairs
LEAST = 0.1  # smallest exponent of a tail

CROSS = "across domains"
ALIKE, UNLIKE = "in common", "none in common"  # labels of two pictures
COLUMNS = [
    *("domain", "labels", "images", "compared", "reach", "exponent", "sure_limit", "copy_limit"),
    *("sure", "copies", "near", "false_sure", "false_copies", "recall_sure", "recall_copies"),
]


class Grade(IntEnum):
    """Certainty that a pair of pictures are copies."""

    NEAR = 0  # differ no more than altered copies do
    COPY = 1  # enough for a duplicate within a class
    SURE = 2  # beyond doubt: enough for a finding across labels or splits


class Tail(NamedTuple):
    """Number of look-alike pairs that differ by less than d: total * (d / upper) ** exponent."""

    total: float
    upper: float
    exponent: float

    def below(self, difference: float) -> float:
        """Return the expected number of pairs below this difference that are not copies."""
        return self.total * (difference / self.upper) ** self.exponent

    def limit(self, expected: float, reach: float) -> float:
        """Return the difference, at most `reach`, below which `expected` such pairs fall."""
        return min(self.upper * (expected / self.total) ** (1 / self.exponent), reach)


def reach_of(differences: np.ndarray) -> float:
    """Return the largest difference of altered copies, with a margin because the sample is small."""
    return float(np.clip(ROOM * np.quantile(differences, REACH), REACH_MIN, REACH_MAX))


def fit_tail(differences: np.ndarray, reach: float, pooled: float | None = None) -> Tail:
    """Fit the lower tail of look-alikes to the nearest pairs that differ by more than `reach`.

    The tail is a power law, fitted by maximum likelihood (Hill, A Simple General Approach to
    Inference About the Tail of a Distribution, 1975). One standard error is subtracted from the
    exponent, so the fit overestimates look-alikes rather than underestimates them. True copies
    are below the window, so their number does not influence the fit.

    Args:
        differences: (P,) differences of all compared pairs.
        reach: the largest difference of altered copies.
        pooled: the exponent to use if this group has too few pairs.
    """
    window = np.sort(differences[(differences > reach) & (differences <= APART)])
    upper = min(SPAN * reach, APART)
    if np.searchsorted(window, upper, side="right") < ENOUGH:
        upper = float(window[ENOUGH - 1]) if len(window) >= ENOUGH else APART
    window = window[window <= upper]
    if len(window) >= FEWEST and upper > reach:
        exponent = _exponent(window, reach, upper)
    else:
        upper, exponent = APART, pooled or EXPONENT
    below = (reach / upper) ** exponent  # of the pairs under `upper`, the share under `reach`
    return Tail((len(window) + 1) / (1 - below), upper, exponent)


def _exponent(window: np.ndarray, lower: float, upper: float) -> float:
    """Return the power law's exponent between the bounds: the likeliest minus one standard error."""
    mean_log, whole = float(np.log(upper / window).mean()), float(np.log(upper / lower))

    def excess(exponent: float) -> float:
        return 1 / exponent - whole / np.expm1(exponent * whole) - mean_log

    low, high = LEAST, 100.0
    # Small differences are as frequent as large ones, or more: the flattest tail
    if excess(low) <= 0:
        return low
    found = float(brentq(excess, low, high)) if excess(high) < 0 else high
    information = found**-2 - (whole / (2 * np.sinh(found * whole / 2))) ** 2
    return max(found - (len(window) * information) ** -0.5, low)


def limits(
    pairs: pd.DataFrame, images: pd.Series, altered: Mapping[str, np.ndarray], config: NearConfig
) -> pd.DataFrame:
    """Compute the limits of each domain, for pairs with and without a common label.

    Args:
        pairs: columns domain (`CROSS` for two), labels (ALIKE or UNLIKE), difference.
        images: number of images by domain.
        altered: by domain, the differences between its images and altered copies of them.
        config: the accepted shares of a domain's images that are falsely found.

    Returns:
        COLUMNS, one row for each domain and kind of labels. Up to `sure_limit` a pair is a copy
        beyond doubt, up to `copy_limit` a copy, up to `reach` near. `sure`, `copies` and `near`
        count the pairs up to each limit. `false_` counts the expected false pairs, `recall_` is
        the share of altered copies below the limit.
    """
    everything = np.concatenate([*altered.values(), np.zeros(0)])
    altered = {**altered, CROSS: everything}
    images = pd.concat([images, pd.Series({CROSS: images.sum()})])
    reach = {domain: reach_of(found) for domain, found in altered.items() if len(found)}
    strictest = min(reach.values(), default=REACH_MIN)
    reach[CROSS] = strictest
    pooled = fit_tail(pairs["difference"].to_numpy(), REACH_MAX).exponent
    rows = []
    for (domain, labels), found in pairs.groupby(["domain", "labels"]):
        differences, own = found["difference"].to_numpy(), images[domain]
        tail = fit_tail(differences, reach[domain], pooled)
        sure = tail.limit(config.false_sure * own, reach[domain])
        copy = tail.limit(config.false_copies * own, reach[domain])
        counts = [int((differences <= limit).sum()) for limit in (sure, copy, reach[domain])]
        false = tail.below(sure), tail.below(copy)
        recall = [float((altered[domain] <= limit).mean()) for limit in (sure, copy)]
        start = (domain, labels, own, len(found), reach[domain], tail.exponent, sure, copy)
        rows.append((*start, *counts, *false, *recall))
    return pd.DataFrame(rows, columns=COLUMNS)


def graded(pairs: pd.DataFrame, limits: pd.DataFrame) -> pd.DataFrame:
    """Return the pairs of at least grade NEAR, with columns grade, sure_limit and copy_limit."""
    group = limits.set_index(["domain", "labels"])
    own = group.reindex(pd.MultiIndex.from_frame(pairs[["domain", "labels"]]))
    bounds = own[["reach", "copy_limit", "sure_limit"]].to_numpy()
    grade = (pairs["difference"].to_numpy()[:, None] <= bounds).sum(axis=1) - 1
    ends = {name: own[name].to_numpy() for name in ("sure_limit", "copy_limit")}
    pairs = pairs.assign(grade=grade, **ends)
    return pairs[grade >= Grade.NEAR].reset_index(drop=True)
