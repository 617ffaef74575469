"""How embeddings fill their space: how far apart pairs lie, a domain's room, and in how many directions.

What the papers draw of a space: Feng et al. (unifying specialists) figures 2c and 5, Xuan et al. (DREML)
figures 4 and 5. Shape legend: N images, D dimensions, P pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from guie.evaluation.knn import ExactIndex

PAIRS = 20_000  # of each kind: a share of them is known to .004


@dataclass(frozen=True)
class Pairs:
    """Images two by two: the rows of one, of the other, and whether both are of one class; each (P,)."""

    one: np.ndarray
    other: np.ndarray
    same: np.ndarray


def draw_pairs(labels: pd.Series, count: int = PAIRS, seed: int = 0) -> Pairs:
    """`count` pairs of one class and `count` of two, each drawn uniformly and with replacement.

    Args:
        labels: one class an image; a text `a|b` is a class of its own.

    Raises ValueError where no class has two images, or there is only one class.
    """
    codes_N, _ = pd.factorize(labels)
    sizes = np.bincount(codes_N)
    if sizes.max(initial=0) < 2 or len(sizes) < 2:
        raise ValueError("pairs need two classes, and a class of two images")
    rng = np.random.default_rng(seed)
    same = _of_one_class(codes_N, sizes, count, rng)
    different = _of_two_classes(codes_N, count, rng)
    one, other = np.concatenate([same, different], axis=1)
    return Pairs(one, other, np.repeat([True, False], count))


def cosines(unit_ND: np.ndarray, pairs: Pairs) -> np.ndarray:
    """Cosine of each pair, (P,)."""
    return np.einsum("pd,pd->p", unit_ND[pairs.one], unit_ND[pairs.other])


def distances(unit_ND: np.ndarray, pairs: Pairs) -> np.ndarray:
    """Euclidean distance of each pair, (P,): 0 to 2."""
    return np.linalg.norm(unit_ND[pairs.one] - unit_ND[pairs.other], axis=1)


def distance_ratios(unit_ND: np.ndarray, over_ND: np.ndarray, pairs: Pairs) -> np.ndarray:
    """Each pair's distance in one space over that in another, (P,); NaN where the other has none.

    Below 1 the first space has shrunk against the second (Feng et al., figure 2c).
    """
    own_P, over_P = distances(unit_ND, pairs), distances(over_ND, pairs)
    return np.divide(own_P, over_P, out=np.full_like(own_P, np.nan), where=over_P > 0)


def room(unit_ND: np.ndarray, table: pd.DataFrame, count: int = PAIRS, seed: int = 0) -> pd.Series:
    """Of each domain, how far apart its classes lie, over the same of all images together.

    Mean distance of pairs of two classes. Below 1 a domain has less room than the whole; compare a
    specialist, to which its domain is the whole, with a model of all. NaN of a domain with one class.
    """
    whole = _apart(unit_ND, table["label"], count, seed)
    found = {}
    for domain, rows in table.reset_index(drop=True).groupby("domain"):
        enough = rows["label"].nunique() > 1
        own = _apart(unit_ND[rows.index], rows["label"], count, seed) if enough else np.nan
        found[domain] = own / whole
    return pd.Series(found)


def spectrum(unit_ND: np.ndarray) -> np.ndarray:
    """Variances along principal axes, largest first, (D,); of unit vectors they add to 1 at most."""
    return np.linalg.eigvalsh(np.cov(unit_ND.astype(np.float64), rowvar=False))[::-1].clip(0)


def directions(unit_ND: np.ndarray) -> float:
    """How many directions the variance is spread over: (sum of variances)² over the sum of squares.

    1 where all lie on a line, D where all directions are alike (the participation ratio).
    """
    variance_D = spectrum(unit_ND)
    return float(variance_D.sum() ** 2 / (variance_D**2).sum())


def nearest(unit_ND: np.ndarray, index_ND: np.ndarray) -> np.ndarray:
    """Cosine of each image to the most similar of the index, (N,).

    Of unseen classes and training images: how crowded together the unseen are with what was learnt
    (Xuan et al., figure 5).
    """
    _, score_N1 = ExactIndex(index_ND).search(unit_ND, 1)
    return score_N1[:, 0]


def _of_one_class(
    codes_N: np.ndarray, sizes: np.ndarray, count: int, rng: np.random.Generator
) -> np.ndarray:
    pairs_of = sizes * (sizes - 1) / 2
    chosen = rng.choice(len(sizes), count, p=pairs_of / pairs_of.sum())
    size_P, start_P = sizes[chosen], (np.cumsum(sizes) - sizes)[chosen]
    one = rng.integers(size_P)
    other = rng.integers(size_P - 1)
    other += other >= one
    by_class_N = np.argsort(codes_N, kind="stable")
    return by_class_N[start_P + np.stack([one, other])]


def _of_two_classes(codes_N: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    found: list[np.ndarray] = []
    while sum(part.shape[1] for part in found) < count:
        drawn = rng.integers(len(codes_N), size=(2, 2 * count))
        found.append(drawn[:, codes_N[drawn[0]] != codes_N[drawn[1]]])
    return np.concatenate(found, axis=1)[:, :count]


def _apart(unit_ND: np.ndarray, labels: pd.Series, count: int, seed: int) -> float:
    codes_N, _ = pd.factorize(labels)
    one, other = _of_two_classes(codes_N, count, np.random.default_rng(seed))
    return float(np.linalg.norm(unit_ND[one] - unit_ND[other], axis=1).mean())
