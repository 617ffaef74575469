"""Search queries in an index and score each query, block by block.

Shapes: Q queries, B of one block, K neighbours, I index images, T rows of the table, D dimensions.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from tqdm import tqdm

from guie.base.errors import UserError
from guie.evaluation import metrics
from guie.evaluation.knn import RESERVED_BYTES, Embeddings, Find, block_size, exact, search_threads
from guie.rows.filling import Compute, fill, own_blocks
from guie.rows.states import keys as row_keys
from guie.rows.store import Store

MOST_QUERIES = 4096  # in one block
SETS = 4096  # of labels that are compared with all others at once
LONG = 2 * 10**10  # pairs of query and index image: half a minute on two cores
COLUMNS = ("image_path", "label", "domain", "role", "dataset", "subsets")  # that scores depend on


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
        index: `merged`, one of all groups (also called common, or unified); `separate`, of the query's own
            group; `fused`, its index and every image of other groups (the unification paper's galleries).
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


# Return a search in the rows of an index [I] of unit vectors [T, D], whose queries are rows T.
OpenIndex = Callable[[np.ndarray, np.ndarray], Find]


@dataclass(frozen=True)
class Ranking:
    """The index images of a search, ranked by similarity for each query without its own image.

    Attributes: `unit_TD`, unit vectors of all rows T; `open_index`, `exact` or one that re-ranks.
    """

    images: Images
    unit_TD: np.ndarray
    search: Search
    open_index: OpenIndex = exact

    def of(self, query_Q: np.ndarray) -> Ranking:
        """Return the ranking of these queries, rows T, in this order."""
        return replace(self, search=replace(self.search, query_Q=query_Q))

    @cached_property
    def _own_Q(self) -> np.ndarray:
        return self.images.own_places(self.search.query_Q, self.search.index_I)

    @cached_property
    def _find(self) -> Find:
        return self.open_index(self.unit_TD, self.search.index_I)

    def nearest(self, block: slice, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the k nearest rows T of a block of queries [B, K], -1 past the end, and similarities."""
        place_BK, score_BK = self._find(self.search.query_Q[block], k, self._own_Q[block])
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
    images: Images, embedded: Embeddings, search: Search, open_index: OpenIndex = exact
) -> Iterator[Ranking]:
    """Yield the ranking of a search; with specialists, one for the queries of each domain."""
    if isinstance(embedded, np.ndarray):
        yield Ranking(images, embedded, search, open_index)
        return
    domain_Q = images.domain_T[search.query_Q]
    for name, unit_TD in embedded.items():
        own = Search(f"{search.name} by {name}", search.query_Q[domain_Q == name], search.index_I)
        yield Ranking(images, unit_TD, own, open_index)


def score_queries(
    rankings: Iterable[Ranking],
    search: Search,
    keys: Sequence[str],
    store: ScoreStore | None = None,
    query_counts: bool = False,
) -> pd.DataFrame:
    """Return the named metrics of each query, indexed by row T; NaN if it has no positive.

    The rankings have all queries of the search. Scores of other processes are NaN until the store has them.
    With `query_counts`, R of R-precision and MAP@R counts the query's own image too, as in PUMA's code.
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


def search_together(
    work: Callable[[ScoreStore | None], None],
    share: Callable[[ScoreStore], None],
    folder: Path,
    key: str,
    pairs: int,
) -> None:
    """Run `work` in the main process, once all processes have searched and stored their shares.

    Args:
        work: searches what is not stored, and writes the result.
        share: searches and stores the share of this process.
        folder: of the store, until the work is done; a search of fewer than LONG pairs stores nothing.
        key: the result of `key_of`; scores of another one are not taken.
    """
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if processes == 1 and pairs < LONG:
        work(None)
        return
    store = Store(folder, {"scores": "of queries"})
    if processes == 1:
        work(ScoreStore(store, prefix=key))
        store.remove()
        return
    # Imported here, as a search in one process needs no torch.
    from guie.base.devices import make_accelerator

    accelerator = make_accelerator()
    with search_threads(int(os.environ.get("LOCAL_WORLD_SIZE", processes))):
        share(ScoreStore(store, (accelerator.process_index, processes), key))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        work(ScoreStore(store, prefix=key))
        store.remove()
    accelerator.wait_for_everyone()
    accelerator.end_training()


def key_of(embeddings: Iterable[np.ndarray], table: pd.DataFrame, settings: object) -> str:
    """Return a hash of all that the blocks of a search depend on."""
    digest = hashlib.sha256()
    for array_TD in embeddings:
        digest.update(f"{array_TD.dtype} {array_TD.shape}".encode())
        digest.update(np.ascontiguousarray(array_TD).data)
    known = table[[column for column in COLUMNS if column in table]]
    digest.update(pd.util.hash_pandas_object(known, index=False).to_numpy().tobytes())
    digest.update(repr((settings, MOST_QUERIES, RESERVED_BYTES)).encode())
    return digest.hexdigest()
