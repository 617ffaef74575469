"""Search, then correct the order of the first candidates.

Shapes: N index rows, D dimensions, B queries, C candidates of a query, K ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

from guie.evaluation.rerank.catalogue import LOCAL
from guie.evaluation.rerank.expansion import augmented_scores, expanded_queries
from guie.evaluation.rerank.hubness import BANK, csls, inverted_softmax
from guie.evaluation.rerank.local import PatchesOf, reordered
from guie.evaluation.rerank.neighbours import LISTED, Find, NeighbourLists

CANDIDATES = 4  # times K, whose order is corrected
FEWEST = 100
ENTRIES = 2**20  # candidates times neighbours that are in memory at once


class Reranker:
    """A search whose candidates are put into another order.

    Every method sees the index as if the query's own image were not in it.

    Args:
        vectors_ND: unit vectors of the index; may be memory-mapped.
        find: the search that proposes candidates, exact or approximate, in all rows or some.
        methods: the result of `guie.evaluation.rerank.catalogue.methods_of`.
        rows_R: the rows that `find` searches; None for all.
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

    @cached_property
    def _bank_M(self) -> np.ndarray:
        return np.sort(np.random.default_rng(0).permutation(self._rows_R)[:BANK])

    def search(
        self,
        queries_BD: np.ndarray,
        k: int,
        own_B: np.ndarray,
        patches_BPF: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the first k rows of each query in the corrected order, and their corrected scores.

        Args:
            queries_BD: unit vectors.
            own_B: rows of the queries' own images, which are not found; -1 for none.
            patches_BPF: the queries' patches; None leaves `local` out, as for a text.

        Returns: rows [B, k], -1 past the end, and scores, -inf past the end. A score is a cosine only
        without corrections of hubs and `local`. Ties go to the lower row.
        """
        found = [
            self._reranked(
                queries_BD[block],
                k,
                own_B[block],
                None if patches_BPF is None else patches_BPF[block],
            )
            for block in self._blocks(len(queries_BD), k)
        ]
        rows_BK, score_BK = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return rows_BK, score_BK

    def _blocks(self, queries: int, k: int) -> Iterator[slice]:
        size = max(1, ENTRIES // (LISTED * self._depth(k)))
        yield from (slice(at, at + size) for at in range(0, max(queries, 1), size))

    def _depth(self, k: int) -> int:
        return min(max(CANDIDATES * k, FEWEST), len(self._rows_R))

    def _reranked(
        self, queries_BD: np.ndarray, k: int, own_B: np.ndarray, patches_BPF: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        if "expand" in self.methods:
            queries_BD = expanded_queries(queries_BD, own_B, self.lists, self._find)
        rows_BC, score_BC = self._find(queries_BD, self._depth(k), own_B)
        if "augment" in self.methods:
            score_BC = augmented_scores(queries_BD, rows_BC, own_B, self.lists)
        if "csls" in self.methods:
            score_BC = csls(score_BC, rows_BC, own_B, self.lists)
        if "softmax" in self.methods:
            score_BC = inverted_softmax(score_BC, rows_BC, own_B, self.vectors_ND, self._bank_M)
        score_BC = np.where(rows_BC >= 0, score_BC, -np.inf)
        order_BC = np.lexsort((rows_BC, -score_BC), axis=-1)
        rows_BC, score_BC = (np.take_along_axis(x, order_BC, 1) for x in (rows_BC, score_BC))
        if LOCAL in self.methods and patches_BPF is not None and self._patches_of:
            rows_BC, score_BC = reordered(rows_BC, score_BC, patches_BPF, self._patches_of)
        return rows_BC[:, :k], score_BC[:, :k]
