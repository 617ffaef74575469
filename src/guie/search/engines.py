"""Search an index, exactly or with faiss and exact re-ranking, and measure neighbours' confidence."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import faiss
import numpy as np
import pandas as pd

from guie.base.errors import UserError
from guie.base.files import replacing
from guie.evaluation.knn import ExactIndex, search_threads
from guie.evaluation.rerank import Find
from guie.search.index import FAISS, LISTS, REMEDY, Confidence, Index
from guie.search.regions import BestRegion, Found

CANDIDATES = 4  # times K, re-ranked by exact similarity
FEWEST = 40
TRAINED_ON = 100_000  # vectors, or as many as there are
TRAINED_PER_LIST = 64  # of an inverted file; faiss warns below 39
ADDED = 100_000  # vectors per call

MakeFaiss = Callable[[str, np.ndarray, Path], faiss.Index]


class Engine(Protocol):
    """Nearest rows of an index."""

    def search(self, queries_BD: np.ndarray, k: int, own_B: np.ndarray | None = None) -> Found:
        """Return the K most similar rows, except `own_B` (-1: none); ties go to the lower row."""
        ...


class Flat:
    """Exact search."""

    def __init__(self, vectors_ND: np.ndarray):
        self.vectors_ND = vectors_ND

    @cached_property
    def _exact(self) -> ExactIndex:
        return ExactIndex(np.asarray(self.vectors_ND))

    def search(self, queries_BD: np.ndarray, k: int, own_B: np.ndarray | None = None) -> Found:
        """See `Engine.search`."""
        return self._exact.search(queries_BD, k, own_B)


class Approximate:
    """faiss proposes candidates, which are re-ranked by exact similarity."""

    def __init__(self, faiss_index: faiss.Index, vectors_ND: np.ndarray, probes: int | None):
        self.faiss_index, self.vectors_ND = faiss_index, vectors_ND
        if probes:
            try:
                faiss.ParameterSpace().set_index_parameter(faiss_index, "nprobe", probes)
            except RuntimeError:
                raise UserError(
                    f"--probes {probes}: this --factory has no inverted lists; use an IVF factory, or omit"
                    " --probes"
                ) from None

    def search(self, queries_BD: np.ndarray, k: int, own_B: np.ndarray | None = None) -> Found:
        """See `Engine.search`."""
        count = min(max(CANDIDATES * k, FEWEST), len(self.vectors_ND))
        queries_BD = np.ascontiguousarray(queries_BD, np.float32)
        with search_threads():
            _, rows_BC = self.faiss_index.search(queries_BD, count)
        # Sorted, so that ties go to the lower row and reads are sequential
        rows_BC = np.sort(rows_BC, axis=1)
        if rows_BC.max() >= len(self.vectors_ND) or rows_BC.min() < -1:
            raise UserError(
                f"{FAISS}: damaged, it names rows that the index does not have; {REMEDY}"
            )
        score_BC = np.einsum("bcd,bd->bc", self.vectors_ND[rows_BC], queries_BD)
        score_BC[rows_BC < 0] = -np.inf
        if own_B is not None:
            score_BC[rows_BC == own_B[:, None]] = -np.inf
        order_BK = np.argsort(-score_BC, axis=1, kind="stable")[:, :k]
        rows_BK, score_BK = (np.take_along_axis(x, order_BK, 1) for x in (rows_BC, score_BC))
        return np.where(np.isfinite(score_BK), rows_BK, -1), score_BK


def among(
    vectors_ND: np.ndarray, rows_R: np.ndarray, query_D: np.ndarray, k: int, own: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Search only `rows_R` exactly, and return the K most similar rows and their similarities.

    Vectors are read in place, where faiss' other ways to select rows test every row of the index.

    Args:
        vectors_ND: float32, contiguous; may be memory-mapped.
        rows_R: int64.
        own: a row to leave out. Ties go to the lower row.
    """
    rows_R = np.ascontiguousarray(rows_R, np.int64)
    selector = faiss.IDSelectorArray(rows_R)
    query_D = np.ascontiguousarray(query_D, np.float32)
    search: Any = faiss.knn_inner_product  # its Python signature lacks the selector
    wanted = k + 2  # one more for `own`, and one to see whether the last neighbour is tied
    while True:
        wanted = min(wanted, len(rows_R))
        score_C, row_C = np.empty(wanted, np.float32), np.empty(wanted, np.int64)
        sizes = vectors_ND.shape[1], 1, len(vectors_ND), wanted
        query, vectors, score, row = map(faiss.swig_ptr, (query_D, vectors_ND, score_C, row_C))
        search(query, vectors, *sizes, score, row, selector)
        if wanted == len(rows_R) or score_C[-1] < score_C[k]:
            break
        wanted *= 4
    kept_C = (row_C >= 0) & (row_C != own)
    row_C, score_C = row_C[kept_C], score_C[kept_C]
    order_K = np.lexsort((row_C, -score_C))[:k]
    return row_C[order_K], score_C[order_K]


def within(vectors_ND: np.ndarray, rows_R: np.ndarray) -> Find:
    """Return the search of `among` for several queries, for re-ranking."""

    def find(queries_BD: np.ndarray, k: int, own_B: np.ndarray) -> Found:
        rows_BK = np.full((len(queries_BD), min(k, len(rows_R))), -1)
        score_BK = np.full(rows_BK.shape, -np.inf, np.float32)
        for place, (query_D, own) in enumerate(zip(queries_BD, own_B, strict=True)):
            row_K, score_K = among(vectors_ND, rows_R, query_D, rows_BK.shape[1], int(own))
            rows_BK[place, : len(row_K)], score_BK[place, : len(row_K)] = row_K, score_K
        return rows_BK, score_BK

    return find


def of_images(engine: Engine, regions: int) -> Engine:
    """Return a search of images, from one of the vectors of their regions."""
    return BestRegion(engine.search, regions) if regions > 1 else engine


def engine_of(index: Index) -> Engine:
    """Return the search engine of an index's images. Raises UserError if its files are damaged."""
    return of_images(_vector_engine(index), index.facts.regions)


def _vector_engine(index: Index) -> Engine:
    vectors_ND = index.vectors_ND
    if index.facts.factory is None:
        return Flat(vectors_ND)
    path = index.data / FAISS
    found = _read(path)
    if (found.ntotal, found.d) != vectors_ND.shape:
        raise UserError(
            f"{path}: has {found.ntotal} vectors of dimension {found.d}, but the index has"
            f" {vectors_ND.shape}; {REMEDY}"
        )
    return Approximate(found, vectors_ND, index.facts.probes)


def _read(path: Path) -> faiss.Index:
    """Memory-map the index; inverted lists of merged shards are in a separate file next to it."""
    merged = path.with_name(LISTS).exists()
    flags = faiss.IO_FLAG_ONDISK_SAME_DIR if merged else faiss.IO_FLAG_MMAP
    try:
        return faiss.read_index(str(path), flags)
    except RuntimeError as error:
        raise UserError(
            f"{path}: cannot be read by faiss ({_last_words(error)}); {REMEDY}"
        ) from None


def trained(factory: str, vectors_ND: np.ndarray) -> faiss.Index:
    """Return an empty faiss index trained on a sample: 64 vectors for each list of an inverted file.

    Raises UserError for an invalid factory string.
    """
    dim = vectors_ND.shape[1]
    try:
        made = faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT)
        if not made.is_trained:
            inverted = faiss.try_extract_index_ivf(made)
            lists = inverted.nlist if inverted is not None else 0
            count = min(len(vectors_ND), max(TRAINED_ON, TRAINED_PER_LIST * lists))
            rows = np.random.default_rng(0).choice(len(vectors_ND), count, replace=False)
            with search_threads():
                made.train(np.ascontiguousarray(vectors_ND[np.sort(rows)], np.float32))
    except RuntimeError as error:
        raise UserError(
            f"--factory {factory}: faiss rejects it for {len(vectors_ND):,} vectors of dimension {dim}:"
            f" {_last_words(error)}"
        ) from None
    return made


def filled(factory: str, vectors_ND: np.ndarray, data: Path) -> faiss.Index:
    """Return a faiss index of all vectors, added in blocks, and write it to the folder."""
    made = trained(factory, vectors_ND)
    for start in range(0, len(vectors_ND), ADDED):
        with search_threads():
            made.add(np.ascontiguousarray(vectors_ND[start : start + ADDED], np.float32))
    with replacing(data / FAISS) as temporary:
        faiss.write_index(made, str(temporary))
    return made


def _last_words(error: RuntimeError) -> str:
    return str(error).strip().splitlines()[-1].rpartition("Error: ")[2]


SAMPLE = 2000
STEPS = 50
FEWEST_PAIRS = 20  # minimum number of images for a measurement


def measure_confidence(
    files: pd.DataFrame, vectors_ND: np.ndarray, engine: Engine
) -> Confidence | None:
    """Measure what `sure` needs; None for too few images.

    Only images that share a label with another image count, as the others have no right neighbour. An
    image for which an approximate engine finds no other image does not count either.
    """
    labels = files["label"].to_numpy(object)
    sizes = files["label"].value_counts()
    known = files["label"].ne("") & (files["label"].map(sizes) > 1)
    labelled = int(known.sum()) >= FEWEST_PAIRS
    rows = np.flatnonzero(known) if labelled else np.arange(len(files))
    if len(rows) < FEWEST_PAIRS:
        return None
    rows = np.sort(np.random.default_rng(0).permutation(rows)[:SAMPLE])
    found_B1, score_B1 = engine.search(np.asarray(vectors_ND[rows]), 1, rows)
    is_found_B = found_B1[:, 0] >= 0
    if is_found_B.sum() < FEWEST_PAIRS:
        return None
    rows, found_B, score_B = (
        each_B[is_found_B] for each_B in (rows, found_B1[:, 0], score_B1[:, 0].astype(float))
    )
    grid = np.quantile(score_B, np.linspace(0, 1, STEPS))
    if not labelled:
        return {"labelled": False, "pictures": len(rows), "similarity": grid.round(5).tolist()}
    right_B = [_share(labels[row], labels[found]) for row, found in zip(rows, found_B, strict=True)]
    # Imported here, as a query does not need it, and scikit-learn takes a second.
    from sklearn.isotonic import IsotonicRegression

    fitted = IsotonicRegression(out_of_bounds="clip").fit(score_B, right_B)
    shares = fitted.predict(grid)
    return {
        "labelled": True,
        "pictures": len(rows),
        "right": round(float(np.mean(right_B)), 4),
        "similarity": grid.round(5).tolist(),
        "share": shares.round(4).tolist(),
    }


def sure(sureness: Confidence | None, similarity: float) -> float | None:
    """Return the confidence of a neighbour, 0 to 1; None if it was not measured.

    With labels: among images with an equally close neighbour, the fraction whose neighbour has the same
    label. Without labels: the fraction of images whose own nearest neighbour is farther away.
    """
    if sureness is None:
        return None
    grid = sureness["similarity"]
    values = sureness["share"] if sureness["labelled"] else np.linspace(0, 1, len(grid))
    return float(np.interp(similarity, grid, values))


def describe(sureness: Confidence | None) -> str:
    """Describe the value of `sure` in words."""
    if sureness is None:
        return "too few images to measure confidence"
    if sureness["labelled"]:
        return f"share of {sureness['pictures']:,} images with an equally close neighbour of the same label"
    return f"share of {sureness['pictures']:,} images whose own nearest neighbour is farther away"


def _share(label: str, other: str) -> bool:
    return not set(label.split("|")).isdisjoint(other.split("|"))
