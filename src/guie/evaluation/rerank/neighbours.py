"""Find the nearest index images of index images, as if a query's own image were not in the index.

Shapes: N index rows, D dimensions, R requested rows, K neighbours, B queries, C candidates of a query.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

import numpy as np

LISTED = 12  # neighbours of each image: more than are used, as a query's own image is left out
SEARCHED = 4096  # rows searched at once

# Return the k most similar rows of each query [B, k], best first and -1 past the end, and their
# similarities. The rows of the queries' own images [B], -1 for none, are left out. `ExactIndex` and the
# engines of an index have such a search.
Find = Callable[[np.ndarray, int, np.ndarray], tuple[np.ndarray, np.ndarray]]


class NeighbourLists:
    """The LISTED nearest index images of index images, searched when they are first needed.

    Pages of the two tables that are never written take no memory, so a large index costs little.
    """

    def __init__(self, vectors_ND: np.ndarray, find: Find):
        self.vectors_ND, self._find = vectors_ND, find
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
                queries_BD = np.asarray(self.vectors_ND[own])
                row_BK, score_BK = self._find(queries_BD, LISTED, own)
                found = row_BK.shape[1]
                self.row_NK[own], self.score_NK[own] = -1, -np.inf
                self.row_NK[own, :found], self.score_NK[own, :found] = row_BK, score_BK
                self._known_N[own] = True

    def without(
        self, rows_BC: np.ndarray, own_B: np.ndarray, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the k nearest neighbours of each candidate, other than the query's own image.

        Args:
            rows_BC: candidates of each query; -1 where there is none.
            own_B: rows of the queries' own images; -1 for none.
            k: less than LISTED, or a list may be shorter.

        Returns: rows [B, C, k], -1 past the end, and similarities, -inf past the end.
        """
        self.of(rows_BC)
        row_BCK, score_BCK = self.row_NK[rows_BC], self.score_NK[rows_BC]
        left_BCK = (row_BCK == own_B[:, None, None]) | (rows_BC < 0)[:, :, None]
        row_BCK = np.where(left_BCK, -1, row_BCK)
        score_BCK = np.where(left_BCK, -np.inf, score_BCK)
        order_BCK = np.argsort(left_BCK, axis=2, kind="stable")[:, :, :k]
        return (
            np.take_along_axis(row_BCK, order_BCK, 2),
            np.take_along_axis(score_BCK, order_BCK, 2),
        )
