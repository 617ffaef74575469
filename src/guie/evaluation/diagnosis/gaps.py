"""How far off right and wrong answers lie: distances of a sample of queries to what the index holds.

Shape legend: S queries of the sample, B queries of one block, I index images, D dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from guie.evaluation.components import balanced_sample
from guie.evaluation.diagnosis.nearest import Nearest
from guie.evaluation.protocols.base import Part
from guie.evaluation.protocols.retrieval import groups_of, images_of
from guie.evaluation.searching import Embedded, Images, Search, Searcher, searches

QUERIES = 2_000  # a share of them is known to .01
PAIRS = 4 * 10**8  # of query and index image: fewer queries where the index is larger
BLOCK_FLOATS = 2**24  # similarities of one block


@dataclass(frozen=True)
class Gaps:
    """Euclidean distances of unit vectors, 0 to 2, each (S,).

    Attributes:
        query_S: rows of the table. positive_S, negative_S: to the nearest right and wrong answer.
        any_positive_S, any_negative_S: to one right and one wrong answer, drawn by chance.
    """

    query_S: np.ndarray
    positive_S: np.ndarray
    negative_S: np.ndarray
    any_positive_S: np.ndarray
    any_negative_S: np.ndarray


def gaps(part: Part, table: pd.DataFrame, embedded: Embedded, near: Nearest, seed: int = 0) -> Gaps:
    """Of a sample of queries, as many of each domain as there are, distances in the part's index.

    NaN where the index has no wrong answer. Arguments as of `nearest`.
    """
    images, group_T = images_of(part, table), groups_of(part, table)
    asked = table.iloc[near.query_Q].assign(row=near.query_Q)
    queries = min(QUERIES, PAIRS // len(near.index_I))
    of_each = max(1, queries // asked["domain"].nunique())
    chosen = set(balanced_sample(asked, of_each, seed)["row"])
    rng = np.random.default_rng(seed)
    found = []
    for search in searches(part.index, images, group_T):
        for unit_TD, one in Searcher(images, embedded).by_embedding(search):
            query_S = np.array([row for row in one.query_Q if row in chosen], np.int64)
            size = max(1, BLOCK_FLOATS // max(1, len(one.index_I)))
            for start in range(0, len(query_S), size):
                block = Search(one.name, query_S[start : start + size], one.index_I)
                found.append((block.query_Q, *_measured(images, unit_TD, block, rng)))
    return Gaps(*(np.concatenate(parts) for parts in zip(*found, strict=True)))


def _measured(
    images: Images, unit_TD: np.ndarray, search: Search, rng: np.random.Generator
) -> tuple[np.ndarray, ...]:
    query_B, index_I = search.query_Q, search.index_I
    cosine_BI = unit_TD[query_B] @ unit_TD[index_I].T
    distance_BI = np.sqrt(np.maximum(2 - 2 * cosine_BI, 0))
    shared_BI = images.labels.shared(query_B, np.broadcast_to(index_I, distance_BI.shape))
    own_BI = np.zeros_like(shared_BI)
    own_BI[images.same_image(query_B, index_I)] = True
    right_BI, wrong_BI = shared_BI & ~own_BI, ~shared_BI & ~own_BI
    draw_BI = rng.random(distance_BI.shape, dtype=np.float32)
    return (
        _least(distance_BI, right_BI),
        _least(distance_BI, wrong_BI),
        _drawn(distance_BI, right_BI, draw_BI),
        _drawn(distance_BI, wrong_BI, draw_BI),
    )


def _least(distance_BI: np.ndarray, among_BI: np.ndarray) -> np.ndarray:
    least_B = np.where(among_BI, distance_BI, np.inf).min(axis=1)
    return np.where(np.isfinite(least_B), least_B, np.nan)


def _drawn(distance_BI: np.ndarray, among_BI: np.ndarray, draw_BI: np.ndarray) -> np.ndarray:
    place_B = np.where(among_BI, draw_BI, -1).argmax(axis=1)
    value_B = np.take_along_axis(distance_BI, place_B[:, None], 1)[:, 0]
    return np.where(among_BI.any(axis=1), value_B, np.nan)
