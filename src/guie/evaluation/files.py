"""Read what is scored: manifest rows with companion files, and embedding files; write the latter.

Vector databases, pandas and Spark read the Parquet files too: see `guie/search/README.md`. Their columns:

    image_path      string, each once: the id
    embedding       list of D numbers, float16 or float32; written as a list of fixed size
    label, domain   string, from the manifest; not read

Shape legend: T rows of the table, N rows of a file, B of a row group, D dimensions.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from guie.base.errors import UserError
from guie.base.files import replacing
from guie.data.manifest import Manifest
from guie.data.manifest.companions import companion_path, read_companion
from guie.evaluation.knn import Embeddings, lengths, refuse, unit_vectors
from scorer.errors import one_line

GROUP_BYTES = 2**25  # of embeddings in a row group, in memory at once
COLUMNS = ["image_path", "embedding"]
REMEDY = "write it with embed.py"
TEXTS = "texts"  # the data set of text queries


def load_embeddings(path: str | Path, table: pd.DataFrame) -> np.ndarray:
    """Read an E.npz or E.parquet of `embed.py`, in the table's order: [T, D], float32 or float16.

    Rows are matched by image_path, in any order. Images that are not in the table are ignored; an image
    may have several rows of the table.

    Raises UserError for a damaged file, a wrong key, type or shape, an image that is missing or duplicated,
    or an embedding that is zero or not finite; OSError for a file that cannot be opened.
    """
    wanted = pd.Index(table["image_path"].unique())
    is_parquet = Path(path).suffix == ".parquet"
    try:
        rows = _read_parquet(Path(path), wanted) if is_parquet else _read_npz(Path(path))
    except Exception as error:  # numpy, zipfile and pyarrow raise almost anything on damaged files
        if isinstance(error, UserError) or getattr(error, "errno", None):
            raise
        kind = "a Parquet file of embeddings" if is_parquet else "an .npz of plain arrays"
        raise UserError(f"{path}: not {kind} ({one_line(error)}); {REMEDY}") from error
    place_N = wanted.get_indexer(rows[0])
    path_N, embedding_ND, place_N = (column[place_N >= 0] for column in (*rows, place_N))
    again_N = pd.Series(place_N).duplicated().to_numpy()
    refuse(path_N[again_N], f"{path}: a second embedding", "embed each image once")
    zero_N = lengths(embedding_ND, path_N, str(path)) == 0
    remedy = "a zero vector has no direction: check the model"
    refuse(path_N[zero_N], f"{path}: an embedding of zeros", remedy)
    row_of = np.full(len(wanted), -1)
    row_of[place_N] = np.arange(len(place_N))
    refuse(wanted[row_of < 0], f"{path}: no embedding", "embed this manifest and split")
    return embedding_ND[row_of[wanted.get_indexer(table["image_path"])]]


def as_units(embeddings_TD: Embeddings, table: pd.DataFrame) -> Embeddings:
    """Normalise one model's vectors or each specialist's. Raises UserError, ValueError for other shapes."""
    path_T = table["image_path"].to_numpy()
    if isinstance(embeddings_TD, np.ndarray):
        return unit_vectors(embeddings_TD, path_T)
    missing = sorted(set(table["domain"]) - set(embeddings_TD))
    if missing:
        raise UserError(f"no specialist for {', '.join(missing)}; give one for every domain")
    return {name: unit_vectors(values, path_T) for name, values in embeddings_TD.items()}


def arrays_of(given: Embeddings) -> list[np.ndarray]:
    """Return the arrays of one model or of several."""
    return [given] if isinstance(given, np.ndarray) else [given[name] for name in sorted(given)]


def table_of(manifest: Manifest, split: str, texts: Path | None = None) -> pd.DataFrame:
    """Return the rows of a split, with subsets if subsets.csv is next to the manifest, and text queries."""
    table = manifest.split(split)
    path = companion_path(manifest.path, "subsets")
    if os.path.lexists(path):
        named = read_companion(path, "subsets").groupby("image_path")["subset"].agg("|".join)
        table = table.assign(subsets=table["image_path"].map(named).fillna(""))
    return with_texts(table, read_companion(texts, "texts")) if texts else table


def with_texts(table: pd.DataFrame, texts: pd.DataFrame) -> pd.DataFrame:
    """Append `texts` to the table, as queries of a data set. Raises UserError for a name that is taken."""
    again = texts["image_path"].isin(table["image_path"]) | texts.duplicated("image_path")
    if again.any():
        raise UserError(f"--texts: {texts['image_path'][again].iloc[0]} is already used; rename it")
    dataset = table["dataset"] if "dataset" in table else table["domain"]
    queries = texts.drop(columns="text").assign(role="query", dataset=TEXTS)
    both = pd.concat([table.assign(dataset=dataset), queries], ignore_index=True)
    return both.fillna({"subsets": ""}) if "subsets" in both else both


def _read_npz(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the paths (N,) and embeddings (N, D) of an .npz. Raises UserError."""
    with np.load(path, allow_pickle=False) as file:  # reads these two arrays, and no other
        for key in COLUMNS:
            if key not in file:
                raise UserError(f"{path}: no array {key!r}, only {sorted(file)}; {REMEDY}")
        path_N, embedding_ND = file["image_path"], file["embedding"]
    if path_N.dtype.kind != "U":
        raise UserError(f"{path}: image_path is {path_N.dtype}; must be str")
    shape, dtype = list(embedding_ND.shape), embedding_ND.dtype
    if dtype not in (np.float32, np.float16):
        raise UserError(f"{path}: embedding is {dtype}; must be float32 or float16")
    if embedding_ND.ndim != 2 or path_N.shape != (len(embedding_ND),):
        fault = f"embedding of shape {shape} for image_path of shape {list(path_N.shape)}"
        raise UserError(f"{path}: {fault}; must have shapes [N, D] and [N]")
    return path_N, embedding_ND


def _read_parquet(path: Path, wanted: pd.Index) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of the wanted images in the file's order: paths (N,) and embeddings (N, D).

    Raises UserError for other lists than those of `embed.py`, and pyarrow's errors for all other faults.
    """
    schema = pq.read_schema(path)
    strings, lists = (schema.field(name).type for name in COLUMNS)
    if getattr(lists, "value_type", None) not in (pa.float16(), pa.float32()):
        raise UserError(f"{path}: embedding is {lists}; must be a list of float32 or float16")
    rows = pq.read_table(
        path,
        columns=COLUMNS,
        filters=pc.field("image_path").isin(pa.array(wanted, strings)),
        pre_buffer=False,  # it would read whole columns ahead
        page_checksum_verification=True,
    )
    column = rows["embedding"]
    dims = pc.list_value_length(column).unique().to_pylist()
    if len(dims) > 1 or None in dims:
        raise UserError(
            f"{path}: embedding: lists are missing or differ in length: {dims[:3]}; {REMEDY}"
        )
    values = pa.chunked_array([chunk.flatten() for chunk in column.chunks], lists.value_type)
    return rows["image_path"].to_numpy(), values.to_numpy().reshape(len(rows), *dims or [0])


def write_parquet(path: Path, about: pd.DataFrame, blocks: Sequence[Any]) -> None:
    """Write embeddings in row groups, atomically.

    Args:
        about: (N) rows with image_path, and label and domain if they are known, in the blocks' order.
        blocks: (N, D) rows in all, as arrays or as what returns one for a slice, of the first one's type.
    """
    dtype, dim = blocks[0].dtype, blocks[0].shape[1]
    texts = [name for name in ("image_path", "label", "domain") if name in about]
    fields = [pa.field(name, pa.string()) for name in texts]
    fields.insert(1, pa.field("embedding", pa.list_(pa.from_numpy_dtype(dtype), dim)))
    schema = pa.schema(fields)
    rows = max(1, GROUP_BYTES // (dim * dtype.itemsize))
    how = {"use_dictionary": texts[1:], "write_page_checksum": True}
    how["compression"] = {**dict.fromkeys(texts, "zstd"), "embedding.list.element": "none"}
    at = 0
    with replacing(path) as temporary, pq.ParquetWriter(temporary, schema, **how) as writer:
        for block in blocks:
            for start in range(0, len(block), rows):
                group_BD = np.ascontiguousarray(block[start : start + rows], dtype)
                columns = about.iloc[at : at + len(group_BD)]
                arrays = [pa.array(columns[name], pa.string()) for name in texts]
                values = pa.FixedSizeListArray.from_arrays(pa.array(group_BD.reshape(-1)), dim)
                arrays.insert(1, values)
                writer.write_table(pa.Table.from_arrays(arrays, schema=schema), rows)
                at += len(group_BD)
