"""Read embedding files, check them, and align them with a table.

Shape legend: T rows of the table, N rows of a file, D dimensions.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from guie.base.errors import UserError
from guie.base.files import refuse_special
from guie.evaluation.embedding_parquet import COLUMNS, decoded_bytes, path_bytes, read_parquet
from guie.evaluation.knn import lengths, refuse, unit_vectors

# Those of one model [T, D], or by domain those of its specialist, which embeds that domain's queries and
# the whole index.
Embeddings = np.ndarray | Mapping[str, np.ndarray]

# Embeddings hardly compress; fixed-width columns of long paths may.
BOMB_BYTES, BOMB_RATIO = 2**30, 200


def load_embeddings(path: str | Path, table: pd.DataFrame) -> np.ndarray:
    """Read an E.npz or E.parquet of `embed.py`, in the table's order: [T, D], float32 or float16.

    Rows are matched by image_path, in any order. Images that are not in the table are ignored; an image
    may have several rows of the table.

    Raises UserError for a file that cannot be read, a wrong key, type or shape, an image that is missing
    or duplicated, or an embedding that is zero or not finite.
    """
    refuse_special(path)
    is_parquet = Path(path).suffix == ".parquet"
    try:
        if is_parquet:
            rows = _parquet_rows(Path(path), pd.Index(table["image_path"].unique()))
        else:
            rows = _npz_rows(Path(path))
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
    return _in_order(*rows, table, str(path))


def _in_order(
    path_N: np.ndarray, embedding_ND: np.ndarray, table: pd.DataFrame, source: str
) -> np.ndarray:
    wanted = pd.Index(table["image_path"].unique())
    place_N = wanted.get_indexer(path_N)
    named_N = place_N >= 0
    path_N, embedding_ND, place_N = path_N[named_N], embedding_ND[named_N], place_N[named_N]
    again_N = pd.Series(place_N).duplicated().to_numpy()
    refuse(path_N[again_N], f"{source}: a second embedding", "embed each image once")
    length_N = lengths(embedding_ND, path_N, source)
    remedy = "a zero vector has no direction: check the model"
    refuse(path_N[length_N == 0], f"{source}: an embedding of zeros", remedy)
    row_of = np.full(len(wanted), -1)
    row_of[place_N] = np.arange(len(place_N))
    refuse(wanted[row_of < 0], f"{source}: no embedding", "embed this manifest and split")
    return embedding_ND[row_of[wanted.get_indexer(table["image_path"])]]


def as_units(embeddings_TD: Embeddings, table: pd.DataFrame) -> Embeddings:
    """Normalise vectors of one model or of each domain's specialist, one for each row of the table.

    Raises UserError if a vector is not finite or a specialist is missing, ValueError for other shapes.
    """
    if isinstance(embeddings_TD, np.ndarray):
        return unit_vectors(embeddings_TD, table["image_path"].to_numpy())
    missing = sorted(set(table["domain"]) - set(embeddings_TD))
    if missing:
        raise UserError(f"no specialist for {', '.join(missing)}; give one for every domain")
    units = {name: as_units(values, table) for name, values in embeddings_TD.items()}
    return {name: value for name, value in units.items() if isinstance(value, np.ndarray)}


def arrays_of(given: Embeddings | None) -> list[np.ndarray]:
    """Return the arrays of one model or of several."""
    if given is None:
        return []
    return [given] if isinstance(given, np.ndarray) else [given[name] for name in sorted(given)]


def _parquet_rows(path: Path, wanted: pd.Index) -> tuple[np.ndarray, np.ndarray]:
    """Return the wanted rows of a Parquet file. Raises UserError for a suspected decompression bomb."""
    _refuse_bomb(path, path.stat().st_size, decoded_bytes(path))
    _refuse_bomb(path, path.stat().st_size, path_bytes(path))
    return read_parquet(path, wanted)


def _npz_rows(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the paths and embeddings of an .npz. Raises UserError for a suspected decompression bomb."""
    with zipfile.ZipFile(path) as archive:
        read = [one for one in archive.infolist() if one.filename.removesuffix(".npy") in COLUMNS]
    packed_bytes = sum(one.compress_size for one in read)
    _refuse_bomb(path, packed_bytes, sum(one.file_size for one in read))
    with np.load(path, allow_pickle=False) as file:  # reads these two arrays, and no other
        for key in COLUMNS:
            if key not in file:
                raise UserError(f"{path}: no array {key!r}, only {sorted(file)}; run embed.py")
        path_N, embedding_ND = file["image_path"], file["embedding"]
    if path_N.dtype.kind != "U" or path_N.ndim != 1:
        raise UserError(f"{path}: image_path is {_kind(path_N)}; must be str of shape [N]")
    if embedding_ND.dtype not in (np.float32, np.float16):
        raise UserError(f"{path}: embedding is {_kind(embedding_ND)}; must be float32 or float16")
    if embedding_ND.ndim != 2 or len(embedding_ND) != len(path_N) or not embedding_ND.shape[1]:
        raise UserError(
            f"{path}: embedding is {_kind(embedding_ND)}; must have shape [{len(path_N)}, D],"
            " one row for each image_path"
        )
    return path_N, embedding_ND


def _refuse_bomb(path: Path, packed_bytes: int, unpacked_bytes: int) -> None:
    if unpacked_bytes > max(BOMB_BYTES, BOMB_RATIO * packed_bytes):
        raise UserError(
            f"{path}: unpacks from {packed_bytes:,} to {unpacked_bytes:,} bytes; refused as a decompression"
            " bomb"
        )


def _kind(array: np.ndarray) -> str:
    return f"{array.dtype} of shape {list(array.shape)}"
