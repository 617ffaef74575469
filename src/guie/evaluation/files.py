"""Read what is scored: manifest rows with companion files, and embedding files; write the latter.

Vector databases, pandas and Spark read the Parquet files too: see `guie/search/README.md`. Their columns:

    image_path      string, each once: the id
    embedding       list of D numbers, float16 or float32; written as a list of fixed size
    label, domain   string, from the manifest; not read

Shape legend: T rows of the table, N rows of a file, B of a row group, D dimensions.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from guie.base.errors import UserError
from guie.base.files import refuse_special, replacing
from guie.data.manifest import Manifest
from guie.data.manifest.companions import companion_path, read_companion
from guie.evaluation.knn import lengths, refuse, unit_vectors

# Those of one model [T, D], or by domain those of its specialist, which embeds that domain's queries and
# the whole index.
Embeddings = np.ndarray | Mapping[str, np.ndarray]

GROUP_BYTES = 2**25  # of embeddings in a row group, in memory at once
COLUMNS = ["image_path", "embedding"]
REMEDY = "write it with embed.py --out E.parquet"
TEXTS = "texts"  # the data set of text queries


def load_embeddings(path: str | Path, table: pd.DataFrame) -> np.ndarray:
    """Read an E.npz or E.parquet of `embed.py`, in the table's order: [T, D], float32 or float16.

    Rows are matched by image_path, in any order. Images that are not in the table are ignored; an image
    may have several rows of the table.

    Raises UserError for a file that cannot be read, a wrong key, type or shape, an image that is missing
    or duplicated, or an embedding that is zero or not finite.
    """
    refuse_special(path)
    wanted = pd.Index(table["image_path"].unique())
    is_parquet = Path(path).suffix == ".parquet"
    try:
        rows = _read_parquet(Path(path), wanted) if is_parquet else _read_npz(Path(path))
    except UserError:
        raise
    except MemoryError:
        raise UserError(
            f"{path}: an array does not fit into memory; embed one split at a time, or, if the file is"
            " damaged, write it again with embed.py"
        ) from None
    except Exception as error:  # numpy and zipfile raise almost anything on damaged files
        if reason := getattr(error, "strerror", None):
            raise UserError(f"{path}: cannot be read ({reason})") from error
        kind = "a Parquet file, or damaged" if is_parquet else "an .npz of plain arrays"
        raise UserError(f"{path}: not {kind}; write it with embed.py") from error
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
    """Normalise vectors of one model or of each domain's specialist, one for each row of the table.

    Raises UserError if a vector is not finite or a specialist is missing, ValueError for other shapes.
    """
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
    subsets = companion_path(manifest.path, "subsets")
    if os.path.lexists(subsets):
        table = with_subsets(table, read_companion(subsets, "subsets"))
    return with_texts(table, read_companion(texts, "texts")) if texts else table


def with_texts(table: pd.DataFrame, texts: pd.DataFrame) -> pd.DataFrame:
    """Append the rows of the companion file `texts` to the table, as queries of the data set `texts`.

    Raises UserError if a text has the name of an image, or of another text.
    """
    again = texts["image_path"].isin(table["image_path"]) | texts.duplicated("image_path")
    if again.any():
        raise UserError(f"--texts: {texts['image_path'][again].iloc[0]} is already used; rename it")
    dataset = table["dataset"] if "dataset" in table else table["domain"]
    queries = texts.drop(columns="text").assign(role="query", dataset=TEXTS)
    both = pd.concat([table.assign(dataset=dataset), queries], ignore_index=True)
    return both.fillna({"subsets": ""}) if "subsets" in both else both


def with_subsets(table: pd.DataFrame, subsets: pd.DataFrame) -> pd.DataFrame:
    """Add the column `subsets` to the table, from the companion file (subset, image_path)."""
    named = subsets.groupby("image_path")["subset"].agg("|".join)
    return table.assign(subsets=table["image_path"].map(named).fillna(""))


def _read_npz(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the paths (N,) and embeddings (N, D) of an .npz. Raises UserError."""
    with np.load(path, allow_pickle=False) as file:  # reads these two arrays, and no other
        for key in COLUMNS:
            if key not in file:
                raise UserError(f"{path}: no array {key!r}, only {sorted(file)}; run embed.py")
        path_N, embedding_ND = file["image_path"], file["embedding"]
    if path_N.dtype.kind != "U" or path_N.ndim != 1:
        found = f"{path_N.dtype} of shape {list(path_N.shape)}"
        raise UserError(f"{path}: image_path is {found}; must be str of shape [N]")
    found = f"{path}: embedding is {embedding_ND.dtype} of shape {list(embedding_ND.shape)}"
    if embedding_ND.dtype not in (np.float32, np.float16):
        raise UserError(f"{found}; must be float32 or float16")
    if embedding_ND.ndim != 2 or len(embedding_ND) != len(path_N) or not embedding_ND.shape[1]:
        shape = f"[{len(path_N)}, D]"
        raise UserError(f"{found}; must have shape {shape}, one row for each image_path")
    return path_N, embedding_ND


def _read_parquet(path: Path, wanted: pd.Index) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of the wanted images in the file's order: paths (N,) and embeddings (N, D).

    Raises UserError for missing columns, wrong types, missing numbers or lists of different lengths. pyarrow
    raises its own errors for a damaged file.
    """
    path.stat()  # raises OSError with a plain reason if it cannot be opened
    schema = pq.read_schema(path)
    for name in COLUMNS:
        if schema.get_field_index(name) < 0:
            known = ", ".join(schema.names)
            raise UserError(f"{path}: no column {name!r}, or two; it has {known}; {REMEDY}")
    strings, lists = (schema.field(name).type for name in COLUMNS)
    if strings not in (pa.string(), pa.large_string()):
        raise UserError(f"{path}: image_path is {strings}; must be string")
    if getattr(lists, "value_type", None) not in (pa.float16(), pa.float32()):
        raise UserError(f"{path}: embedding is {lists}; must be a list of float32 or float16")
    is_wanted = pc.field("image_path").isin(pa.array(wanted, strings))
    how = {
        "pre_buffer": False,
        "page_checksum_verification": True,
    }  # it would read whole columns ahead
    rows = pq.read_table(path, columns=COLUMNS, filters=is_wanted, **how)
    column = rows["embedding"]
    lengths_U = pc.list_value_length(column).unique().to_pylist()
    if len(lengths_U) > 1 or {None, 0} & {*lengths_U}:
        fault = f"embedding: empty or missing lists, or of different lengths {lengths_U[:3]}"
        raise UserError(f"{path}: {fault}; {REMEDY}")
    values = pa.chunked_array([chunk.flatten() for chunk in column.chunks], lists.value_type)
    if values.null_count:
        raise UserError(f"{path}: embedding: {values.null_count} number(s) missing; {REMEDY}")
    return rows["image_path"].to_numpy(), values.to_numpy().reshape(len(rows), *lengths_U or [0])


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
