"""Search queries in an index and score each query, block by block.

Shapes: Q queries, B of one block, K neighbours, I index images, T rows of the table, D dimensions,
P patches, F features of a patch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd
from tqdm import tqdm

from guie.base.errors import UserError
from guie.evaluation import metrics
from guie.evaluation.files import Embeddings
from guie.evaluation.knn import ExactIndex, block_size
from guie.evaluation.rerank import Reranker
from guie.rows.filling import Compute, fill, own_blocks
from guie.rows.states import keys as row_keys
from guie.rows.store import Store

MOST_QUERIES = 4096  # in one block
SETS = 4096  # of labels that are compared with all others at once


@dataclass(frozen=True)
class ScoreStore:
    """Where a long search stores the scores of its queries."""

    rows: Store  # used by this search alone
    share: tuple[int, int] = (0, 1)  # n and m, if m processes share the work
    prefix: str = ""  # of the rows' keys

    def within(self, prefix: str) -> ScoreStore:
        """Return the same store for searches with that prefix."""
        return replace(self, prefix=f"{self.prefix}{prefix}/")


@dataclass(frozen=True)
class Images:
    """The rows T of one split as arrays; images that share a label are relevant to each other."""

    image_T: np.ndarray  # one number for each image, however many rows it has
    set_T: np.ndarray  # its row of `labels_SL`: images of the same labels share one
    labels_SL: np.ndarray  # of each set; -1 fills the shorter ones
    is_query_T: np.ndarray
    is_index_T: np.ndarray
    domain_T: np.ndarray

    @classmethod
    def of(cls, table: pd.DataFrame, member_T: np.ndarray | bool = True) -> Images:
        """Build from rows of a manifest, with queries and index among the members; label `a|b` is two."""
        set_T, texts = pd.factorize(table["label"])
        names_SL = pd.Series(texts, dtype=object).str.split("|", expand=True).to_numpy(object)
        return cls(
            image_T=pd.factorize(table["image_path"])[0],
            set_T=set_T,
            labels_SL=pd.factorize(names_SL.ravel())[0].reshape(names_SL.shape),
            is_query_T=table["role"].isin(["query", "both"]).to_numpy() & member_T,
            is_index_T=table["role"].isin(["index", "both"]).to_numpy() & member_T,
            domain_T=table["domain"].to_numpy(),
        )

    def own_places(self, query_Q: np.ndarray, index_I: np.ndarray) -> np.ndarray:
        """Return the place of each query's own image in the index, [Q]; -1 if it is not there."""
        return pd.Index(self.image_T[index_I]).get_indexer(self.image_T[query_Q])

    def are_relevant(self, query_B: np.ndarray, found_BK: np.ndarray) -> np.ndarray:
        """Return whether query and retrieved image share a label: bool [B, K], False for row -1."""
        set_BK, query_BL = self.set_T[found_BK], self.labels_SL[self.set_T[query_B]]
        shared_BK = np.zeros(found_BK.shape, dtype=bool)
        for label_S in self.labels_SL.T:
            for label_B1 in query_BL.T[:, :, None]:
                shared_BK |= (label_S[set_BK] == label_B1) & (label_B1 >= 0)
        return shared_BK & (found_BK >= 0)

    def count_shared(self, query_Q: np.ndarray, index_I: np.ndarray) -> np.ndarray:
        """Count the index rows that share any label with each query row, [Q]."""
        count_S = np.bincount(self.set_T[index_I], minlength=len(self.labels_SL))
        if self.labels_SL.shape[1] == 1:  # no image has two labels: typical for many classes
            return count_S[self.set_T[query_Q]]
        from scipy.sparse import csr_array  # seldom needed

        set_E, slot_E = np.nonzero(self.labels_SL >= 0)  # E: (set of labels, label) entries
        has_SL = csr_array((np.ones(len(set_E)), (set_E, self.labels_SL[set_E, slot_E])))
        set_U, place_Q = np.unique(self.set_T[query_Q], return_inverse=True)
        blocks = np.array_split(set_U, len(set_U) // SETS + 1)
        counts = [(has_SL[block] @ has_SL.T > 0) @ count_S for block in blocks]
        return np.concatenate(counts)[place_Q]

    def count_positives(self, query_Q: np.ndarray, index_I: np.ndarray) -> np.ndarray:
        """Count each query's relevant index images without its own image."""
        return self.count_shared(query_Q, index_I) - (self.own_places(query_Q, index_I) >= 0)


@dataclass(frozen=True)
class Search:
    """Queries and the index to search, as rows T."""

    name: str
    query_Q: np.ndarray
    index_I: np.ndarray


def searches(index: str, images: Images, group_T: np.ndarray) -> Iterator[Search]:
    """Yield the searches of an index type; every query is in exactly one of them.

    Args:
        index: `merged`, one index of all groups (also called common, or unified); `separate`, the
            query's own group; `fused`, the index of the query's group and every image of the other
            groups, including queries (the unification paper's galleries).
        group_T: domain or data set of each row.
    """
    rows_T = np.arange(len(group_T))
    if index == "merged":
        yield Search("merged", rows_T[images.is_query_T], rows_T[images.is_index_T])
        return
    for name in pd.unique(group_T):
        own_T = group_T == name
        index_T = (own_T & images.is_index_T) | (~own_T & (index == "fused"))
        yield Search(f"{index} {name}", rows_T[own_T & images.is_query_T], rows_T[index_T])


@dataclass(frozen=True)
class Rerank:
    """How an evaluation re-ranks."""

    methods: tuple[str, ...] = ()  # see `guie.base.arguments.METHODS`
    patches_TPF: np.ndarray | None = None  # of all rows T, for the method `local`


NO_RERANK = Rerank()


@dataclass(frozen=True)
class Ranking:
    """The index images of a search, ranked by similarity for each query without its own image.

    Attributes: `unit_TD`, unit vectors of all rows T; `rerank`, whose scores replace similarities.
    """

    images: Images
    unit_TD: np.ndarray
    search: Search
    rerank: Rerank = NO_RERANK

    def of(self, query_Q: np.ndarray) -> Ranking:
        """Return the ranking of these queries, rows T, in this order."""
        return replace(self, search=replace(self.search, query_Q=query_Q))

    @cached_property
    def _own_Q(self) -> np.ndarray:
        return self.images.own_places(self.search.query_Q, self.search.index_I)

    @cached_property
    def _index(self) -> ExactIndex | Reranker:
        index_I, patches_TPF = self.search.index_I, self.rerank.patches_TPF
        unit_ID = self.unit_TD[index_I]
        index = ExactIndex(unit_ID)
        if not self.rerank.methods or not len(index_I):
            return index
        patches_of = None if patches_TPF is None else lambda places: patches_TPF[index_I[places]]
        return Reranker(unit_ID, index.search, self.rerank.methods, patches_of=patches_of)

    def nearest(self, block: slice, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the k nearest images of a block of queries, best first, and their similarities.

        Returns: rows T [B, K], -1 past the end; similarities [B, K], -inf past the end.
        """
        query_B, patches_TPF = self.search.query_Q[block], self.rerank.patches_TPF
        query_BD, own_B = self.unit_TD[query_B], self._own_Q[block]
        if isinstance(self._index, ExactIndex):
            place_BK, score_BK = self._index.search(query_BD, k, own_B)
        else:
            patches_BPF = None if patches_TPF is None else patches_TPF[query_B]
            place_BK, score_BK = self._index.search(query_BD, k, own_B, patches_BPF)
        return np.where(place_BK >= 0, self.search.index_I[place_BK], -1), score_BK

    def blocks(
        self, k: int, most: int = MOST_QUERIES, title: str = "search"
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yield rows T of at most `most` queries (B,), and their `nearest`, until all are searched."""
        size = block_size(max(1, k), most)
        starts = range(0, len(self.search.query_Q), size)
        for start in tqdm(starts, title, delay=5, disable=None):
            block = slice(start, start + size)
            yield self.search.query_Q[block], *self.nearest(block, k)


def rankings(
    images: Images, embedded: Embeddings, search: Search, rerank: Rerank = NO_RERANK
) -> Iterator[Ranking]:
    """Yield the ranking of a search; with specialists, one for the queries of each domain."""
    if isinstance(embedded, np.ndarray):
        yield Ranking(images, embedded, search, rerank)
        return
    domain_Q = images.domain_T[search.query_Q]
    for name, unit_TD in embedded.items():
        own = Search(f"{search.name} by {name}", search.query_Q[domain_Q == name], search.index_I)
        yield Ranking(images, unit_TD, own, rerank)


def score_queries(
    rankings: Iterable[Ranking],
    search: Search,
    keys: Sequence[str],
    store: ScoreStore | None = None,
    query_counts: bool = False,
) -> pd.DataFrame:
    """Return the named metrics of each query, indexed by row T; NaN if it has no positive.

    Args:
        rankings: together, of all queries of the search.
        store: where scores are stored. Rows of other processes are NaN until those are computed.
        query_counts: R of R-precision and MAP@R counts the query's own image too, as in PUMA's code.
    """
    scores = [QueryScores(ranking, keys, query_counts).table(store) for ranking in rankings]
    return pd.concat(scores).reindex(search.query_Q)


class QueryScores(Compute):
    """Computes the scores of a ranking's queries that have a positive, by blocks, for `fill`."""

    def __init__(self, ranking: Ranking, keys: Sequence[str], query_counts: bool):
        images, search = ranking.images, ranking.search
        positives_Q = window_Q = images.count_positives(search.query_Q, search.index_I)
        if query_counts:
            window_Q = images.count_shared(search.query_Q, search.index_I)
        # Sorted, so that only the blocks of large classes need many ranks.
        order_Q = np.argsort(window_Q, kind="stable")
        order_Q = order_Q[positives_Q[order_Q] > 0]
        self.positives_Q, self.window_Q = positives_Q[order_Q], window_Q[order_Q]
        self.ranking = ranking.of(search.query_Q[order_Q])
        self.keys, self.query_counts = keys, query_counts

    def starts(self, count: int, parts: int) -> list[int]:
        """Cut the queries into blocks; one is smaller if its last query needs more ranks."""
        found, start = [], 0
        while start < count:
            found.append(start)
            size = min(MOST_QUERIES, count - start)
            while size > (fits := block_size(self._depth(start + size - 1), MOST_QUERIES)):
                size = fits
            start += size
        return found

    def _depth(self, last: int) -> int:
        # The last query of a block has the most positives
        return metrics.depth_of(self.keys, self.window_Q[last])

    def table(self, store: ScoreStore | None) -> pd.DataFrame:
        """Return the scores by row T, but those of other processes that are not stored."""
        query_Q, search_name = self.ranking.search.query_Q, self.ranking.search.name
        if store is None:
            found: list[pd.DataFrame] = []
            every_Q = np.arange(len(query_Q))
            blocks = own_blocks(every_Q, self.starts(len(every_Q), 1), (0, 1))
            self(blocks, lambda _, scores: found.append(scores), "search")
            # Without an empty frame among others: a mean's last bit depends on the layout in memory.
            empty = pd.DataFrame(columns=list(self.keys), dtype=float)
            return pd.concat(found or [empty]).set_axis(query_Q)
        names = [f"{store.prefix}{search_name}/{row}" for row in query_Q.tolist()]
        states = row_keys(names)
        fill(store.rows, states, self, part=store.share, title="search")
        known = np.setdiff1d(np.arange(len(states)), store.rows.missing(states))
        return store.rows.table(states.take(known)).set_axis(query_Q[known])

    def __call__(
        self,
        blocks: Sequence[np.ndarray],
        write: Callable[[np.ndarray, pd.DataFrame], None],
        title: str,
    ) -> None:
        """Score the queries of each block."""
        for rows in tqdm(blocks, title, delay=5, disable=None):
            block = slice(rows[0], rows[-1] + 1)
            row_BK, _ = self.ranking.nearest(block, self._depth(rows[-1]))
            query_B = self.ranking.search.query_Q[block]
            relevant_BK = self.ranking.images.are_relevant(query_B, row_BK)
            found = metrics.ranking_metrics(relevant_BK, self.positives_Q[block], self.keys)
            if self.query_counts:
                counted = [key for key in self.keys if key in metrics.ALL_POSITIVES]
                found |= metrics.ranking_metrics(relevant_BK, self.window_Q[block], counted)
            write(rows, pd.DataFrame(found))


def unanswerable(queries: int) -> UserError:
    """Return the error for queries without any positive."""
    return UserError(
        f"none of {queries} queries has a positive in the index; check the columns label and role"
    )
