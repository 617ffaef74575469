"""Search queries in an index and score each query, block by block; share and resume long searches.

Shapes: Q queries, K neighbours.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from tqdm import tqdm

from guie.base.errors import UserError
from guie.base.files import replacing, write_text
from guie.base.seeds import seeded_draws
from guie.base.threads import search_threads
from guie.evaluation import knn as neighbours
from guie.evaluation import metrics
from guie.evaluation.embeddings import Embeddings
from guie.evaluation.knn import ExactIndex, block_size
from guie.evaluation.rerank.reranker import NO_RERANK, Rerank, Reranker


class LabelSets:
    """The labels of T images (`a|b` is two); images are relevant to each other if they share a label.

    Images with the same label text share one row of `labels_SL`, which stays small for millions of rows.
    """

    def __init__(self, labels: pd.Series) -> None:
        self.set_T, texts = pd.factorize(labels)
        label_lists = [text.split("|") for text in texts]
        codes: dict[str, int] = {}
        self.labels_SL = np.full((len(texts), max(map(len, label_lists), default=1)), -1)
        for row_L, names in zip(self.labels_SL, label_lists, strict=True):
            row_L[: len(names)] = [codes.setdefault(name, len(codes)) for name in names]
        self.label_count = len(codes)

    def shared(self, query_B: np.ndarray, found_BK: np.ndarray) -> np.ndarray:
        """Return whether query and retrieved image, both rows T, share a label: bool [B, K]."""
        asked_BL = self.labels_SL[self.set_T[query_B]]
        set_BK = self.set_T[found_BK]
        shared_BK = np.zeros(found_BK.shape, dtype=bool)
        for label_S in self.labels_SL.T:
            for label_B1 in asked_BL.T[:, :, None]:
                shared_BK |= (label_S[set_BK] == label_B1) & (label_B1 >= 0)
        return shared_BK

    def count_shared(self, query_Q: np.ndarray, index_N: np.ndarray) -> np.ndarray:
        """Count the index rows that share any label with each query row, [Q]."""
        if self.labels_SL.shape[1] == 1:  # no image has two labels: typical for many classes
            count_C = np.bincount(self.first(index_N), minlength=self.label_count)
            return count_C[self.first(query_Q)]
        labels_NL = self.labels_SL[self.set_T[index_N]]
        image_E, slot_E = np.nonzero(labels_NL >= 0)  # E: (image, label) entries
        label_E = labels_NL[image_E, slot_E]
        order_E = np.argsort(label_E, kind="stable")
        starts = np.searchsorted(label_E[order_E], np.arange(1, self.label_count))
        members_C = np.split(image_E[order_E], starts)

        def union_size(labels_L: np.ndarray) -> int:
            return len(np.unique(np.concatenate([members_C[c] for c in labels_L if c >= 0])))

        asked_sets, set_Q = np.unique(self.set_T[query_Q], return_inverse=True)
        sizes = [union_size(labels_L) for labels_L in self.labels_SL[asked_sets]]
        return np.array(sizes, dtype=np.int64)[set_Q]

    def first(self, rows_R: np.ndarray) -> np.ndarray:
        """Return the integer code of each row's first label, [R]."""
        return self.labels_SL[self.set_T[rows_R], 0]


KEY = "key.txt"


@dataclass(frozen=True)
class BlockCache:
    """A folder of computed blocks, each computed by one of several processes.

    Args:
        folder: used by this computation alone, prepared by `open`.
        process: number of this process; `processes`: how many share the work.
    """

    folder: Path
    process: int = 0
    processes: int = 1
    prefix: str = ""

    @staticmethod
    def open(folder: Path, key: str) -> None:
        """Prepare the folder in one process, and delete blocks of another key."""
        file = folder / KEY
        if not file.is_file() or file.read_text(encoding="utf-8") != key:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            write_text(file, key)

    def within(self, prefix: str) -> BlockCache:
        """Return the same cache for searches with that prefix."""
        return replace(self, prefix=f"{self.prefix}{prefix}/")

    def is_mine(self, number: int) -> bool:
        """Return whether this process computes that block."""
        return number % self.processes == self.process

    def get(self, name: str, number: int) -> pd.DataFrame | None:
        """Return a cached block, or None if there is none yet."""
        file = self._file(name, number)
        return pd.read_parquet(file) if file.is_file() else None

    def add(self, name: str, number: int, values: pd.DataFrame) -> None:
        """Cache a block atomically."""
        with replacing(self._file(name, number)) as temporary:
            values.to_parquet(temporary, index=False)

    def remove(self) -> None:
        """Delete the folder, once the result is written."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _file(self, name: str, number: int) -> Path:
        search = hashlib.sha256(f"{self.prefix}{name}".encode()).hexdigest()[:12]
        return self.folder / f"{search}_{number:06d}.parquet"


MOST_QUERIES = 4096  # in one block


@dataclass(frozen=True)
class Images:
    """The rows T of one split as arrays."""

    image_T: np.ndarray  # one number for each image, however many rows it has
    labels: LabelSets
    is_query_T: np.ndarray
    is_index_T: np.ndarray
    domain_T: np.ndarray

    @classmethod
    def of(cls, table: pd.DataFrame) -> Images:
        """Build from rows of a manifest."""
        return cls(
            image_T=pd.factorize(table["image_path"])[0],
            labels=LabelSets(table["label"]),
            is_query_T=table["role"].isin(["query", "both"]).to_numpy(),
            is_index_T=table["role"].isin(["index", "both"]).to_numpy(),
            domain_T=table["domain"].to_numpy(),
        )

    def within(self, member_T: np.ndarray) -> Images:
        """Restrict queries and index to these rows."""
        asked_T, held_T = self.is_query_T & member_T, self.is_index_T & member_T
        return replace(self, is_query_T=asked_T, is_index_T=held_T)

    def own_places(self, query_Q: np.ndarray, index_I: np.ndarray) -> np.ndarray:
        """Return the place of each query's own image in the index, [Q]; -1 if it is not there."""
        return pd.Index(self.image_T[index_I]).get_indexer(self.image_T[query_Q])

    def are_relevant(self, query_B: np.ndarray, found_BK: np.ndarray) -> np.ndarray:
        """Return whether query and retrieved image share a label: bool [B, K], False for row -1."""
        return self.labels.shared(query_B, found_BK) & (found_BK >= 0)

    def count_positives(self, query_Q: np.ndarray, index_I: np.ndarray) -> np.ndarray:
        """Count each query's relevant index images without its own image."""
        is_held_Q = self.own_places(query_Q, index_I) >= 0
        return self.labels.count_shared(query_Q, index_I) - is_held_Q


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

    Raises ValueError for another index type.
    """
    rows_T = np.arange(len(group_T))
    if index == "merged":
        yield Search("merged", rows_T[images.is_query_T], rows_T[images.is_index_T])
        return
    if index not in ("separate", "fused"):
        raise ValueError(f"index is {index!r}; it must be merged, separate or fused")
    for name in pd.unique(group_T):
        own_T = group_T == name
        index_T = own_T & images.is_index_T
        if index == "fused":
            index_T |= ~own_T
        yield Search(f"{index} {name}", rows_T[own_T & images.is_query_T], rows_T[index_T])


@dataclass(frozen=True)
class Ranking:
    """The index images of a search, ranked for each query without its own image.

    Attributes: `unit_TD`, unit vectors of all rows T; `rerank`, corrections of the order.
    """

    images: Images
    unit_TD: np.ndarray
    search: Search
    rerank: Rerank = NO_RERANK

    @cached_property
    def _index(self) -> ExactIndex:
        return ExactIndex(self.unit_TD[self.search.index_I])

    @cached_property
    def _reranker(self) -> Reranker:
        index_I, patches_TPF = self.search.index_I, self.rerank.patches_TPF

        def patches_of(places: np.ndarray) -> np.ndarray:
            assert patches_TPF is not None
            return patches_TPF[index_I[places]]

        methods, find = self.rerank.methods, self._index.search
        return Reranker(self.unit_TD[index_I], find, methods, patches_of=patches_of)

    @cached_property
    def _own_Q(self) -> np.ndarray:
        return self.images.own_places(self.search.query_Q, self.search.index_I)

    def nearest(self, block: slice, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the k nearest images of a block of queries, best first, and their similarities.

        Returns: rows T [B, K], -1 past the end; similarities [B, K], -inf past the end. With `rerank`,
        corrected scores take the place of similarities.
        """
        asked_B, own_B = self.search.query_Q[block], self._own_Q[block]
        queries_BD, patches_TPF = self.unit_TD[asked_B], self.rerank.patches_TPF
        if self.rerank.methods and len(self.search.index_I):
            patches_BPF = None if patches_TPF is None else patches_TPF[asked_B]
            place_BK, score_BK = self._reranker.search(queries_BD, k, own_B, patches_BPF)
        else:
            place_BK, score_BK = self._index.search(queries_BD, k, own_B)
        return np.where(place_BK >= 0, self.search.index_I[place_BK], -1), score_BK

    def blocks(self, size: int) -> list[slice]:
        """Return all queries as slices of that many, the last one shorter."""
        count = len(self.search.query_Q)
        return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def rankings(
    images: Images, embedded: Embeddings, search: Search, rerank: Rerank = NO_RERANK
) -> Iterator[Ranking]:
    """Yield the ranking of a search; with specialists, one for the queries of each domain."""
    if isinstance(embedded, np.ndarray):
        yield Ranking(images, embedded, search, rerank)
        return
    domain_Q = images.domain_T[search.query_Q]
    for name, unit_TD in embedded.items():
        query_Q = search.query_Q[domain_Q == name]
        own = replace(search, name=f"{search.name} by {name}", query_Q=query_Q)
        yield Ranking(images, unit_TD, own, rerank)


@dataclass(frozen=True)
class SearchScorer:
    """Score searches over embedded images.

    Attributes:
        kept: blocks of an earlier run and of this process. Rows of other processes' blocks are NaN
            until those blocks exist.
        query_counts: R of R-precision and MAP@R counts all index images that share a label, with the
            query's own image where it is in the index, like PUMA's code.
        rerank: corrections of every ranking.
    """

    images: Images
    embedded: Embeddings
    kept: BlockCache | None = None
    query_counts: bool = False
    rerank: Rerank = NO_RERANK

    def score(self, search: Search, keys: Sequence[str]) -> pd.DataFrame:
        """Return the named metrics of each query, indexed by row T; NaN if it has no positive."""
        blocks = [
            values.set_index(rows_B)
            for ranking in rankings(self.images, self.embedded, search, self.rerank)
            for rows_B, values in self._by_blocks(ranking, keys)
        ]
        scores = pd.concat(blocks) if blocks else pd.DataFrame(columns=list(keys), dtype=float)
        return scores.reindex(search.query_Q)

    def _by_blocks(
        self, ranking: Ranking, keys: Sequence[str]
    ) -> Iterator[tuple[np.ndarray, pd.DataFrame]]:
        """Yield, block by block, rows of queries and their scores."""
        kept, search = self.kept, ranking.search
        positives_Q = window_Q = self.images.count_positives(search.query_Q, search.index_I)
        if self.query_counts:
            window_Q = self.images.labels.count_shared(search.query_Q, search.index_I)
        # Sorted, so that only the blocks of large classes need many ranks.
        order_Q = np.argsort(window_Q, kind="stable")
        order_Q = order_Q[positives_Q[order_Q] > 0]
        query_Q, positives_Q, window_Q = (
            each_Q[order_Q] for each_Q in (search.query_Q, positives_Q, window_Q)
        )
        ranking = replace(ranking, search=replace(search, query_Q=query_Q))
        blocks = _blocks(window_Q, keys)
        for number, block in enumerate(tqdm(blocks, "search", delay=5, disable=None)):
            rows_B, window_B = query_Q[block], window_Q[block]
            values = kept.get(search.name, number) if kept else None
            if values is None and (kept is None or kept.is_mine(number)):
                found_BK, _ = ranking.nearest(block, metrics.depth_of(keys, window_B[-1]))
                relevant_BK = self.images.are_relevant(rows_B, found_BK)
                found = metrics.ranking_metrics(relevant_BK, positives_Q[block], keys)
                if self.query_counts:
                    asked = [key for key in keys if key in metrics.ALL_POSITIVES]
                    found |= metrics.ranking_metrics(relevant_BK, window_B, asked)
                values = pd.DataFrame(found)
                if kept:
                    kept.add(search.name, number, values)
            if values is not None:
                yield rows_B, values


def unanswerable(queries: int) -> UserError:
    """Return the error for queries without any positive."""
    return UserError(
        f"none of {queries} queries has a positive in the index; check the columns label and role"
    )


def galleries(search: Search, images: Images, table: pd.DataFrame, draws: int) -> list[Search]:
    """Return one search per draw for re-identification: one image of every class against the others.

    The drawn images are the index and the others are queries, whatever their roles. The draws are a
    fixed function of the draw's number and the image's path.
    """
    row_R = np.union1d(search.query_Q, search.index_I)
    row_R = row_R[np.sort(np.unique(images.image_T[row_R], return_index=True)[1])]
    path_R, class_R = table["image_path"].to_numpy()[row_R], images.labels.set_T[row_R]
    drawn = []
    for draw in range(draws):
        order_R = np.lexsort((seeded_draws(draw, path_R), class_R))
        _, first_C = np.unique(class_R[order_R], return_index=True)
        index_I = np.sort(row_R[order_R[first_C]])
        drawn.append(Search(f"{search.name}, draw {draw}", np.setdiff1d(row_R, index_I), index_I))
    return drawn


def _blocks(window_Q: np.ndarray, keys: Sequence[str]) -> list[slice]:
    """Return blocks of consecutive queries; a block is smaller if its last query needs more ranks."""

    def needed(last: int) -> int:
        return metrics.depth_of(keys, window_Q[last])

    blocks, start = [], 0
    while start < len(window_Q):
        size = min(MOST_QUERIES, len(window_Q) - start)
        while size > (fits := block_size(needed(start + size - 1), MOST_QUERIES)):
            size = fits
        blocks.append(slice(start, start + size))
        start += size
    return blocks


LONG = 2 * 10**10  # pairs of query and index image: half a minute on two cores


def search_together(
    work: Callable[[BlockCache | None], None],
    share: Callable[[BlockCache], None],
    folder: Path,
    key: str,
    pairs: int,
) -> None:
    """Run `work` in the main process, once all processes have searched their blocks.

    Args:
        work: searches and writes the result; cached blocks are not searched again.
        share: searches and caches the blocks of this process, without a result.
        folder: where blocks are cached until the work is done; a short search caches none.
        key: hash of embeddings, table and protocol; blocks of another key are deleted.
        pairs: total number of pairs of query and index image.
    """
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if processes == 1 and pairs < LONG:
        work(None)
        return
    if processes == 1:
        BlockCache.open(folder, key)
        kept = BlockCache(folder)
        work(kept)
        kept.remove()
        return
    # Imported here, as a search in one process needs no torch.
    from guie.base.devices import from_main, make_accelerator

    accelerator = make_accelerator()
    from_main(accelerator, lambda: BlockCache.open(folder, key))
    with search_threads(int(os.environ.get("LOCAL_WORLD_SIZE", processes))):
        share(BlockCache(folder, accelerator.process_index, processes))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        kept = BlockCache(folder)
        work(kept)
        kept.remove()
    accelerator.wait_for_everyone()
    accelerator.end_training()


def key_of(embeddings: Iterable[np.ndarray], table: pd.DataFrame, *words: object) -> str:
    """Return a hash of all that the blocks of a search depend on."""
    digest = hashlib.sha256()
    for array_TD in embeddings:
        digest.update(f"{array_TD.dtype} {array_TD.shape}".encode())
        digest.update(np.ascontiguousarray(array_TD).data)
    columns = [
        c for c in ("image_path", "label", "domain", "role", "dataset", "subsets") if c in table
    ]
    digest.update(pd.util.hash_pandas_object(table[columns], index=False).to_numpy().tobytes())
    words = (*words, MOST_QUERIES, neighbours.RESERVED_BYTES)
    digest.update(repr(words).encode())
    return digest.hexdigest()


def pairs_of(table: pd.DataFrame) -> int:
    """Return queries times index images of a merged index, the most that any protocol compares."""
    role = table["role"]
    return int(role.isin(["query", "both"]).sum()) * int(role.isin(["index", "both"]).sum())
