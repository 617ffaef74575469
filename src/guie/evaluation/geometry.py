"""Measure the geometry of an embedding space: pair distances, variances, nearest images.

These are the plots of Feng et al. (unifying specialists), figures 2c and 5, and Xuan et al. (DREML),
figures 4 and 5. Shape legend: N images, D dimensions, P pairs.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from guie.evaluation.knn import ExactIndex

PAIRS = 20_000  # of each kind: a fraction of them has a standard error of about .004


@dataclass(frozen=True)
class Pairs:
    """Pairs of images: rows of the first, of the second, and whether they share a class; each (P,)."""

    one: np.ndarray
    other: np.ndarray
    same: np.ndarray


def draw_pairs(labels: pd.Series, count: int = PAIRS, seed: int = 0) -> Pairs:
    """Draw `count` pairs within a class and `count` between classes, uniformly with replacement.

    A label `a|b` is its own class. Raises ValueError if no class has two images, or there is only one class.
    """
    codes_N, _ = pd.factorize(labels)
    sizes = np.bincount(codes_N)
    if sizes.max(initial=0) < 2 or len(sizes) < 2:
        raise ValueError("pairs need at least two classes, and a class with at least two images")
    rng = np.random.default_rng(seed)
    # Each class by its number of pairs, then two of its images
    pairs_of = sizes * (sizes - 1) / 2
    chosen = rng.choice(len(sizes), count, p=pairs_of / pairs_of.sum())
    size_P, start_P = sizes[chosen], (np.cumsum(sizes) - sizes)[chosen]
    one, other = rng.integers(size_P), rng.integers(size_P - 1)
    other += other >= one
    same = np.argsort(codes_N, kind="stable")[start_P + np.stack([one, other])]
    found: list[np.ndarray] = []
    while sum(kept.shape[1] for kept in found) < count:
        drawn = rng.integers(len(codes_N), size=(2, 2 * count))
        found.append(drawn[:, codes_N[drawn[0]] != codes_N[drawn[1]]])
    one, other = np.concatenate([same, np.concatenate(found, axis=1)[:, :count]], axis=1)
    return Pairs(one, other, np.repeat([True, False], count))


def cosines(unit_ND: np.ndarray, pairs: Pairs) -> np.ndarray:
    """Return the cosine of each pair, (P,)."""
    return np.einsum("pd,pd->p", unit_ND[pairs.one], unit_ND[pairs.other])


def distance_ratios(unit_ND: np.ndarray, over_ND: np.ndarray, pairs: Pairs) -> np.ndarray:
    """Return each pair's distance in one space over that in another, (P,); NaN if the other is 0.

    Below 1, the first space has shrunk relative to the second (Feng et al., figure 2c).
    """
    apart = [emb_ND[pairs.one] - emb_ND[pairs.other] for emb_ND in (unit_ND, over_ND)]
    own_P, over_P = (np.linalg.norm(apart_PD, axis=1) for apart_PD in apart)
    return np.divide(own_P, over_P, out=np.full_like(own_P, np.nan), where=over_P > 0)


def spectrum(unit_ND: np.ndarray) -> np.ndarray:
    """Return variances along principal axes, largest first, (D,); unit vectors sum to at most 1."""
    return np.linalg.eigvalsh(np.cov(unit_ND.astype(np.float64), rowvar=False))[::-1].clip(0)


def nearest(unit_ND: np.ndarray, index_ND: np.ndarray) -> np.ndarray:
    """Return the cosine of each image to the most similar index image, (N,).

    With unseen classes as queries and training images as index, it shows how much the two overlap
    (Xuan et al., figure 5).
    """
    _, score_N1 = ExactIndex(index_ND).search(unit_ND, 1)
    return score_N1[:, 0]
