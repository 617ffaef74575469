"""Score rankings as ILIAS does; read and write its ranking files.

Shapes: T rows of a table, Q queries, K ranks, N images of one ranking.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from pydantic import FiniteFloat, TypeAdapter, ValidationError

from guie.base.errors import UserError
from guie.base.files import replacing
from guie.evaluation.knn import NOTHING, Embeddings
from guie.evaluation.search import Images, rankings, searches

DEPTH = 1000
MOST_QUERIES = 256  # in one block
FORMAT = TypeAdapter(dict[str, dict[str, FiniteFloat]])


def map_at_1k(
    relevant_QK: np.ndarray, positives_Q: np.ndarray, similarity_QK: np.ndarray
) -> np.ndarray:
    """Return ILIAS's mAP@1k: sum of P(i) rel(i) for i <= 1000, over min(n, 1000), [Q]; NaN without positives.

    Equal similarities are one step, as in scikit-learn, which ILIAS uses: each relevant image among them gets
    the precision at their end. Everywhere else in this package, they count one after the other. Similarities
    descend along a row.
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
    """The ranked images of each query, best first, as rows T."""

    query_Q: np.ndarray
    found_QK: np.ndarray  # -1 for an image outside the index and past the end
    score_QK: np.ndarray  # descending, -inf past the end


def names_of(paths: pd.Series) -> pd.Series:
    """Return the name of each image in an ILIAS ranking file."""
    core = paths.str.extract(r"(?:^|/)ilias_core/(.+)$")[0]
    far = paths.str.extract(r"(?:^|/)yfcc100m/([^/]+)/(.+)\.[^./]+$")
    return core.fillna(far[0] + ".tar/" + far[1]).fillna(paths)


def write_rankings(path: Path, embedded: Embeddings, table: pd.DataFrame) -> None:
    """Write each query's best 1,000 of the merged index, atomically. Raises UserError for two of one name."""
    images = Images.of(table)
    (search,) = searches("merged", images, images.domain_T)
    for rows in (search.query_Q, search.index_I):
        _rows_by_name(table, rows)  # refuses two of one name
    name_T = names_of(table["image_path"]).to_numpy(object)
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        start = "{"
        for ranking in rankings(images, embedded, search):
            for block in ranking.blocks(DEPTH, MOST_QUERIES, title="rankings"):
                for row, found_K, score_K in zip(*block, strict=True):
                    names, scores = name_T[found_K[found_K >= 0]], score_K[found_K >= 0].tolist()
                    ranked = json.dumps(dict(zip(names, scores, strict=True)))
                    file.write(f"{start}\n{json.dumps(name_T[row])}: {ranked}")
                    start = ","
        file.write("\n}\n")


def read_rankings(path: Path, table: pd.DataFrame, unlisted: bool = False) -> Rankings:
    """Read the ranking of every query of the table, without its own image; ties keep the order of the file.

    With `unlisted`, images outside the index count as negatives, like in ILIAS's code. Raises UserError for
    another format, a missing query, or a query or (otherwise) image that is not in the table.
    """
    try:
        given = FORMAT.validate_json(path.read_bytes(), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        fault = ": ".join([*map(str, first["loc"]), first["msg"]])
        raise UserError(
            f"{path}: {fault}; the format is JSON {{query: {{image: score}}}}"
        ) from None
    images = Images.of(table)
    all_Q, all_I = np.flatnonzero(images.is_query_T), np.flatnonzero(images.is_index_T)
    query_Q = _rows_by_name(table, all_Q).reindex(list(given), fill_value=-1).to_numpy()
    _refuse(path, "not a query of the manifest", list(given), query_Q < 0)
    _refuse(path, "no ranking for query", table["image_path"][all_Q], ~np.isin(all_Q, query_Q))
    row_of = _rows_by_name(table, all_I)
    found_QK = np.full((len(query_Q), DEPTH), -1)
    score_QK = np.full((len(query_Q), DEPTH), NOTHING)
    for q, (query, ranked) in enumerate(given.items()):
        names, score_N = list(ranked), np.array(list(ranked.values()))
        found_N = row_of.reindex(names, fill_value=-1).to_numpy()
        is_listed_N = found_N >= 0
        if not unlisted:
            _refuse(path, f"{query}: not an index image of the manifest", names, ~is_listed_N)
        again_N = is_listed_N & pd.Series(found_N).duplicated()
        _refuse(path, f"{query}: duplicate image", names, again_N)
        own_N = is_listed_N & (images.image_T[found_N] == images.image_T[query_Q[q]])
        order_K = np.argsort(-score_N, kind="stable")
        order_K = order_K[~own_N[order_K]][:DEPTH]
        found_QK[q, : len(order_K)] = found_N[order_K]
        score_QK[q, : len(order_K)] = score_N[order_K]
    return Rankings(query_Q, found_QK, score_QK)


def _rows_by_name(table: pd.DataFrame, row_N: np.ndarray) -> pd.Series:
    """Return the rows T by the name and the path of each image. Raises UserError if two share a name."""
    paths = table["image_path"].iloc[row_N]
    names = names_of(paths)
    if (again := names.duplicated()).any():
        one, two = paths[names == names[again].iloc[0]].iloc[:2]
        raise UserError(f"{one} and {two} have the same name in a ranking file; remove one")
    found = pd.concat([pd.Series(row_N, names), pd.Series(row_N, paths)])
    return found[~found.index.duplicated()]


def _refuse(path: Path, fault: str, names: Sequence[str], is_bad_N: np.ndarray) -> None:
    """Raise UserError if there is a bad name, with their number and the first."""
    if is_bad_N.any():
        bad = np.asarray(names, object)[np.asarray(is_bad_N)]
        raise UserError(f"{path}: {fault}: {bad[0]!r} ({len(bad)} of {len(names)})")
