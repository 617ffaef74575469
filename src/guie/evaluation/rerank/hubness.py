"""Lower the scores of hubs: index images that are neighbours of too many queries.

Both corrections need a bank of queries. Images of the index take their place, so that no file of
queries has to be kept. `guie.evaluation.diagnosis.hubness` measures hubs.

Shapes: B queries, C candidates of a query, K neighbours, M images of the bank, D dimensions.
"""

from __future__ import annotations

import numpy as np

from guie.evaluation.rerank.neighbours import NeighbourLists

NEIGHBOURS = 10  # K of CSLS, as in its paper
BANK = 2000  # index images that stand for queries in the inverted softmax
BETA = 10.0  # inverse temperature of the inverted softmax


def csls(
    score_BC: np.ndarray, rows_BC: np.ndarray, own_B: np.ndarray, lists: NeighbourLists
) -> np.ndarray:
    """Return 2 cos(x, y) - r(x) - r(y): float32 [B, C].

    Conneau et al., Word Translation Without Parallel Data, ICLR 2018 (CSLS). r is the mean cosine
    to the NEIGHBOURS nearest index images, without the query's own image.

    Args:
        score_BC: cosines of queries and candidates, best first; -inf where there is none.
    """
    _, theirs_BCK = lists.without(rows_BC, own_B, NEIGHBOURS)
    ours_B = _mean(score_BC[:, :NEIGHBOURS])
    return (2 * score_BC - ours_B[:, None] - _mean(theirs_BCK)).astype(np.float32)


def inverted_softmax(
    score_BC: np.ndarray,
    rows_BC: np.ndarray,
    own_B: np.ndarray,
    vectors_ND: np.ndarray,
    bank_M: np.ndarray,
) -> np.ndarray:
    """Return beta s(x, y) - log of sum over n of exp(beta s(x_n, y)): float32 [B, C].

    The logarithm of the score of Smith et al., Offline Bilingual Word Vectors, Orthogonal
    Transformations and the Inverted Softmax, ICLR 2017, without the factor that a query's candidates
    share. The sum is over the bank, without the candidate and the query's own image.

    Args:
        score_BC: cosines of queries and candidates; -inf where there is none.
        bank_M: rows of the index that stand for queries.
    """
    distinct_U, place_BC = np.unique(rows_BC, return_inverse=True)
    bank_MD = np.asarray(vectors_ND[bank_M])
    exp_UM = np.exp(BETA * (np.asarray(vectors_ND[distinct_U]) @ bank_MD.T - 1), dtype=np.float64)
    exp_UM[distinct_U[:, None] == bank_M] = 0
    sum_BC = exp_UM.sum(axis=1)[place_BC.reshape(rows_BC.shape)]
    # Less what the query's own image added
    own_BD = np.asarray(vectors_ND[own_B])
    cosine_BC = np.einsum("bd,bcd->bc", own_BD, np.asarray(vectors_ND[rows_BC]))
    added_BC = np.exp(BETA * (cosine_BC - 1), dtype=np.float64)
    is_banked_B1, is_own_BC = np.isin(own_B, bank_M)[:, None], rows_BC == own_B[:, None]
    sum_BC = sum_BC - np.where(is_banked_B1 & ~is_own_BC, added_BC, 0)
    with np.errstate(divide="ignore"):
        log_BC = np.log(np.maximum(sum_BC, np.finfo(np.float64).tiny))
    return (BETA * (score_BC - 1) - log_BC).astype(np.float32)


def _mean(score_EK: np.ndarray) -> np.ndarray:
    """Return the mean over the last axis without -inf; 0 if nothing is left."""
    is_there_EK = np.isfinite(score_EK)
    sum_E = np.where(is_there_EK, score_EK, 0).sum(axis=-1)
    return np.asarray(sum_E / np.maximum(is_there_EK.sum(axis=-1), 1))
