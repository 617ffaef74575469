"""Correct the order of a search's first candidates, exact or approximate, in validation and in search alike.

Every method sees the index as if the query's own image were not in it. `guie.base.arguments.METHODS` lists
them by name, with their sources. Past the end, rows are -1 and scores -inf. Shapes: N index rows,
D dimensions, B queries, C candidates of a query, K neighbours or ranks, E vectors, M images of the bank or
matches, P patches of an image, row by row, F features of a patch.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock

import cv2
import numpy as np

from guie.base.arguments import LOCAL
from guie.evaluation.knn import ExactIndex, Find, exact

CANDIDATES, LEAST = 4, 100  # candidates whose order is corrected: times K, and at least
ENTRIES = 2**20  # candidates times neighbours that are in memory at once
LISTED = 12  # neighbours of each image: more than are used, as a query's own image is left out
SEARCHED = 4096  # rows whose neighbours are searched at once
MUTUAL = 5  # neighbours that may enter a mean
ALPHA = 3.0  # exponent of the weights of a mean
NEIGHBOURS = 10  # K of CSLS, as in its paper
BANK = 2000  # index images that stand for queries in the inverted softmax
BETA = 10.0  # inverse temperature of the inverted softmax
DEPTH = 50  # candidates that are compared patch by patch
WEIGHT = 1.0  # of the share of consistent patches, added to a cosine
TOLERANCE = 1.0  # largest error of a consistent match, in patches
FEWEST = 3  # matches: two fit any similarity transform
DRAWS = 200  # of RANSAC

# Return the patches of rows of the index: unit vectors (C, P, F).
PatchesOf = Callable[[np.ndarray], np.ndarray]


class Reranker:
    """A search whose candidates are put into another order.

    Args:
        vectors_ND: unit vectors of the index; may be memory-mapped.
        find: the search that proposes candidates, exact or approximate, in `rows_R` or all rows.
        methods: the result of `guie.base.arguments.methods_of`.
        patches_of: the patches of index images, for the method `local`.
    """

    def __init__(
        self,
        vectors_ND: np.ndarray,
        find: Find,
        methods: Sequence[str],
        rows_R: np.ndarray | None = None,
        patches_of: PatchesOf | None = None,
    ):
        self.vectors_ND, self._find, self.methods = vectors_ND, find, methods
        self._rows_R = np.arange(len(vectors_ND)) if rows_R is None else rows_R
        self._patches_of = patches_of
        self.lists = NeighbourLists(vectors_ND, find)

    def search(
        self,
        queries_BD: np.ndarray,
        k: int,
        own_B: np.ndarray,
        patches_BPF: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the first k rows of each query in the corrected order, and their corrected scores.

        A score is a cosine only without corrections of hubs and `local`. Ties go to the lower row.

        Args:
            queries_BD, k, own_B: see `Find`.
            patches_BPF: the queries' patches; None leaves `local` out, as for a text.
        """
        depth = min(max(CANDIDATES * k, LEAST), len(self._rows_R))
        size = max(1, ENTRIES // (LISTED * depth))
        found = []
        for at in range(0, max(len(queries_BD), 1), size):
            block = slice(at, at + size)
            row_BC, score_BC = self._candidates(queries_BD[block], depth, own_B[block])
            score_BC = np.where(row_BC >= 0, score_BC, -np.inf)
            order_BC = np.lexsort((row_BC, -score_BC), axis=-1)
            row_BC, score_BC = (np.take_along_axis(x, order_BC, 1) for x in (row_BC, score_BC))
            if LOCAL in self.methods and patches_BPF is not None and self._patches_of:
                row_BC, score_BC = reordered(row_BC, score_BC, patches_BPF[block], self._patches_of)
            found.append((row_BC[:, :k], score_BC[:, :k]))
        rows_BK, score_BK = (np.concatenate(blocks) for blocks in zip(*found, strict=True))
        return rows_BK, score_BK

    def _candidates(
        self, queries_BD: np.ndarray, depth: int, own_B: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the candidates in the order of `find`, and their corrected scores."""
        if "expand" in self.methods:
            queries_BD = expanded_queries(queries_BD, own_B, self.lists, self._find)
        rows_BC, score_BC = self._find(queries_BD, depth, own_B)
        if "augment" in self.methods:
            score_BC = augmented_scores(queries_BD, rows_BC, own_B, self.lists)
        if "csls" in self.methods:
            score_BC = csls(score_BC, rows_BC, own_B, self.lists)
        if "softmax" in self.methods:
            bank_M = np.sort(np.random.default_rng(0).permutation(self._rows_R)[:BANK])
            score_BC = inverted_softmax(score_BC, rows_BC, own_B, self.vectors_ND, bank_M)
        return rows_BC, score_BC


@dataclass(frozen=True)
class Rerank:
    """How an evaluation re-ranks: in place of `exact`, it returns a search whose queries are rows T.

    Attributes: `methods`, see `guie.base.arguments.METHODS`; `patches_TPF`, for the method `local`.
    """

    methods: tuple[str, ...]
    patches_TPF: np.ndarray | None = None

    def __call__(self, unit_TD: np.ndarray, index_I: np.ndarray) -> Find:
        if not self.methods or not len(index_I):
            return exact(unit_TD, index_I)
        unit_ID, patches_TPF = unit_TD[index_I], self.patches_TPF
        patches_of = None if patches_TPF is None else lambda places: patches_TPF[index_I[places]]
        find = ExactIndex(unit_ID).search
        reranker = Reranker(unit_ID, find, self.methods, patches_of=patches_of)

        def search(query_B: np.ndarray, k: int, own_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            patches_BPF = None if patches_TPF is None else patches_TPF[query_B]
            return reranker.search(unit_TD[query_B], k, own_B, patches_BPF)

        return search


class NeighbourLists:
    """The LISTED nearest index images of index images, searched when they are first needed."""

    def __init__(self, vectors_ND: np.ndarray, find: Find):
        self.vectors_ND, self._find = vectors_ND, find
        # Pages that are never written take no memory, so a large index costs little.
        self.row_NK = np.zeros((len(vectors_ND), LISTED), np.int64)
        self.score_NK = np.zeros((len(vectors_ND), LISTED), np.float32)
        self._known_N = np.zeros(len(vectors_ND), bool)
        self._lock = Lock()  # the search page has several threads

    def of(self, rows_R: np.ndarray) -> None:
        """Search the neighbours of these rows, unless they are known; row -1 is skipped."""
        wanted = np.unique(rows_R[rows_R >= 0])
        with self._lock:
            missing = wanted[~self._known_N[wanted]]
            for at in range(0, len(missing), SEARCHED):
                own = missing[at : at + SEARCHED]
                row_BK, score_BK = self._find(np.asarray(self.vectors_ND[own]), LISTED, own)
                found = row_BK.shape[1]
                self.row_NK[own], self.score_NK[own] = -1, -np.inf
                self.row_NK[own, :found], self.score_NK[own, :found] = row_BK, score_BK
                self._known_N[own] = True

    def without(
        self, rows_BC: np.ndarray, own_B: np.ndarray, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the k < LISTED nearest neighbours of each candidate, other than the query's own image.

        Returns: rows [B, C, k], -1 past the end, and similarities, -inf past the end.
        """
        self.of(rows_BC)
        row_BCK, score_BCK = self.row_NK[rows_BC], self.score_NK[rows_BC]
        left_BCK = (row_BCK == own_B[:, None, None]) | (rows_BC < 0)[:, :, None]
        order_BCK = np.argsort(left_BCK, axis=2, kind="stable")[:, :, :k]
        row_BCK = np.take_along_axis(np.where(left_BCK, -1, row_BCK), order_BCK, 2)
        score_BCK = np.take_along_axis(np.where(left_BCK, -np.inf, score_BCK), order_BCK, 2)
        return row_BCK, score_BCK


# ---------------------------------------------------------------- means with mutual neighbours


def weighted_mean(
    vector_ED: np.ndarray, neighbour_EKD: np.ndarray, score_EK: np.ndarray
) -> np.ndarray:
    """Return unit vectors of x + sum over k of max(x . x_k, 0)^ALPHA x_k: float32 [E, D].

    A similarity of -inf leaves a neighbour out: those that are not mutual, as in Zhong et al., CVPR 2017.
    """
    weight_EK = np.where(np.isfinite(score_EK), np.maximum(score_EK, 0), 0) ** ALPHA
    sum_ED = vector_ED + np.einsum("ek,ekd->ed", weight_EK.astype(np.float32), neighbour_EKD)
    length_E1 = np.linalg.norm(sum_ED, axis=1, keepdims=True)
    return (sum_ED / np.where(length_E1 > 0, length_E1, 1)).astype(np.float32)


def expanded_queries(
    queries_BD: np.ndarray, own_B: np.ndarray, lists: NeighbourLists, find: Find
) -> np.ndarray:
    """Return each query's mean with those of its MUTUAL nearest images that have it among theirs."""
    row_BK, score_BK = find(queries_BD, MUTUAL, own_B)
    _, theirs_BKK = lists.without(row_BK, own_B, MUTUAL)
    # A query is among an image's K nearest if fewer than K other images are nearer
    is_mutual_BK = score_BK >= theirs_BKK[:, :, -1]
    score_BK = np.where(is_mutual_BK & (row_BK >= 0), score_BK, -np.inf)
    return weighted_mean(queries_BD, lists.vectors_ND[row_BK], score_BK)


def augmented_scores(
    queries_BD: np.ndarray, rows_BC: np.ndarray, own_B: np.ndarray, lists: NeighbourLists
) -> np.ndarray:
    """Return similarities of queries and their candidates' means with mutual neighbours: [B, C].

    The query's own image enters no mean: otherwise a query would be part of the images that it is to find.
    """
    row_BCK, score_BCK = lists.without(rows_BC, own_B, MUTUAL)
    lists.of(row_BCK.ravel())
    mutual_BCK = np.zeros(row_BCK.shape, bool)
    for place in range(row_BCK.shape[2]):
        theirs_BCK, _ = lists.without(row_BCK[:, :, place], own_B, MUTUAL)
        mutual_BCK[:, :, place] = (theirs_BCK == rows_BC[:, :, None]).any(axis=2)
    score_BCK = np.where(mutual_BCK & (row_BCK >= 0), score_BCK, -np.inf)
    vectors_ND, found = lists.vectors_ND, np.empty(rows_BC.shape, np.float32)
    for b, query_D in enumerate(queries_BD):
        near_CKD = vectors_ND[row_BCK[b]]
        found[b] = weighted_mean(vectors_ND[rows_BC[b]], near_CKD, score_BCK[b]) @ query_D
    return found


# ------------------------------------------ hubs: neighbours of too many queries, with lower scores
# Both need a bank of queries. Index images take their place, so that no file of queries has to be kept.


def csls(
    score_BC: np.ndarray, rows_BC: np.ndarray, own_B: np.ndarray, lists: NeighbourLists
) -> np.ndarray:
    """Return 2 cos(x, y) - r(x) - r(y), by Conneau et al.: float32 [B, C].

    r is the mean cosine to the NEIGHBOURS nearest index images, without the query's own image; 0 for none.
    """

    def mean(score_EK: np.ndarray) -> np.ndarray:
        is_there_EK = np.isfinite(score_EK)
        sum_E = np.where(is_there_EK, score_EK, 0).sum(axis=-1)
        return np.asarray(sum_E / np.maximum(is_there_EK.sum(axis=-1), 1))

    _, theirs_BCK = lists.without(rows_BC, own_B, NEIGHBOURS)
    ours_B = mean(score_BC[:, :NEIGHBOURS])
    return (2 * score_BC - ours_B[:, None] - mean(theirs_BCK)).astype(np.float32)


def inverted_softmax(
    score_BC: np.ndarray,
    rows_BC: np.ndarray,
    own_B: np.ndarray,
    vectors_ND: np.ndarray,
    bank_M: np.ndarray,
) -> np.ndarray:
    """Return beta s(x, y) - log of sum over n of exp(beta s(x_n, y)), by Smith et al.: float32 [B, C].

    It is the score's logarithm without the factor that a query's candidates share. The sum is over the bank,
    index images in place of queries, without the candidate and the query's own image.
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


# ---------------------------------------------------------------- patches that match one another


def consistent_shares(query_PF: np.ndarray, image_CPF: np.ndarray) -> np.ndarray:
    """Return the share of the query's patches with a consistent match in each image: float32 [C].

    A match is a pair of patches, each the other's nearest in its image. It is consistent if it fits the
    similarity transform (shift, rotation, scale) that RANSAC finds, as in Noh et al.
    """
    side = math.isqrt(len(query_PF))
    place_P2 = np.stack(np.divmod(np.arange(len(query_PF)), side), axis=1).astype(np.float32)
    cosine_CPP = np.einsum("qf,cif->cqi", query_PF, image_CPF, optimize=True)
    nearest_CP, back_CP = cosine_CPP.argmax(axis=2), cosine_CPP.argmax(axis=1)
    shares = []
    for nearest_P, back_P in zip(nearest_CP, back_CP, strict=True):
        matched_M = np.flatnonzero(back_P[nearest_P] == np.arange(len(query_PF)))
        fits_M1 = None
        if len(matched_M) >= FEWEST:  # OpenCV's draws are the same in each call
            _, fits_M1 = cv2.estimateAffinePartial2D(
                place_P2[matched_M],
                place_P2[nearest_P[matched_M]],
                ransacReprojThreshold=TOLERANCE,
                maxIters=DRAWS,
            )
        shares.append(0 if fits_M1 is None else int(fits_M1.sum()) / len(query_PF))
    return np.array(shares, np.float32)


def reordered(
    rows_BC: np.ndarray, score_BC: np.ndarray, patches_BPF: np.ndarray, patches_of: PatchesOf
) -> tuple[np.ndarray, np.ndarray]:
    """Order the first DEPTH candidates by score + WEIGHT x share; the others follow as before."""
    rows_BC, score_BC = rows_BC.copy(), score_BC.copy()
    for rows_C, score_C, query_PF in zip(rows_BC, score_BC, patches_BPF, strict=True):
        first_C = rows_C[:DEPTH][rows_C[:DEPTH] >= 0].copy()
        if len(first_C):
            shares_C = consistent_shares(query_PF, patches_of(first_C))
            better_C = score_C[: len(first_C)] + WEIGHT * shares_C
            order_C = np.lexsort((first_C, -better_C))
            rows_C[: len(first_C)], score_C[: len(first_C)] = first_C[order_C], better_C[order_C]
    return rows_BC, score_BC
