"""Write and read embeddings as Parquet, in row groups, so that they need not fit into memory twice.

Vector databases, pandas and Spark read these files too: see `guie/search/README.md`. The columns:

    image_path      string, each once: the id
    embedding       list of D numbers, float16 or float32; written as a list of fixed size
    label, domain   string, from the manifest; not read

Shapes: N rows, D dimensions.
"""

from __future__ import annotations

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

GROUP_BYTES = 2**25  # of embeddings, in memory at once
COLUMNS = ["image_path", "embedding"]
REMEDY = "write it with embed.py --out E.parquet"


def write_parquet(path: Path, about: pd.DataFrame, parts: Sequence[Any]) -> None:
    """Write embeddings, atomically.

    Args:
        about: (N) rows with image_path, and label and domain if they are known, in the parts' order.
        parts: (N, D) rows in all, as arrays or as what returns one for a slice, of the first one's type.
    """
    dtype, dim = parts[0].dtype, parts[0].shape[1]
    texts = [name for name in ("image_path", "label", "domain") if name in about]
    fields = [pa.field(name, pa.string()) for name in texts]
    fields.insert(1, pa.field("embedding", pa.list_(pa.from_numpy_dtype(dtype), dim)))
    schema = pa.schema(fields)
    rows = max(1, GROUP_BYTES // (dim * dtype.itemsize))
    how = {"use_dictionary": texts[1:], "write_page_checksum": True}
    how["compression"] = {**dict.fromkeys(texts, "zstd"), "embedding.list.element": "none"}
    at = 0
    with replacing(path) as temporary, pq.ParquetWriter(temporary, schema, **how) as writer:
        for part in parts:
            for start in range(0, len(part), rows):
                block_BD = np.ascontiguousarray(part[start : start + rows], dtype)
                columns = about.iloc[at : at + len(block_BD)]
                arrays = [pa.array(columns[name], pa.string()) for name in texts]
                values = pa.FixedSizeListArray.from_arrays(pa.array(block_BD.reshape(-1)), dim)
                arrays.insert(1, values)
                writer.write_table(pa.Table.from_arrays(arrays, schema=schema), rows)
                at += len(block_BD)


def read_parquet(path: Path, wanted: pd.Index) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of the wanted images in the file's order: paths (N,) and embeddings (N, D).

    Raises UserError for missing columns, wrong types, missing values or lists of different lengths.
    pyarrow raises its own errors for a damaged file.
    """
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        kind = _number_type(path, file.schema_arrow)
        names = file.read(["image_path"]).column("image_path")
        if names.null_count:
            raise UserError(f"{path}: image_path: {names.null_count} value(s) missing; {REMEDY}")
        if not len(names):
            raise UserError(f"{path}: no rows; {REMEDY}")
        path_N = names.cast(pa.large_string()).to_numpy()
        is_wanted_N = wanted.get_indexer(path_N) >= 0
        found_ND, at, filled = None, 0, 0
        for number in range(file.num_row_groups):
            lists = file.read_row_group(number, ["embedding"]).column("embedding")
            block_BD = _rows(path, lists, kind, None if found_ND is None else found_ND.shape[1])
            if found_ND is None:
                found_ND = np.empty((is_wanted_N.sum(), block_BD.shape[1]), block_BD.dtype)
            kept_KD = block_BD[is_wanted_N[at : at + len(block_BD)]]
            found_ND[filled : filled + len(kept_KD)] = kept_KD
            at, filled = at + len(block_BD), filled + len(kept_KD)
    assert found_ND is not None  # there are rows
    return path_N[is_wanted_N], found_ND


def decoded_bytes(path: Path) -> int:
    """Return how many bytes the columns that are read take in memory, by the file's own metadata.

    Paths that a dictionary holds once for several rows take more: see `path_bytes`.
    """
    metadata = pq.read_metadata(path)
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    columns = (group.column(place) for group in groups for place in range(group.num_columns))
    read = [one for one in columns if one.path_in_schema.partition(".")[0] in COLUMNS]
    # An encoded value takes four bytes at least once it is decoded, however often it is repeated.
    return sum(max(one.total_uncompressed_size, 4 * one.num_values) for one in read)


def path_bytes(path: Path) -> int:
    """Return how many bytes the paths take once every row has its own, which this does not decode.

    Returns 0 without a column of strings, which `read_parquet` refuses.
    """
    if pq.read_schema(path).names.count(COLUMNS[0]) != 1:
        return 0
    with pq.ParquetFile(path, read_dictionary=COLUMNS[:1], page_checksum_verification=True) as file:
        names = file.read(COLUMNS[:1]).column(0)
    if not pa.types.is_dictionary(names.type):
        return 0
    lengths = (pc.binary_length(chunk.dictionary).take(chunk.indices) for chunk in names.chunks)
    return sum(pc.sum(length_B).as_py() or 0 for length_B in lengths)


def _number_type(path: Path, schema: pa.Schema) -> pa.DataType:
    """Return the type of the embeddings' numbers."""
    for name in COLUMNS:
        if schema.get_field_index(name) < 0:
            known = ", ".join(schema.names)
            raise UserError(f"{path}: no column {name!r}, or two; it has {known}; {REMEDY}")
    paths, lists = (schema.field(name).type for name in COLUMNS)
    if paths not in (pa.string(), pa.large_string()):
        raise UserError(f"{path}: image_path is {paths}; must be string")
    is_list = pa.types.is_list(lists) or pa.types.is_large_list(lists)
    is_list = is_list or pa.types.is_fixed_size_list(lists)
    if not is_list or lists.value_type not in (pa.float16(), pa.float32()):
        raise UserError(f"{path}: embedding is {lists}; must be a list of float32 or float16")
    return lists.value_type


def _rows(path: Path, lists: pa.ChunkedArray, kind: pa.DataType, dim: int | None) -> np.ndarray:
    """Return the (B, D) numbers of one row group, without a copy where possible."""
    length_B = pc.list_value_length(lists)
    known = set(length_B.unique().to_pylist()) | ({dim} if dim else set())
    if known & {None, 0}:
        raise UserError(f"{path}: embedding: an empty or missing list; {REMEDY}")
    if len(known) > 1:
        shown = ", ".join(map(str, sorted(known)[:3]))
        raise UserError(f"{path}: embedding: lists of different lengths ({shown}); {REMEDY}")
    values = pa.chunked_array([chunk.flatten() for chunk in lists.chunks], kind)
    if values.null_count:
        raise UserError(f"{path}: embedding: {values.null_count} number(s) missing; {REMEDY}")
    return values.to_numpy().reshape(len(lists), -1)
