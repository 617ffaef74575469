"""Score rankings as ILIAS does; read and write its ranking files.

Shapes: T rows of a table, Q queries, K ranks, N images of one ranking.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from tqdm import tqdm

from guie.base.errors import UserError
from guie.base.files import refuse_special, replacing
from guie.evaluation.files import Embeddings
from guie.evaluation.knn import NOTHING, block_size
from guie.evaluation.search import Images, rankings, searches

DEPTH = 1000
MOST_QUERIES = 256  # in one block
FORMAT = "the format is JSON {query: {image: score}}"


def map_at_1k(
    relevant_QK: np.ndarray, positives_Q: np.ndarray, similarity_QK: np.ndarray
) -> np.ndarray:
    """Return ILIAS's mAP@1k, one value a query: sum of P(i) rel(i) for i <= 1000, over min(n, 1000).

    The ILIAS code multiplies scikit-learn's average precision of the first 1000 by the number found
    over min(n, 1000); 0 if none is found. scikit-learn treats equal similarities as one step: each
    relevant image among them gets the precision at their end. Everywhere else in this package, such
    images count one after the other.

    Args:
        relevant_QK: bool, whether the image at this rank is relevant. Ranks above 1000 are ignored.
        positives_Q: number of relevant images in the index.
        similarity_QK: descending along a row.

    Returns:
        [Q]; NaN without positives.
    """
    relevant_QK, similarity_QK = relevant_QK[:, :DEPTH], similarity_QK[:, :DEPTH]
    # For each rank, the last rank with the same similarity
    last = similarity_QK.shape[1] - 1
    end_QK = np.full(similarity_QK.shape, last)
    tied_QK = similarity_QK[:, 1:] == similarity_QK[:, :-1]
    end_QK[:, :-1] = np.where(tied_QK, last, np.arange(last))
    end_QK = np.minimum.accumulate(end_QK[:, ::-1], axis=1)[:, ::-1]
    hits_QK = np.take_along_axis(relevant_QK.cumsum(axis=1), end_QK, axis=1)
    precision_Q = (hits_QK / (end_QK + 1) * relevant_QK).sum(axis=1)
    return precision_Q / np.minimum(positives_Q, DEPTH)


@dataclass(frozen=True)
class Rankings:
    """The ranked images of each query, best first.

    Attributes: `query_Q`, rows T; `found_QK`, rows T, -1 for an image outside the index and past the
    end; `score_QK`, descending, -inf past the end.
    """

    query_Q: np.ndarray
    found_QK: np.ndarray
    score_QK: np.ndarray


class JsonObject(NamedTuple):
    """A JSON object as written in the file, with duplicate names."""

    names: list[str]
    values: Any  # a list, or an array of numbers


def names_of(paths: pd.Series) -> pd.Series:
    """Return the name of each image in an ILIAS ranking file."""
    core = paths.str.extract(r"(?:^|/)ilias_core/(.+)$")[0]
    far = paths.str.extract(r"(?:^|/)yfcc100m/([^/]+)/(.+)\.[^./]+$")
    return core.fillna(far[0] + ".tar/" + far[1]).fillna(paths)


def write_rankings(path: Path, embedded: Embeddings, table: pd.DataFrame) -> None:
    """Write the best 1,000 of the merged index for each query, block by block, atomically.

    Args:
        embedded: unit vectors [T, D], or those of each domain's specialist.
        table: rows T of one split.

    Raises UserError if two images would have the same name.
    """
    images = Images.of(table)
    for is_asked_T in (images.is_query_T, images.is_index_T):
        _Named(table, np.flatnonzero(is_asked_T))  # raises if two images share a name
    quoted_T = names_of(table["image_path"]).map(json.dumps).to_numpy()
    (search,) = searches("merged", images, images.domain_T)
    bar = tqdm(total=len(search.query_Q), desc="rankings", delay=5, disable=None)
    with bar, replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        start = "{"
        for ranking in rankings(images, embedded, search):
            for block in ranking.blocks(block_size(DEPTH, MOST_QUERIES)):
                rows_B = ranking.search.query_Q[block]
                found_BK, score_BK = ranking.nearest(block, DEPTH)
                for row, found_K, score_K in zip(rows_B, found_BK, score_BK, strict=True):
                    scores = zip(quoted_T[found_K], score_K.tolist(), found_K >= 0, strict=True)
                    pairs = ", ".join(
                        f"{name}: {score!r}" for name, score, there in scores if there
                    )
                    file.write(f"{start}\n{quoted_T[row]}: {{{pairs}}}")
                    start = ","
                bar.update(len(rows_B))
        file.write("\n}\n")


def read_rankings(path: Path, table: pd.DataFrame, unlisted: bool = False) -> Rankings:
    """Read the rankings of every query of the table; ties keep the order of the file.

    A query's own image is removed from its ranking.

    Args:
        unlisted: count images outside the index as negatives, like ILIAS's code; otherwise they
            raise UserError.

    Raises UserError for invalid JSON, a query or image that is not in the table or is duplicated, a
    missing query, or a score that is not a number.
    """
    given, images = _read(path), Images.of(table)
    asked_Q = np.flatnonzero(images.is_query_T)
    index = _Named(table, np.flatnonzero(images.is_index_T))
    query_Q = _Named(table, asked_Q).rows(given.names)
    _refuse(path, "not a query of the manifest", given.names, query_Q < 0)
    missing_Q = ~np.isin(asked_Q, query_Q)
    _refuse(path, "no ranking for query", table["image_path"][asked_Q].tolist(), missing_Q)
    _refuse(path, "duplicate query", given.names, pd.Series(query_Q).duplicated().to_numpy())
    found_QK = np.full((len(query_Q), DEPTH), -1)
    score_QK = np.full((len(query_Q), DEPTH), NOTHING)
    for q, (query, row) in enumerate(zip(given.names, query_Q, strict=True)):
        names, score_N = given.values[q]
        if not isinstance(score_N, np.ndarray):
            raise UserError(f"{path}: {query}: a score is not a number; {FORMAT}")
        _refuse(path, f"{query}: score is not finite", names, ~np.isfinite(score_N))
        found_N = index.rows(names)
        if not unlisted:
            _refuse(path, f"{query}: not an index image of the manifest", names, found_N < 0)
        image_N = np.where(found_N < 0, np.array(names, object), found_N)
        again_N = pd.Series(image_N, dtype=object).duplicated().to_numpy()
        _refuse(path, f"{query}: duplicate image", names, again_N)
        own_N = (found_N >= 0) & (images.image_T[found_N] == images.image_T[row])
        order_K = np.argsort(-score_N, kind="stable")
        order_K = order_K[~own_N[order_K]][:DEPTH]
        found_QK[q, : len(order_K)] = found_N[order_K]
        score_QK[q, : len(order_K)] = score_N[order_K]
    return Rankings(query_Q, found_QK, score_QK)


class _Named:
    """Look up rows T by image name. Raises UserError if two images have the same name."""

    def __init__(self, table: pd.DataFrame, row_N: np.ndarray):
        paths = table["image_path"].iloc[row_N]
        names = names_of(paths)
        again = names.duplicated().to_numpy()
        if again.any():
            one, two = paths[(names == names[again].iloc[0]).to_numpy()].iloc[:2]
            raise UserError(f"{one} and {two} have the same name in a ranking file; remove one")
        self.row_N = row_N
        self.names, self.paths = (pd.Index(words, dtype=object) for words in (names, paths))

    def rows(self, names: Sequence[str]) -> np.ndarray:
        """Return the row of each name, -1 if there is none."""
        asked = pd.Index(names, dtype=object)
        place_N = self.names.get_indexer(asked)
        other_N = np.flatnonzero(place_N < 0)
        if len(other_N):
            place_N[other_N] = self.paths.get_indexer(asked[other_N])
        return np.where(place_N < 0, -1, self.row_N[place_N])


def _read(path: Path) -> JsonObject:
    refuse_special(path)
    try:
        with path.open(encoding="utf-8") as file:
            found = json.load(file, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno}: not valid JSON: {error.msg}; {FORMAT}") from None
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{path}: cannot be read ({reason}); {FORMAT}") from None
    fit = isinstance(found, JsonObject) and all(isinstance(v, JsonObject) for v in found.values)
    if not fit:
        raise UserError(f"{path}: not a ranking file; {FORMAT}")
    return found


def _object(pairs: list[tuple[str, Any]]) -> JsonObject:
    """Store numbers as an array: 2,000 rankings of 1,000 images take only their names and 16 MB."""
    names, values = [name for name, _ in pairs], [value for _, value in pairs]
    numbers = all(type(value) in (int, float) for value in values)
    return JsonObject(names, np.array(values, np.float64) if numbers else values)


def _refuse(path: Path, fault: str, names: Sequence[str], bad_N: np.ndarray) -> None:
    """Raise UserError if there is a bad name, with their number and the first."""
    if bad_N.any():
        first = names[int(bad_N.argmax())]
        raise UserError(f"{path}: {fault}: {first!r} ({int(bad_N.sum())} of {len(names)})")
