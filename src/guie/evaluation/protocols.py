"""Research protocols: who is searched where, and how values become a report.

Queries are the rows of a split whose role is `query` or `both`; the index is its `index` and
`both` rows, of all domains together ("merged", also called common or unified index) or of the
query's domain alone ("separate"). Relevant is what shares a label, in whatever domain: labels are
globally unique.

Shape legend: T rows of the table, Q queries, B queries of one block, I index images, K ranks,
D dimensions, N rows of a file, P pairs (query, index image) of one and the same image.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tqdm import tqdm

from guie.base.errors import UserError
from guie.evaluation import metrics

INDEXES = ("merged", "separate")
HARMONIC = ("r_at_1", "map_at_r", "r_precision")
BLOCK_QUERIES = 1024
BLOCK_SIMILARITIES = 2**25  # float32: 128 MiB

Measure = Callable[[np.ndarray, np.ndarray], dict[str, np.ndarray]]


def evaluate(
    embeddings_TD: np.ndarray, table: pd.DataFrame, index: str = "merged"
) -> dict[str, Any]:
    """Score one split under a research protocol.

    Args:
        embeddings_TD: float32 or float16, row t for row t of the table; compared by cosine.
        table: the manifest's rows of one split: image_path, label, domain, role.
        index: "merged" or "separate".

    Returns:
        The content of `report.json`: `mean` over domains (UnED's headline), `pooled` over queries
        (the challenge's number) and each of `domains`, whose `queries` counts all queries and
        `queries_without_positive` those among them that no metric includes. A domain in which none
        is left has None for every metric, and no part in the mean.

    Raises:
        UserError: no query has a positive, or an embedding is not finite.
        ValueError: unknown index, or not one embedding for each row.
    """
    if index not in INDEXES:
        raise ValueError(f"index is {index!r}, not one of {INDEXES}")
    images = _Images.build(embeddings_TD, table)
    pools = [np.ones(len(table), dtype=bool)]
    if index == "separate":
        pools = [(table["domain"] == name).to_numpy() for name in table["domain"].unique()]
    scores = pd.concat([_score(images, pool_T, metrics.ranking_metrics) for pool_T in pools])
    domains, counts = _by_domain(scores, table)
    mean = domains.mean()
    for key in HARMONIC:
        mean[f"harmonic_{key}"] = metrics.harmonic_mean(domains[key].dropna())
    return {
        "mean": _plain(mean),
        "pooled": _plain(scores.mean()),
        "domains": {d: _plain(domains.loc[d]) | counts.loc[d].to_dict() for d in domains.index},
        "index": index,
        "dimension": embeddings_TD.shape[1],
    }


def quick_scores(embeddings_TD: np.ndarray, table: pd.DataFrame) -> dict[str, Any]:
    """R@1 and mMP@5 over the merged index, cheap enough for validation during training.

    Returns {"r_at_1", "mmp_at_5", "domains": {name: {"r_at_1", "mmp_at_5"}}}; the first two are
    means over the domains, equal to `evaluate(...)["mean"]`. Arguments and errors as there.
    """

    def measure(relevant_QK: np.ndarray, positives_Q: np.ndarray) -> dict[str, np.ndarray]:
        return {
            "r_at_1": metrics.r_at_1(relevant_QK),
            "mmp_at_5": metrics.mmp_at_5(relevant_QK, positives_Q),
        }

    images = _Images.build(embeddings_TD, table)
    scores = _score(images, np.ones(len(table), dtype=bool), measure, depth=5)
    domains, _ = _by_domain(scores, table)
    return _plain(domains.mean()) | {"domains": {d: _plain(domains.loc[d]) for d in domains.index}}


def load_embeddings(path: str | Path, table: pd.DataFrame) -> np.ndarray:
    """Read an E.npz as `embed.py` writes it and `align` it to the table. Raises UserError."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{path}: no .npz of plain arrays; write it with embed.py") from error
    return align(arrays, table, source=str(path))


def align(
    arrays: Mapping[str, np.ndarray], table: pd.DataFrame, source: str = "embeddings"
) -> np.ndarray:
    """Put embeddings into the table's order, by image_path: [T, D], dtype kept.

    Args:
        arrays: `image_path` (str, [N]) and `embedding` (float32 or float16, [N, D]), in any order.
            Images that the table does not name are ignored; one may repeat if its rows are equal.
        table: rows with image_path; an image may stand in several.
        source: the file's name, for messages.

    Raises:
        UserError: a wrong key, type or shape; an image that is missing, not finite, or given twice
            with two embeddings.
    """
    path_N, embedding_ND = _checked(arrays, source)
    wanted = pd.Index(table["image_path"].unique())
    place_N = wanted.get_indexer(path_N)
    named_N = place_N >= 0
    path_N, embedding_ND, place_N = path_N[named_N], embedding_ND[named_N], place_N[named_N]
    _norms(embedding_ND, path_N, source)
    row_of = np.full(len(wanted), -1)
    row_of[place_N] = np.arange(len(place_N))
    clash_N = (embedding_ND != embedding_ND[row_of[place_N]]).any(axis=1)
    _refuse(path_N[clash_N], f"{source}: a second, other embedding", "embed each image once")
    _refuse(wanted[row_of < 0], f"{source}: no embedding", "embed this manifest and split")
    return embedding_ND[row_of[wanted.get_indexer(table["image_path"])]]


def _checked(arrays: Mapping[str, np.ndarray], source: str) -> tuple[np.ndarray, np.ndarray]:
    for key in ("image_path", "embedding"):
        if key not in arrays:
            raise UserError(f"{source}: no array {key!r} among {sorted(arrays)}; run embed.py")
    path_N, embedding_ND = arrays["image_path"], arrays["embedding"]
    if path_N.dtype.kind != "U" or path_N.ndim != 1:
        raise UserError(f"{source}: image_path is {_kind(path_N)}; must be str of shape [N]")
    if embedding_ND.dtype not in (np.float32, np.float16):
        raise UserError(f"{source}: embedding is {_kind(embedding_ND)}; must be float32 or float16")
    if embedding_ND.ndim != 2 or len(embedding_ND) != len(path_N) or not embedding_ND.shape[1]:
        raise UserError(
            f"{source}: embedding is {_kind(embedding_ND)}; must have shape [{len(path_N)}, D],"
            " one row for each image_path"
        )
    return path_N, embedding_ND


def _kind(array: np.ndarray) -> str:
    return f"{array.dtype} of shape {list(array.shape)}"


def _refuse(paths: Sequence[str], fault: str, remedy: str) -> None:
    if len(paths):
        raise UserError(f"{fault} for {len(paths)} image(s), first {str(paths[0])!r}; {remedy}")


def _norms(embeddings_ND: np.ndarray, path_N: np.ndarray, source: str = "embeddings") -> np.ndarray:
    with np.errstate(over="ignore"):
        norm_N = np.linalg.norm(embeddings_ND.astype(np.float32, copy=False), axis=1)
    fault = f"{source}: a value that is not finite, or too large,"
    _refuse(path_N[~np.isfinite(norm_N)], fault, "look for a NaN in the model")
    return norm_N


@dataclass(frozen=True)
class _Images:
    """The rows T of one split as arrays."""

    unit_TD: np.ndarray
    image_T: np.ndarray  # one number for each image, however many rows it has
    labels: metrics.LabelSets
    is_query_T: np.ndarray
    is_index_T: np.ndarray

    @classmethod
    def build(cls, embeddings_TD: np.ndarray, table: pd.DataFrame) -> _Images:
        if len(embeddings_TD) != len(table):
            raise ValueError(f"{len(embeddings_TD)} embeddings for {len(table)} rows")
        norm_T = _norms(embeddings_TD, table["image_path"].to_numpy())
        norm_T[norm_T == 0] = 1  # a zero vector stays zero: as near to one image as to any other
        return cls(
            unit_TD=embeddings_TD.astype(np.float32) / norm_T[:, None],
            image_T=pd.factorize(table["image_path"])[0],
            labels=metrics.LabelSets(table["label"]),
            is_query_T=table["role"].isin(["query", "both"]).to_numpy(),
            is_index_T=table["role"].isin(["index", "both"]).to_numpy(),
        )

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


def _score(
    images: _Images, pool_T: np.ndarray, measure: Measure, depth: int | None = None
) -> pd.DataFrame:
    """Metrics of each query of a pool, by its row T; NaN for a query without positives.

    `depth` neighbours are ranked; None means as many as the full set of metrics needs.
    """
    query_Q = np.flatnonzero(pool_T & images.is_query_T)
    index_I = np.flatnonzero(pool_T & images.is_index_T)
    positives_Q = images.count_positives(query_Q, index_I)
    # Sorted, so that only the blocks of large classes are searched deeply.
    order = np.argsort(positives_Q, kind="stable")
    order = order[positives_Q[order] > 0]
    if not len(order):
        return pd.DataFrame(index=query_Q)
    asked_Q, positives_Q = query_Q[order], positives_Q[order]
    parts = [
        pd.DataFrame(measure(relevant_BK, positives_Q[block]), index=asked_Q[block])
        for block, relevant_BK in _ranked(images, asked_Q, index_I, positives_Q, depth)
    ]
    return pd.concat(parts).reindex(query_Q)


def _ranked(
    images: _Images,
    query_Q: np.ndarray,
    index_I: np.ndarray,
    positives_Q: np.ndarray,
    depth: int | None,
) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield, block by block, which ranks are relevant: [B, K], the query's own image left out."""
    index = metrics.ExactIndex(images.unit_TD[index_I])
    own_P, place_P = images.same_image(query_Q, index_I)
    step = int(np.clip(BLOCK_SIMILARITIES // len(index_I), 1, BLOCK_QUERIES))
    for start in tqdm(range(0, len(query_Q), step), "search", delay=5, disable=None):
        block = slice(start, start + step)
        pairs = slice(*np.searchsorted(own_P, [start, start + step]))
        k = depth or max(metrics.RANKING_DEPTH, positives_Q[block].max())
        unit_BD = images.unit_TD[query_Q[block]]
        found_BK = index.search(unit_BD, k, (own_P[pairs] - start, place_P[pairs]))
        relevant_BK = images.labels.shared(query_Q[block], index_I[found_BK])
        yield block, relevant_BK & (found_BK >= 0)


def _by_domain(scores: pd.DataFrame, table: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Means over the scored queries of each domain, and its counts of queries."""
    if scores.dropna().empty:
        raise UserError(
            f"none of {len(scores)} queries has a positive in the index;"
            " look at the columns label and role"
        )
    groups = scores.groupby(table["domain"].to_numpy()[scores.index])
    without = groups.size() - groups["r_at_1"].count()
    return groups.mean(), pd.DataFrame(
        {"queries": groups.size(), "queries_without_positive": without}
    )


def _plain(values: pd.Series) -> dict[str, float | None]:
    return {key: None if np.isnan(value) else float(value) for key, value in values.items()}
