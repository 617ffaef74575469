"""How certain a duplicate is: pixel differences, and limits on them measured in each domain."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from PIL import Image, ImageEnhance
from scipy.optimize import brentq
from tqdm import tqdm

from guie.config.data import NearConfig
from guie.data.image_checks.comparison import compare, compare_files, working
from guie.data.image_checks.decoding import mapped
from guie.data.images import open_as_seen


class Pixels(NamedTuple):
    """Differences between images below a folder, as `difference.compare` measures them."""

    root: Path
    workers: int

    def between(self, pairs: Sequence[tuple[str, str]], mirrored: bool) -> np.ndarray:
        """(P,) differences of pairs of paths. Raises UserError naming what cannot be decoded."""
        return self._all(partial(_between, self.root, mirrored), pairs, "copies", "pair")

    def altered(self, paths: Sequence[str]) -> np.ndarray:
        """(3 N,) differences between each image and altered copies of it."""
        numbered = [*enumerate(paths)]
        return self._all(partial(_altered, self.root), numbered, "altered", "img").ravel()

    def _all(self, look: Any, asked: Sequence[Any], name: str, unit: str) -> np.ndarray:
        with tqdm(total=len(asked), desc=name, unit=unit, leave=False, disable=None) as bar:
            found = []
            for answer in mapped(look, asked, self.workers):
                found.append(answer)
                bar.update()
        return np.round(np.array(found, np.float64), 4)


def _between(root: Path, mirrored: bool, pair: tuple[str, str]) -> float:
    return compare_files(root, mirrored, pair).difference


def _altered(root: Path, numbered: tuple[int, str]) -> list[float]:
    number, path = numbered
    image = open_as_seen(root / path)
    plain = working(image)
    copies = altered_copies(image, number)
    return [compare(plain, working(copy)).difference for copy in copies]


EACH = 3  # of an image


def compressed(image: Image.Image, quality: int) -> Image.Image:
    """As JPEG leaves it."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return Image.open(buffer).convert("RGB")


def cut(image: Image.Image, share: float) -> Image.Image:
    """Without that share of the side at each side."""
    x, y = round(share * image.width), round(share * image.height)
    return image.crop((x, y, image.width - x, image.height - y))


def resized(image: Image.Image, scale: float) -> Image.Image:
    """Both sides scaled, one pixel at least."""
    width, height = (max(round(scale * side), 1) for side in image.size)
    return image.resize((width, height), Image.Resampling.BICUBIC)


def brighter(image: Image.Image, gain: float) -> Image.Image:
    """Every level times `gain`."""
    return ImageEnhance.Brightness(image).enhance(gain)


def contrasted(image: Image.Image, gain: float) -> Image.Image:
    """Every level's distance from the mean times `gain`."""
    return ImageEnhance.Contrast(image).enhance(gain)


# What cleaning promises to find: see EXPERIMENTS.md, "A copy is not a look-alike".
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
    """Some copies of the image with that number: over nine images, each alteration is used alike."""
    chosen = ((EACH * number + n) % len(ALTERATIONS) for n in range(EACH))
    return [ALTERATIONS[n](image) for n in chosen]


REACH, ROOM = 0.99, 1.5  # quantile of altered copies' differences, and how far beyond it to look
REACH_MIN, REACH_MAX = 0.5, 1.0
APART = 2.0  # pairs that differ by more are not near; those that are, are all compared fully
SPAN = 1.5  # the tail is fitted up to so many times `reach`,
ENOUGH = 100  # or to so many pairs if that is more
FEWEST = 10  # pairs for a domain to speak for itself; else all domains speak for it
EXPONENT = 2.0  # where even those are too few
LEAST = 0.1  # as slowly as a tail may thin out

CROSS = "across domains"
ALIKE, UNLIKE = "in common", "none in common"  # what labels two pictures have
COLUMNS = [
    *("domain", "labels", "images", "compared", "reach", "exponent", "sure_limit", "copy_limit"),
    *("sure", "copies", "near", "false_sure", "false_copies", "recall_sure", "recall_copies"),
]


class Grade(IntEnum):
    """How sure a pair of pictures is one of copies."""

    NEAR = 0  # no further apart than altered copies are
    COPY = 1  # enough for a duplicate within a class
    SURE = 2  # beyond doubt: enough for a find across labels or splits


class Tail(NamedTuple):
    """How many look-alikes differ by less than d: total * (d / upper) ** exponent."""

    total: float
    upper: float
    exponent: float

    def below(self, difference: float) -> float:
        """The expected number of pairs that are no copies."""
        return self.total * (difference / self.upper) ** self.exponent

    def limit(self, expected: float, reach: float) -> float:
        """The difference, at most `reach`, below which so many are expected."""
        return min(self.upper * (expected / self.total) ** (1 / self.exponent), reach)


def reach_of(differences: np.ndarray) -> float:
    """By how much altered copies differ at the most, with some room: they are a small sample."""
    return float(np.clip(ROOM * np.quantile(differences, REACH), REACH_MIN, REACH_MAX))


def fit_tail(differences: np.ndarray, reach: float, pooled: float | None = None) -> Tail:
    """The lower tail of look-alikes, from the nearest pairs that differ by more than `reach`.

    A power law, fitted by the greatest likelihood (Hill, A Simple General Approach to Inference
    About the Tail of a Distribution, 1975), its exponent less a standard error: rather too many
    look-alikes are expected than too few. True copies lie below the window, so that they do not
    count, however many.

    Args:
        differences: (P,) of all pairs that were compared.
        reach: what altered copies differ by at the most.
        pooled: the exponent where this group has too few pairs.
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
    """Of the power law between the bounds, one standard error below the likeliest."""
    mean_log, whole = float(np.log(upper / window).mean()), float(np.log(upper / lower))

    def excess(exponent: float) -> float:
        return 1 / exponent - whole / np.expm1(exponent * whole) - mean_log

    low, high = LEAST, 100.0
    if excess(low) <= 0:  # as many low as high, or more: as slow a tail as there is
        return low
    found = float(brentq(excess, low, high)) if excess(high) < 0 else high
    information = found**-2 - (whole / (2 * np.sinh(found * whole / 2))) ** 2
    return max(found - (len(window) * information) ** -0.5, low)


def limits(
    pairs: pd.DataFrame, images: pd.Series, altered: Mapping[str, np.ndarray], config: NearConfig
) -> pd.DataFrame:
    """The limits of each domain, for pairs with and without a label in common.

    Args:
        pairs: columns domain (`CROSS` for two), labels (ALIKE or UNLIKE), difference.
        images: by domain, how many it has.
        altered: by domain, how much altered copies of its images differ from them.
        config: the shares of a domain's images that may be found falsely.

    Returns:
        COLUMNS, a row a domain and kind of labels. Up to `sure_limit` a pair is a copy beyond
        doubt, up to `copy_limit` a copy, up to `reach` near. `sure`, `copies` and `near` count the
        pairs up to each, `false_` those expected to be none, `recall_` the share of altered copies
        that they would find.
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
    """The pairs that are near at least, with columns grade (of `Grade`), sure_limit, copy_limit."""
    group = limits.set_index(["domain", "labels"])
    own = group.reindex(pd.MultiIndex.from_frame(pairs[["domain", "labels"]]))
    bounds = own[["reach", "copy_limit", "sure_limit"]].to_numpy()
    grade = (pairs["difference"].to_numpy()[:, None] <= bounds).sum(axis=1) - 1
    ends = {name: own[name].to_numpy() for name in ("sure_limit", "copy_limit")}
    pairs = pairs.assign(grade=grade, **ends)
    return pairs[grade >= Grade.NEAR].reset_index(drop=True)
