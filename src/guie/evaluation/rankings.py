"""Rankings in files, as ILIAS has them: JSON {query: {image: score}}, the best 1,000 of each query.

An image is named as that benchmark names it: by what follows `ilias_core/` in its image_path, and an
unpacked distractor `yfcc100m/<shard>/<key>.jpg` by `<shard>.tar/<key>`; any other by its image_path,
which is understood of all.

Shape legend: T rows of the table, Q queries, N images that a query's ranking names, K ranks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from tqdm import tqdm

from guie.base.errors import UserError
from guie.base.files import refuse_special, replacing
from guie.evaluation.neighbours import NOTHING, ExactIndex, block_size
from guie.evaluation.searching import Embedded, Images, searches

DEPTH = 1000
MOST_QUERIES = 256  # of one block
FORMAT = "it holds JSON {query: {image: score}}"


@dataclass(frozen=True)
class Rankings:
    """What was found for each query, best first.

    Attributes: `query_Q`, rows T; `found_QK`, rows T, -1 for an image that the index has not and
    beyond the last; `score_QK`, falling, -inf beyond the last.
    """

    query_Q: np.ndarray
    found_QK: np.ndarray
    score_QK: np.ndarray


class JsonObject(NamedTuple):
    """A JSON object as it stands in the file, a name that comes twice included."""

    names: list[str]
    values: Sequence[Any] | np.ndarray


def names_of(paths: pd.Series) -> pd.Series:
    """The name of each image in a file of rankings."""
    core = paths.str.extract(r"(?:^|/)ilias_core/(.+)$")[0]
    far = paths.str.extract(r"(?:^|/)yfcc100m/([^/]+)/(.+)\.[^./]+$")
    return core.fillna(far[0] + ".tar/" + far[1]).fillna(paths)


def write_rankings(path: Path, embedded: Embedded, table: pd.DataFrame) -> None:
    """Write the best 1,000 of the merged index for each query, block by block, atomically.

    Args:
        embedded: unit vectors [T, D], or those of each domain's specialist.
        table: rows T of one split.

    Raises UserError where two images would have one name.
    """
    images = Images.of(table)
    for rows in (images.is_query_T, images.is_index_T):
        _Named(table, np.flatnonzero(rows))  # which refuses names that are not of one image
    quoted_T = names_of(table["image_path"]).map(json.dumps).to_numpy()
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        start = "{"
        for row, found_K, score_K in _ranked(embedded, images):
            pairs = zip(quoted_T[found_K], score_K.tolist(), strict=True)
            ranking = ", ".join(f"{name}: {score!r}" for name, score in pairs)
            file.write(f"{start}\n{quoted_T[row]}: {{{ranking}}}")
            start = ","
        file.write("\n}\n")


def read_rankings(path: Path, table: pd.DataFrame, unlisted: bool = False) -> Rankings:
    """What a file has found for every query of the table; of equal scores the one that stands first.

    A query's own image is no part of its ranking.

    Args:
        unlisted: images that the index has not are negatives, as ILIAS's code takes them; else they
            are refused.

    Raises UserError: no such JSON, a query or image that the table has not or that stands twice, a
    query that is missing, a score that is no number.
    """
    given, images = _read(path), Images.of(table)
    asked_Q = np.flatnonzero(images.is_query_T)
    index = _Named(table, np.flatnonzero(images.is_index_T))
    query_Q = _Named(table, asked_Q).rows(given.names)
    _refuse(path, "no query of the manifest", given.names, query_Q < 0)
    missing_Q = ~np.isin(asked_Q, query_Q)
    _refuse(path, "no ranking of", table["image_path"][asked_Q].tolist(), missing_Q)
    _refuse(path, "stands twice", given.names, pd.Series(query_Q).duplicated().to_numpy())
    found_QK = np.full((len(query_Q), DEPTH), -1)
    score_QK = np.full((len(query_Q), DEPTH), NOTHING)
    for q, (query, row) in enumerate(zip(given.names, query_Q, strict=True)):
        told = given.values[q]
        score_N, found_N = _scores(path, query, told), _found(path, query, told, index, unlisted)
        own_N = (found_N >= 0) & (images.image_T[found_N] == images.image_T[row])
        order_K = np.argsort(-score_N, kind="stable")
        order_K = order_K[~own_N[order_K]][:DEPTH]
        found_QK[q, : len(order_K)] = found_N[order_K]
        score_QK[q, : len(order_K)] = score_N[order_K]
    return Rankings(query_Q, found_QK, score_QK)


class _Named:
    """Rows T by the names of their images. Raises UserError where two have one name."""

    def __init__(self, table: pd.DataFrame, row_N: np.ndarray):
        paths = table["image_path"].iloc[row_N]
        names = names_of(paths)
        again = names.duplicated().to_numpy()
        if again.any():
            one, two = paths[(names == names[again].iloc[0]).to_numpy()].iloc[:2]
            raise UserError(f"{one} and {two} have one name in a file of rankings; leave one out")
        self.row_N = row_N
        self.names, self.paths = (pd.Index(words, dtype=object) for words in (names, paths))

    def rows(self, names: Sequence[str]) -> np.ndarray:
        """The row of each name, -1 where there is none."""
        asked = pd.Index(names, dtype=object)
        place_N = self.names.get_indexer(asked)
        other_N = np.flatnonzero(place_N < 0)
        if len(other_N):
            place_N[other_N] = self.paths.get_indexer(asked[other_N])
        return np.where(place_N < 0, -1, self.row_N[place_N])


def _ranked(embedded: Embedded, images: Images) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield of each query its row, those of what is found, best first, and their similarities."""
    (search,) = searches("merged", images, images.domain_T)
    domain_Q = images.domain_T[search.query_Q]
    parts = {"": embedded} if isinstance(embedded, np.ndarray) else embedded
    with tqdm(total=len(search.query_Q), desc="rankings", delay=5, disable=None) as bar:
        for domain, unit_TD in parts.items():
            query_Q = search.query_Q[domain_Q == domain] if domain else search.query_Q
            index, size = ExactIndex(unit_TD[search.index_I]), block_size(DEPTH, MOST_QUERIES)
            for start in range(0, len(query_Q), size):
                rows_B = query_Q[start : start + size]
                own = images.same_image(rows_B, search.index_I)
                found_BK, score_BK = index.search(unit_TD[rows_B], DEPTH, own)
                for row, found_K, score_K in zip(rows_B, found_BK, score_BK, strict=True):
                    there_K = found_K >= 0
                    yield row, search.index_I[found_K[there_K]], score_K[there_K]
                bar.update(len(rows_B))


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
        raise UserError(f"{path}: no rankings; {FORMAT}")
    return found


def _object(pairs: list[tuple[str, Any]]) -> JsonObject:
    """Numbers as an array: 2,000 rankings of 1,000 take no more than their names and 16 MB."""
    names, values = [name for name, _ in pairs], [value for _, value in pairs]
    numbers = all(type(value) in (int, float) for value in values)
    return JsonObject(names, np.array(values, np.float64) if numbers else values)


def _scores(path: Path, query: str, told: JsonObject) -> np.ndarray:
    if not isinstance(told.values, np.ndarray):
        raise UserError(f"{path}: {query}: a score that is no number; {FORMAT}")
    _refuse(path, f"{query}: no finite score", told.names, ~np.isfinite(told.values))
    return told.values


def _found(path: Path, query: str, told: JsonObject, index: _Named, unlisted: bool) -> np.ndarray:
    """Rows of the images that a ranking names, -1 for what is not listed."""
    found_N = index.rows(told.names)
    if not unlisted:
        _refuse(path, f"{query}: no index image of the manifest", told.names, found_N < 0)
    pairs = zip(told.names, found_N.tolist(), strict=True)
    images = [name if row < 0 else row for name, row in pairs]
    if len(set(images)) < len(images):
        again_N = pd.Series(images, dtype=object).duplicated().to_numpy()
        _refuse(path, f"{query}: stands twice", told.names, again_N)
    return found_N


def _refuse(path: Path, fault: str, names: Sequence[str], bad_N: np.ndarray) -> None:
    """Raise UserError where there is a bad one: how many, and the first."""
    if bad_N.any():
        first = names[int(bad_N.argmax())]
        raise UserError(f"{path}: {fault}: {first!r} ({int(bad_N.sum())} of {len(names)})")
