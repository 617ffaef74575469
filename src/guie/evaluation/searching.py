"""Who is searched where, and what each query scores, block by block.

Queries are the rows of a split whose role is `query` or `both`; the index is its `index` and `both`
rows. A query's own image is masked by its id before anything is ranked.

Shape legend: T rows of the table, Q queries, B queries of one block, I index images, K ranks,
D dimensions, R rows of one search, C classes, P pairs (query, index image) of one and the same image.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from tqdm import tqdm

from guie.base.seeds import seeded_draws
from guie.evaluation import metrics
from guie.evaluation.kept import KeptBlocks
from guie.evaluation.neighbours import ExactIndex, block_size
from guie.evaluation.relevance import LabelSets

MOST_QUERIES = 4096  # of one block

# unit vectors [T, D], or those of each domain's specialist, which embeds that domain's queries and
# the whole index
Embedded = np.ndarray | Mapping[str, np.ndarray]


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
        """From rows of a manifest."""
        return cls(
            image_T=pd.factorize(table["image_path"])[0],
            labels=LabelSets(table["label"]),
            is_query_T=table["role"].isin(["query", "both"]).to_numpy(),
            is_index_T=table["role"].isin(["index", "both"]).to_numpy(),
            domain_T=table["domain"].to_numpy(),
        )

    def within(self, member_T: np.ndarray) -> Images:
        """The same where only these rows are asked or searched."""
        asked_T, held_T = self.is_query_T & member_T, self.is_index_T & member_T
        return replace(self, is_query_T=asked_T, is_index_T=held_T)

    def same_image(self, query_Q: np.ndarray, index_I: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Places (in query_Q, in index_I) of one and the same image, in query order."""
        asked = pd.DataFrame({"image": self.image_T[query_Q], "query": np.arange(len(query_Q))})
        held = pd.DataFrame({"image": self.image_T[index_I], "index": np.arange(len(index_I))})
        pairs = asked.merge(held, on="image")  # an inner merge keeps the order of the left
        return pairs["query"].to_numpy(), pairs["index"].to_numpy()

    def count_positives(self, query_Q: np.ndarray, index_I: np.ndarray) -> np.ndarray:
        """Relevant index images of each query, its own image not counted."""
        own_P, _ = self.same_image(query_Q, index_I)
        own_Q = np.bincount(own_P, minlength=len(query_Q))
        return self.labels.count_shared(query_Q, index_I) - own_Q


@dataclass(frozen=True)
class Search:
    """Queries and the index that they are asked of, as rows T."""

    name: str
    query_Q: np.ndarray
    index_I: np.ndarray


def searches(index: str, images: Images, group_T: np.ndarray) -> Iterator[Search]:
    """The searches that an index stands for; every query is in one of them.

    Args:
        index: `merged`, one index of all groups (also called common, or unified); `separate`, the
            query's group alone; `fused`, the query's group as it is and every image of the others,
            their queries too (the unification paper's galleries).
        group_T: domain or data set of each row.

    Raises ValueError for another index.
    """
    rows_T = np.arange(len(group_T))
    if index == "merged":
        yield Search("merged", rows_T[images.is_query_T], rows_T[images.is_index_T])
        return
    if index not in ("separate", "fused"):
        raise ValueError(f"index is {index!r}, not merged, separate or fused")
    for name in pd.unique(group_T):
        own_T = group_T == name
        index_T = own_T & images.is_index_T
        if index == "fused":
            index_T |= ~own_T
        yield Search(f"{index} {name}", rows_T[own_T & images.is_query_T], rows_T[index_T])


@dataclass(frozen=True)
class Searcher:
    """Embedded images, and how their searches are scored.

    Attributes:
        kept: blocks of an earlier start, and those of this process; rows of other processes' blocks
            are NaN until these are there.
        query_counts: R-precision and MAP@R count the query among its positives, as PUMA's code does.
    """

    images: Images
    embedded: Embedded
    kept: KeptBlocks | None = None
    query_counts: bool = False

    def score(self, search: Search, keys: Sequence[str]) -> pd.DataFrame:
        """The named metrics of each query of a search, by its row T; NaN where it has no positive."""
        blocks = [
            values.set_index(rows_B)
            for unit_TD, part in self.by_embedding(search)
            for rows_B, values in self._by_blocks(unit_TD, part, keys)
        ]
        scores = pd.concat(blocks) if blocks else pd.DataFrame(columns=list(keys), dtype=float)
        return scores.reindex(search.query_Q)

    def by_embedding(self, search: Search) -> list[tuple[np.ndarray, Search]]:
        """The embeddings [T, D] that are searched, each with its queries."""
        if isinstance(self.embedded, np.ndarray):
            return [(self.embedded, search)]
        domain_Q = self.images.domain_T[search.query_Q]
        return [
            (
                unit_TD,
                Search(
                    f"{search.name} by {name}", search.query_Q[domain_Q == name], search.index_I
                ),
            )
            for name, unit_TD in self.embedded.items()
        ]

    def _by_blocks(
        self, unit_TD: np.ndarray, search: Search, keys: Sequence[str]
    ) -> Iterator[tuple[np.ndarray, pd.DataFrame]]:
        """Yield, block by block, rows of queries and what they score."""
        images, kept = self.images, self.kept
        positives_Q = images.count_positives(search.query_Q, search.index_I)
        # Sorted, so that only the blocks of large classes are searched deeply.
        order_Q = np.argsort(positives_Q, kind="stable")
        order_Q = order_Q[positives_Q[order_Q] > 0]
        query_Q, positives_Q = search.query_Q[order_Q], positives_Q[order_Q]
        if not len(query_Q):
            return
        index: ExactIndex | None = None
        own_P, place_P = images.same_image(query_Q, search.index_I)
        blocks = tqdm(_blocks(positives_Q, keys), "search", delay=5, disable=None)
        for number, block in enumerate(blocks):
            rows_B, positives_B = query_Q[block], positives_Q[block]
            values = kept.get(search.name, number) if kept else None
            if values is None and (kept is None or kept.is_mine(number)):
                index = index or ExactIndex(unit_TD[search.index_I])
                pairs = slice(*np.searchsorted(own_P, [block.start, block.stop]))
                hidden = (own_P[pairs] - block.start, place_P[pairs])
                k = metrics.depth_of(keys, positives_B[-1])
                found_BK, _ = index.search(unit_TD[rows_B], k, hidden)
                relevant_BK = images.labels.shared(rows_B, search.index_I[found_BK])
                values = self._measured(relevant_BK & (found_BK >= 0), positives_B, keys)
                if kept:
                    kept.add(search.name, number, values)
            if values is not None:
                yield rows_B, values

    def _measured(
        self, relevant_BK: np.ndarray, positives_B: np.ndarray, keys: Sequence[str]
    ) -> pd.DataFrame:
        found = metrics.ranking_metrics(relevant_BK, positives_B, keys)
        if self.query_counts:
            asked = [key for key in keys if key in metrics.ALL_POSITIVES]
            found |= metrics.ranking_metrics(relevant_BK, positives_B + 1, asked)
        return pd.DataFrame(found)


def galleries(search: Search, images: Images, table: pd.DataFrame, draws: int) -> list[Search]:
    """Re-identification: by each draw one image of every class is the index, the others are queries.

    Whatever their roles were. The draws are fixed: a function of their number and the image's path.
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


def _blocks(positives_Q: np.ndarray, keys: Sequence[str]) -> list[slice]:
    """Consecutive queries, fewer where more ranks are looked at: as deep as the last one needs."""
    blocks, start = [], 0
    while start < len(positives_Q):
        size = min(MOST_QUERIES, len(positives_Q) - start)
        while size > (fits := _fitting(positives_Q[start + size - 1], keys)):
            size = fits
        blocks.append(slice(start, start + size))
        start += size
    return blocks


def _fitting(positives: int, keys: Sequence[str]) -> int:
    return block_size(metrics.depth_of(keys, positives), MOST_QUERIES)
