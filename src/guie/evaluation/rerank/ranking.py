"""Rank the index of a search by one model or by specialists, re-ranked or not.

Shapes: Q queries, B of one block, I index images, K ranks, T rows of the table, D dimensions, P patches,
F features of a patch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from guie.evaluation.embeddings import Embeddings
from guie.evaluation.rerank.reranker import Reranker
from guie.evaluation.search import Images, Ranking, Search


@dataclass(frozen=True)
class Rerank:
    """How an evaluation re-ranks.

    Attributes: `methods`, see `guie.evaluation.rerank.catalogue`; `patches_TPF`, those of all rows T, for
    the method `local`.
    """

    methods: tuple[str, ...] = ()
    patches_TPF: np.ndarray | None = None


NO_RERANK = Rerank()


@dataclass(frozen=True)
class Reranked(Ranking):
    """A ranking whose order is corrected; corrected scores take the place of similarities."""

    rerank: Rerank = NO_RERANK

    @cached_property
    def _reranker(self) -> Reranker:
        index_I, patches_TPF = self.search.index_I, self.rerank.patches_TPF

        def patches_of(places: np.ndarray) -> np.ndarray:
            assert patches_TPF is not None
            return patches_TPF[index_I[places]]

        methods, find = self.rerank.methods, self.index.search
        return Reranker(self.unit_TD[index_I], find, methods, patches_of=patches_of)

    def find(self, query_B: np.ndarray, k: int, own_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if not self.rerank.methods or not len(self.search.index_I):
            return super().find(query_B, k, own_B)
        patches_TPF = self.rerank.patches_TPF
        patches_BPF = None if patches_TPF is None else patches_TPF[query_B]
        return self._reranker.search(self.unit_TD[query_B], k, own_B, patches_BPF)


def rankings(
    images: Images, embedded: Embeddings, search: Search, rerank: Rerank = NO_RERANK
) -> Iterator[Ranking]:
    """Yield the ranking of a search; with specialists, one for the queries of each domain."""
    if isinstance(embedded, np.ndarray):
        yield Reranked(images, embedded, search, rerank)
        return
    domain_Q = images.domain_T[search.query_Q]
    for name, unit_TD in embedded.items():
        query_Q = search.query_Q[domain_Q == name]
        own = replace(search, name=f"{search.name} by {name}", query_Q=query_Q)
        yield Reranked(images, unit_TD, own, rerank)
