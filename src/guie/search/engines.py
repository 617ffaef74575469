"""Find the nearest images of an index: exactly, by faiss over all vectors, or by Lance's index on disk.

Shapes: N images, R regions of each, D dimensions, B queries, K neighbours, C candidates.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

import numpy as np
import pandas as pd

from guie.base.files import shown
from guie.data.regions import regions_of
from guie.evaluation.confidence import measure, sure, to_measure
from guie.evaluation.knn import ExactIndex
from guie.evaluation.rerank import Reranker
from guie.search.table import ABOUT, UNREADABLE, VECTOR, Facts, Index, faults, quoted, vectors_of

PROBES = 32  # lists of Lance's index that a query reads
RECALLED = 100  # images for measuring its recall
Domains = tuple[str, ...] | None  # None: all


@dataclass(frozen=True)
class Hit:
    """A neighbour. `distance`: Euclidean, of unit vectors; `sure`: see `guie.evaluation.confidence`.

    `region`: left, top, right and bottom of the nearest part, in shares of the image; None for the whole.
    """

    image_path: str
    domain: str
    label: str
    similarity: float
    distance: float
    sure: float | None
    region: tuple[float, float, float, float] | None = None

    @property
    def description(self) -> str:
        """The line that search.py prints."""
        sure = "" if self.sure is None else f"  sure {self.sure:.2f}"
        about = f"  {self.label or self.domain}" if self.label or self.domain else ""
        part = f"  at {','.join(f'{at:.2f}' for at in self.region)}" if self.region else ""
        return f"  {self.distance:.3f}{sure}  {shown(self.image_path)}{about}{part}"

    @classmethod
    def of(cls, facts: Facts, about: Sequence[str], similarity: float, region: int) -> Self:
        """Return a neighbour by its path, domain and label, and the number of its nearest region."""
        left, top, side = regions_of(facts.regions)[region]
        part = (left, top, left + side, top + side) if region else None
        path, domain, label = about
        distance = math.sqrt(max(0.0, 2 - 2 * similarity))
        confidence = sure(facts.confidence, similarity)
        return cls(path, domain, label, similarity, distance, confidence, part)


class Exact:
    """Exact search over all vectors, in memory; ties go to the lower path.

    Attributes: `files`, image_path, domain and label of each image, sorted by path; `vectors_ND`, (N R, D).
    """

    def __init__(self, index: Index):
        rows, self.facts = index.read([*ABOUT, VECTOR]), index.facts
        self.regions = self.facts.regions
        firsts = np.arange(0, len(rows), self.regions)
        self.files = rows.select(ABOUT).take(firsts).to_pandas()
        self.vectors_ND = vectors_of(rows)
        self._paths = pd.Index(self.files["image_path"])
        self.search_of = lru_cache(maxsize=4)(self._search_of)
        self.rerankers: dict[Domains, Reranker] = {}  # of the searcher

    def _search_of(self, domains: Domains) -> tuple[ExactIndex, np.ndarray]:
        """Return a search of the vectors of some domains, and the (R,) rows of their images."""
        if domains is None:
            return ExactIndex(self.vectors_ND), np.arange(len(self.files))
        rows_R = np.flatnonzero(self.files["domain"].isin(domains))
        images = self.vectors_ND.reshape(len(self.files), self.regions, -1)[rows_R]
        return ExactIndex(images.reshape(-1, self.vectors_ND.shape[1])), rows_R

    def rows_of(self, paths: Sequence[str | None]) -> np.ndarray:
        """Return the rows of images, -1 for a path that is not in the index."""
        return self._paths.get_indexer(np.asarray(paths, object))

    def vectors(self, paths: Sequence[str]) -> np.ndarray:
        """Return the vectors (B, D) of whole images; a path that is not in the index has none."""
        rows_B = self.rows_of(paths)
        return self.vectors_ND[rows_B[rows_B >= 0] * self.regions]

    def find(
        self, queries_BD: np.ndarray, k: int, own_B: np.ndarray, domains: Domains = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of the nearest images, as `guie.evaluation.rerank.Find` does."""
        exact, rows_R = self.search_of(domains)
        # k images and the query's own have no more vectors than these.
        vector_BC, score_BC = exact.search(queries_BD, (k + 1) * self.regions)
        rows_BK = np.full((len(queries_BD), min(k, len(rows_R))), -1)
        score_BK = np.full(rows_BK.shape, -np.inf, np.float32)
        for place, own in enumerate(own_B):
            image_C = rows_R[vector_BC[place] // self.regions]
            first_C = np.unique(image_C, return_index=True)[1]
            kept_K = np.sort(first_C[image_C[first_C] != own])[:k]
            rows_BK[place, : len(kept_K)] = image_C[kept_K]
            score_BK[place, : len(kept_K)] = score_BC[place, kept_K]
        return rows_BK, score_BK

    def near(
        self,
        queries_BD: np.ndarray,
        k: int,
        own: Sequence[str | None] | None = None,
        domains: Domains = None,
    ) -> list[list[Hit]]:
        """Return the nearest images of each query, without its own image."""
        own_B = np.full(len(queries_BD), -1) if own is None else self.rows_of(own)
        rows_BK, score_BK = self.find(queries_BD, k, own_B, domains)
        found = zip(queries_BD, rows_BK, score_BK, strict=True)
        return [self.found(query_D, rows_K, score_K) for query_D, rows_K, score_K in found]

    def found(self, query_D: np.ndarray, rows_K: np.ndarray, score_K: np.ndarray) -> list[Hit]:
        """Return neighbours by their rows; -1 is none."""
        rows_K, score_K = rows_K[rows_K >= 0], score_K[rows_K >= 0].tolist()
        images = self.vectors_ND.reshape(len(self.files), self.regions, -1)[rows_K]
        region_K = np.argmax(images @ query_D, axis=1).tolist()
        about = self.files.iloc[rows_K].itertuples(index=False, name=None)
        return [Hit.of(self.facts, *one) for one in zip(about, score_K, region_K, strict=True)]


class Approximate:
    """Search by Lance, which reads parts of its index from the disk; exact within domains."""

    def __init__(self, index: Index):
        self.index, self.regions = index, index.facts.regions

    def vectors(self, paths: Sequence[str]) -> np.ndarray:
        """Return the vectors of whole images (B, D), by path."""
        here = f"region = 0 and image_path in {quoted(paths)}"
        return vectors_of(self.index.read([VECTOR], here))

    def near(
        self,
        queries_BD: np.ndarray,
        k: int,
        own: Sequence[str | None] | None = None,
        domains: Domains = None,
        exact: bool = False,
    ) -> list[list[Hit]]:
        """Return the nearest images of each query, without its own image."""
        table: Any = self.index.table  # its types do not know which query a vector makes
        query = table.search([*queries_BD]).distance_type("dot").nprobes(PROBES)
        if domains is not None:
            query = query.where(f"domain in {quoted(domains)}")
        if exact or domains is not None:
            query = query.bypass_vector_index()
        query = query.select([*ABOUT, "region", "_distance"]).limit((k + 1) * self.regions)
        with faults(self.index.name, UNREADABLE):
            rows = query.to_pandas()
        if "query_index" not in rows:  # of a single query
            rows = rows.assign(query_index=0)
        rows = rows.sort_values(["query_index", "_distance", "image_path", "region"])
        rows = rows.drop_duplicates(["query_index", "image_path"])
        found: list[list[Hit]] = [[] for _ in queries_BD]
        columns = ["query_index", "_distance", "region", *ABOUT]
        for number, distance, region, *about in rows[columns].itertuples(index=False):
            if len(found[number]) < k and (own is None or about[0] != own[number]):
                found[number].append(Hit.of(self.index.facts, about, 1 - distance, region))
        return found


def engine_of(index: Index) -> Exact | Approximate:
    """Return the search of an index."""
    return Approximate(index) if index.facts.ann else Exact(index)


def measured(index: Index) -> dict[str, Any]:
    """Return the `confidence` of an index's neighbours, and the `recall` of an approximate search."""
    engine, files = engine_of(index), index.read(ABOUT, "region = 0").to_pandas()
    rows, labelled = to_measure(files["label"].to_numpy(object))
    paths = files["image_path"].to_numpy(object)[rows].tolist()
    vectors_BD = engine.vectors(paths)
    nearest = engine.near(vectors_BD, 1, paths)
    pairs = [(row, hits[0]) for row, hits in zip(rows, nearest, strict=True) if hits]
    label_B = [files["label"][row] for row, _ in pairs]
    found = [hit.label for _, hit in pairs], [hit.similarity for _, hit in pairs]
    facts: dict[str, Any] = {"confidence": measure(label_B, *found, labelled), "changed": 0}
    if isinstance(engine, Approximate):
        some = vectors_BD[:RECALLED], 10, paths[:RECALLED]
        shares = [
            len({hit.image_path for hit in near} & {hit.image_path for hit in true}) / len(true)
            for near, true in zip(engine.near(*some), engine.near(*some, exact=True), strict=True)
            if true
        ]
        facts["recall"] = float(np.mean(shares)) if shares else 1.0
    return facts
