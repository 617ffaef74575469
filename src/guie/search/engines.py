"""How an index is searched (exactly, or by faiss with exact distances), and the confidence of a neighbour."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Protocol

import faiss
import numpy as np
import pandas as pd
from sklearn.isotonic import IsotonicRegression

from guie.base.errors import UserError
from guie.base.files import replacing
from guie.evaluation.knn import ExactIndex
from guie.search.index import FAISS, LISTS, REMEDY, Confidence, Index

CANDIDATES = 4  # times K, of which the exact distances decide
FEWEST = 40
TRAINED_ON = 100_000  # vectors at most
ADDED = 100_000  # vectors at once

MakeFaiss = Callable[[str, np.ndarray, Path], faiss.Index]
Found = tuple[np.ndarray, np.ndarray]  # rows (B, K), -1 where there is none, and similarities


class Engine(Protocol):
    """Nearest rows of an index."""

    def search(self, queries_BD: np.ndarray, k: int, own_B: Sequence[int] | None = None) -> Found:
        """The K most similar rows, of equal ones the lower row, without each query's own."""
        ...


class Flat:
    """Exact."""

    def __init__(self, vectors_ND: np.ndarray):
        self.vectors_ND = vectors_ND

    @cached_property
    def _exact(self) -> ExactIndex:
        return ExactIndex(np.asarray(self.vectors_ND))

    def search(self, queries_BD: np.ndarray, k: int, own_B: Sequence[int] | None = None) -> Found:
        """See `Engine.search`."""
        hidden = (np.arange(len(own_B)), np.asarray(own_B)) if own_B is not None else None
        return self._exact.search(queries_BD, k, hidden)


class Approximate:
    """faiss names candidates, and their exact similarities decide."""

    def __init__(self, faiss_index: faiss.Index, vectors_ND: np.ndarray, probes: int | None):
        self.faiss_index, self.vectors_ND = faiss_index, vectors_ND
        if probes:
            try:
                faiss.ParameterSpace().set_index_parameter(faiss_index, "nprobe", probes)
            except RuntimeError:
                raise UserError(
                    f"--probes {probes}: this --factory has no inverted lists; take IVF..., or leave it out"
                ) from None

    def search(self, queries_BD: np.ndarray, k: int, own_B: Sequence[int] | None = None) -> Found:
        """See `Engine.search`."""
        count = min(max(CANDIDATES * k, FEWEST), len(self.vectors_ND))
        queries_BD = np.ascontiguousarray(queries_BD, np.float32)
        _, rows_BC = self.faiss_index.search(queries_BD, count)
        # Of equal ones the lower row; nearby ones are read together
        rows_BC = np.sort(rows_BC, axis=1)
        if rows_BC.max() >= len(self.vectors_ND) or rows_BC.min() < -1:
            raise UserError(f"{FAISS}: damaged, it names rows that the index has not; {REMEDY}")
        score_BC = np.einsum("bcd,bd->bc", self.vectors_ND[rows_BC], queries_BD)
        score_BC[rows_BC < 0] = -np.inf
        if own_B is not None:
            score_BC[rows_BC == np.asarray(own_B)[:, None]] = -np.inf
        order_BK = np.argsort(-score_BC, axis=1, kind="stable")[:, :k]
        rows_BK, score_BK = (np.take_along_axis(x, order_BK, 1) for x in (rows_BC, score_BC))
        return np.where(np.isfinite(score_BK), rows_BK, -1), score_BK


def among(
    vectors_ND: np.ndarray, rows_R: np.ndarray, query_D: np.ndarray, k: int, own: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The K most similar of some rows to one query, exactly: rows and similarities."""
    score_R = np.asarray(vectors_ND[rows_R]) @ query_D
    if own is not None:
        score_R[rows_R == own] = -np.inf
    order_K = np.argsort(-score_R, kind="stable")[:k]
    order_K = order_K[score_R[order_K] > -np.inf]
    return rows_R[order_K], score_R[order_K]


def engine_of(index: Index) -> Engine:
    """What searches an index. Raises UserError where its files are not whole."""
    vectors_ND = index.vectors()
    if index.facts.factory is None:
        return Flat(vectors_ND)
    path = index.data / FAISS
    found = _read(path)
    if (found.ntotal, found.d) != vectors_ND.shape:
        raise UserError(
            f"{path}: {found.ntotal} vectors of {found.d} numbers, the index is of {vectors_ND.shape};"
            f" {REMEDY}"
        )
    return Approximate(found, vectors_ND, index.facts.probes)


def _read(path: Path) -> faiss.Index:
    """Mapped: inverted lists of its own file, or those beside it that shards were merged into."""
    merged = path.with_name(LISTS).exists()
    flags = faiss.IO_FLAG_ONDISK_SAME_DIR if merged else faiss.IO_FLAG_MMAP
    try:
        return faiss.read_index(str(path), flags)
    except RuntimeError as error:
        raise UserError(
            f"{path}: cannot be read by faiss ({_last_words(error)}); {REMEDY}"
        ) from None


def trained(factory: str, vectors_ND: np.ndarray, seed: int = 0) -> faiss.Index:
    """An empty faiss index of that kind, trained on a sample. Raises UserError for an unknown string."""
    dim = vectors_ND.shape[1]
    try:
        made = faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT)
        if not made.is_trained:
            count = min(len(vectors_ND), TRAINED_ON)
            rows = np.random.default_rng(seed).choice(len(vectors_ND), count, replace=False)
            made.train(np.ascontiguousarray(vectors_ND[np.sort(rows)], np.float32))
    except RuntimeError as error:
        raise UserError(
            f"--factory {factory}: faiss refuses it for {len(vectors_ND):,} vectors of {dim} numbers:"
            f" {_last_words(error)}"
        ) from None
    return made


def filled(factory: str, vectors_ND: np.ndarray, data: Path) -> faiss.Index:
    """faiss' index of all vectors, added some at a time; written to the folder, too."""
    made = trained(factory, vectors_ND)
    for start in range(0, len(vectors_ND), ADDED):
        made.add(np.ascontiguousarray(vectors_ND[start : start + ADDED], np.float32))
    with replacing(data / FAISS) as temporary:
        faiss.write_index(made, str(temporary))
    return made


def _last_words(error: RuntimeError) -> str:
    return str(error).strip().splitlines()[-1].rpartition("Error: ")[2]


SAMPLE = 2000
STEPS = 50
FEWEST_PAIRS = 20  # pictures that something is said by


def measure_confidence(
    files: pd.DataFrame, vectors_ND: np.ndarray, engine: Engine, seed: int = 0
) -> Confidence | None:
    """What `sure` needs, as JSON; None of too few pictures.

    Only pictures that share their label with another one count: of the others no neighbour is right.
    """
    labels = files["label"].to_numpy(object)
    sizes = files["label"].value_counts()
    known = files["label"].ne("") & (files["label"].map(sizes) > 1)
    labelled = int(known.sum()) >= FEWEST_PAIRS
    rows = np.flatnonzero(known) if labelled else np.arange(len(files))
    if len(rows) < FEWEST_PAIRS:
        return None
    rows = np.sort(np.random.default_rng(seed).permutation(rows)[:SAMPLE])
    found_B1, score_B1 = engine.search(np.asarray(vectors_ND[rows]), 1, rows.tolist())
    score_B = score_B1[:, 0].astype(float)
    grid = np.quantile(score_B, np.linspace(0, 1, STEPS))
    if not labelled:
        return {"labelled": False, "pictures": len(rows), "similarity": grid.round(5).tolist()}
    right_B = [
        _share(labels[row], labels[found]) for row, found in zip(rows, found_B1[:, 0], strict=True)
    ]
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
    """From 0 to 1; None where nothing is known.

    Of labels known: the share of pictures whose nearest neighbour was so near and had their label. Else
    the share of pictures whose own nearest neighbour lies farther away.
    """
    if sureness is None:
        return None
    grid = sureness["similarity"]
    values = sureness["share"] if sureness["labelled"] else np.linspace(0, 1, len(grid))
    return float(np.interp(similarity, grid, values))


def describe(sureness: Confidence | None) -> str:
    """What `sure` says, in words."""
    if sureness is None:
        return "too few pictures to say how sure a neighbour is"
    if sureness["labelled"]:
        return f"share of {sureness['pictures']:,} pictures with so near a neighbour that had its label"
    return f"share of {sureness['pictures']:,} pictures whose own nearest neighbour is farther away"


def _share(label: str, other: str) -> bool:
    return not set(label.split("|")).isdisjoint(other.split("|"))
