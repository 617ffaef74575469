"""Limits on the difference of copies: measured in each domain, on altered copies and look-alikes."""

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import brentq

from guie.config.data import NearConfig

REACH, ROOM = 0.99, 1.5  # quantile of altered copies' differences, and the factor on it
REACH_MIN, REACH_MAX = 0.5, 1.0
APART = 2.0  # pairs that differ by more are not near; all near pairs are compared fully
SPAN = 1.5  # the tail is fitted up to this multiple of `reach`,
ENOUGH = 100  # or up to this many pairs if that is farther
FEWEST = 10  # pairs for a fit in one domain; with fewer, the fit of all domains is used
EXPONENT = 2.0  # if all domains together have too few pairs
# Exponents of a tail. Filters by hash and features hide look-alikes that differ more: a fit may be too
# flat, and its limits zero.
LEAST, MOST = 1.5, 100.0

CROSS = "across domains"
ALIKE, UNLIKE = "in common", "none in common"  # labels of two pictures
# Columns of `limits`, each row for the pairs of a domain with one kind of labels.
# images: of the domain; compared: pairs; exponent: of the `Tail`.
# reach: the largest difference of altered copies, with a margin as the sample is small.
# sure_limit, copy_limit: up to this difference, a pair is a copy beyond doubt, or a copy; sure, copies, near:
# pairs up to them, and up to reach. false_*: how many of these are expected to be no copies.
# recall_*: share of altered copies up to the limit.
LIMITS = [
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


def fit_tail(differences: np.ndarray, reach: float, pooled: float | None = None) -> Tail:
    """Fit the lower tail of look-alikes to the nearest pairs that differ by more than `reach`.

    The tail is a power law, fitted by maximum likelihood (Hill, A Simple General Approach to
    Inference About the Tail of a Distribution, 1975). One standard error is subtracted from the
    exponent, so the fit overestimates look-alikes rather than underestimates them. True copies
    are below the window, so their number does not influence the fit. With too few pairs, the exponent is
    `pooled`.
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

    # Small differences are as frequent as large ones, or more: the flattest tail
    if excess(LEAST) <= 0:
        return LEAST
    found = float(brentq(excess, LEAST, MOST)) if excess(MOST) < 0 else MOST
    information = found**-2 - (whole / (2 * np.sinh(found * whole / 2))) ** 2
    return max(found - (len(window) * information) ** -0.5, LEAST)


def limits(
    pairs: pd.DataFrame, images: pd.Series, altered: Mapping[str, np.ndarray], config: NearConfig
) -> pd.DataFrame:
    """Compute `LIMITS` of each domain, for pairs with and without a common label.

    Args:
        pairs: columns domain (`CROSS` for two), labels (ALIKE or UNLIKE), difference.
        images: number of images by domain.
        altered: by domain, the differences between its images and altered copies of them.
    """
    altered = {**altered, CROSS: np.concatenate([*altered.values(), np.zeros(0)])}
    images = pd.concat([images, pd.Series({CROSS: images.sum()})])
    reaches = {
        domain: float(np.clip(ROOM * np.quantile(found, REACH), REACH_MIN, REACH_MAX))
        for domain, found in altered.items()
        if len(found)
    }
    reaches[CROSS] = min(reaches.values(), default=REACH_MIN)
    pooled = fit_tail(pairs["difference"].to_numpy(), REACH_MAX).exponent
    rows = []
    for (domain, labels), found in pairs.groupby(["domain", "labels"]):
        differences, own, reach = found["difference"].to_numpy(), images[domain], reaches[domain]
        tail = fit_tail(differences, reach, pooled)
        sure = tail.limit(config.false_sure * own, reach)
        copy = tail.limit(config.false_copies * own, reach)
        row = {"domain": domain, "labels": labels, "images": own, "compared": len(found)}
        row |= {"reach": reach, "exponent": tail.exponent, "sure_limit": sure, "copy_limit": copy}
        for name, limit in (("sure", sure), ("copies", copy), ("near", reach)):
            row[name] = int((differences <= limit).sum())
            row[f"false_{name}"] = tail.below(limit)
            row[f"recall_{name}"] = float((altered[domain] <= limit).mean())
        rows.append(row)
    return pd.DataFrame(rows, columns=LIMITS)


def graded(pairs: pd.DataFrame, limits: pd.DataFrame) -> pd.DataFrame:
    """Return the pairs of at least grade NEAR, with columns grade, sure_limit and copy_limit."""
    group = limits.set_index(["domain", "labels"])
    own = group.reindex(pd.MultiIndex.from_frame(pairs[["domain", "labels"]]))
    bounds = own[["reach", "copy_limit", "sure_limit"]].to_numpy()
    grade = (pairs["difference"].to_numpy()[:, None] <= bounds).sum(axis=1) - 1
    pairs = pairs.assign(grade=grade, copy_limit=bounds[:, 1], sure_limit=bounds[:, 2])
    return pairs[grade >= Grade.NEAR].reset_index(drop=True)
