"""The first neighbours of every query, found as the score finds them.

Shape legend: T rows of the table, Q queries, B queries of one block, K ranks, I index images,
D dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from tqdm import tqdm

from guie.base.seeds import seeded_draws
from guie.evaluation.neighbours import ExactIndex, block_size
from guie.evaluation.protocols.base import Part
from guie.evaluation.protocols.retrieval import groups_of, images_of
from guie.evaluation.searching import MOST_QUERIES, Embedded, Images, Search, Searcher, searches

DEPTH = 100  # ranks that are looked at for the first right answer
MOST_PAIRS = 4 * 10**10  # of query and index image: a minute on two cores
SHOWN = 10  # ranks that are kept: N_10 is what hubness is measured by


@dataclass(frozen=True)
class Nearest:
    """What each query that has a positive was answered with, by rows T of the table.

    Attributes:
        query_Q: rows, rising. found_QK: rows, best first, -1 where the index has no more.
        distance_QK: Euclidean, of unit vectors (0 to 2); inf where nothing was found.
        relevant_QK: the image found shares a label with the query.
        first_hit_Q: rank of the first right answer, from 1; 0 where none is among the first DEPTH.
        positives_Q: right answers in the index.
        index_I: rows that were searched for any query.
        asked: how many queries the part has; more than Q where some have no positive, or where
            `sampled`: only some were asked, drawn by chance.
    """

    query_Q: np.ndarray
    found_QK: np.ndarray
    distance_QK: np.ndarray
    relevant_QK: np.ndarray
    first_hit_Q: np.ndarray
    positives_Q: np.ndarray
    index_I: np.ndarray
    asked: int
    sampled: bool

    @property
    def right_Q(self) -> np.ndarray:
        """Is the first answer right: R@1 of each query, bool."""
        return self.first_hit_Q == 1

    def recall_at(self, k: int) -> np.ndarray:
        """Is any of the first k right, bool [Q]; k is DEPTH at most."""
        return (self.first_hit_Q > 0) & (self.first_hit_Q <= k)


def nearest(
    part: Part, table: pd.DataFrame, embedded: Embedded, most_pairs: int = MOST_PAIRS
) -> Nearest:
    """Ask every query that has a positive, in the index that the part says.

    Args:
        part: of a protocol; relevance is by labels, whatever it grades.
        table: rows T of one split: image_path, label, domain, role, and dataset where there is one.
        embedded: unit vectors [T, D], or those of each domain's specialist.
        most_pairs: of query and index image; where there are more, a sample of the queries is asked,
            the same for every model.

    Raises ValueError where no query has a positive.
    """
    images, group_T = images_of(part, table), groups_of(part, table)
    asked = int(images.is_query_T.sum())
    pairs = sum(len(s.query_Q) * len(s.index_I) for s in searches(part.index, images, group_T))
    if pairs > most_pairs:
        images = _sampled(images, table, most_pairs / pairs)
    found: list[dict[str, np.ndarray]] = []
    searched = np.zeros(len(table), bool)
    for search in searches(part.index, images, group_T):
        searched[search.index_I] = True
        for unit_TD, one in Searcher(images, embedded).by_embedding(search):
            found += list(_by_blocks(images, unit_TD, one))
    if not found:
        raise ValueError("no query has a positive in the index")
    columns = {key: np.concatenate([block[key] for block in found]) for key in found[0]}
    order_Q = np.argsort(columns["query_Q"], kind="stable")
    ordered = {key: column[order_Q] for key, column in columns.items()}
    index_I = np.flatnonzero(searched)
    return Nearest(**ordered, index_I=index_I, asked=asked, sampled=pairs > most_pairs)


def _sampled(images: Images, table: pd.DataFrame, share: float) -> Images:
    """The same where a share of the queries is asked, by their paths alone."""
    rows = np.flatnonzero(images.is_query_T)
    draws = seeded_draws(0, table["image_path"].to_numpy()[rows])
    chosen = rows[np.argsort(draws, kind="stable")[: max(1, int(share * len(rows)))]]
    is_query_T = np.zeros(len(table), bool)
    is_query_T[chosen] = True
    return replace(images, is_query_T=is_query_T)


def _by_blocks(
    images: Images, unit_TD: np.ndarray, search: Search
) -> Iterator[dict[str, np.ndarray]]:
    """Yield the attributes of `Nearest`, block by block."""
    positives_Q = images.count_positives(search.query_Q, search.index_I)
    query_Q, positives_Q = search.query_Q[positives_Q > 0], positives_Q[positives_Q > 0]
    if not len(query_Q):
        return
    index = ExactIndex(unit_TD[search.index_I])
    own_P, place_P = images.same_image(query_Q, search.index_I)
    size = block_size(DEPTH, MOST_QUERIES)
    for start in tqdm(range(0, len(query_Q), size), "neighbours", delay=5, disable=None):
        rows_B = query_Q[start : start + size]
        pairs = slice(*np.searchsorted(own_P, [start, start + len(rows_B)]))
        hidden = (own_P[pairs] - start, place_P[pairs])
        found_BK, score_BK = index.search(unit_TD[rows_B], DEPTH, hidden)
        row_BK = np.where(found_BK >= 0, search.index_I[found_BK], -1)
        relevant_BK = images.labels.shared(rows_B, row_BK) & (row_BK >= 0)
        hit_B = np.where(relevant_BK.any(axis=1), relevant_BK.argmax(axis=1) + 1, 0)
        with np.errstate(invalid="ignore"):
            distance_BK = np.sqrt(np.maximum(2 - 2 * _wide(score_BK, -np.inf), 0))
        yield {
            "query_Q": rows_B,
            "found_QK": _wide(row_BK, -1).astype(np.int32),
            "distance_QK": distance_BK.astype(np.float32),
            "relevant_QK": _wide(relevant_BK, False),
            "first_hit_Q": hit_B,
            "positives_Q": positives_Q[start : start + size],
        }


def _wide(values_BK: np.ndarray, nothing: float) -> np.ndarray:
    """The first SHOWN ranks, filled up where the index has fewer images."""
    values_BK = values_BK[:, :SHOWN]
    missing = SHOWN - values_BK.shape[1]
    return np.pad(values_BK, ((0, 0), (0, missing)), constant_values=nothing)
