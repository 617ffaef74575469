"""Embeddings in files: read, checked, put into the order of a table.

Shape legend: T rows of the table, N rows of a file, D dimensions.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from guie.base.errors import UserError
from guie.base.files import refuse_special

# Compressed embeddings are hardly smaller than plain ones; long paths in columns of one width may be.
BOMB_BYTES, BOMB_RATIO = 2**30, 200


def load_embeddings(path: str | Path, table: pd.DataFrame) -> np.ndarray:
    """Read an E.npz as `embed.py` writes it and `align` it to the table. Raises UserError."""
    refuse_special(path)
    try:
        arrays = _arrays(path)
    except UserError:
        raise
    except MemoryError:
        raise UserError(
            f"{path}: an array needs more memory than there is; embed one split at a time, or write"
            " it again with embed.py if it is damaged"
        ) from None
    except Exception as error:  # numpy and zipfile raise almost anything on damaged files
        if reason := getattr(error, "strerror", None):
            raise UserError(f"{path}: cannot be read ({reason})") from error
        raise UserError(f"{path}: no .npz of plain arrays; write it with embed.py") from error
    return align(arrays, table, source=str(path))


def align(
    arrays: Mapping[str, np.ndarray], table: pd.DataFrame, source: str = "embeddings"
) -> np.ndarray:
    """Put embeddings into the table's order, by image_path: [T, D], dtype kept.

    Args:
        arrays: `image_path` (str, [N]) and `embedding` (float32 or float16, [N, D]), in any order.
            Images that the table does not name are ignored.
        table: rows with image_path; an image may stand in several.
        source: the file's name, for messages.

    Raises:
        UserError: a wrong key, type or shape; an image that is missing or given twice, or whose
            embedding is not finite or zero.
    """
    path_N, embedding_ND = _checked(arrays, source)
    wanted = pd.Index(table["image_path"].unique())
    place_N = wanted.get_indexer(path_N)
    named_N = place_N >= 0
    path_N, embedding_ND, place_N = path_N[named_N], embedding_ND[named_N], place_N[named_N]
    again_N = pd.Series(place_N).duplicated().to_numpy()
    refuse(path_N[again_N], f"{source}: a second embedding", "embed each image once")
    length_N = lengths(embedding_ND, path_N, source)
    remedy = "it has no direction: look at the model"
    refuse(path_N[length_N == 0], f"{source}: an embedding of zeros", remedy)
    row_of = np.full(len(wanted), -1)
    row_of[place_N] = np.arange(len(place_N))
    refuse(wanted[row_of < 0], f"{source}: no embedding", "embed this manifest and split")
    return embedding_ND[row_of[wanted.get_indexer(table["image_path"])]]


def unit_vectors(embeddings_TD: np.ndarray, paths: Sequence[str] | np.ndarray) -> np.ndarray:
    """Embeddings at length 1, as float32; a zero vector stays zero, as near to one as to another.

    Raises UserError where one is not finite.
    """
    length_T = lengths(embeddings_TD, np.asarray(paths))
    length_T[length_T == 0] = 1
    return embeddings_TD.astype(np.float32) / length_T[:, None]


def lengths(
    embeddings_ND: np.ndarray, path_N: np.ndarray, source: str = "embeddings"
) -> np.ndarray:
    """Euclidean lengths, in float32. Raises UserError where one is not finite."""
    with np.errstate(over="ignore"):
        length_N = np.linalg.norm(embeddings_ND.astype(np.float32, copy=False), axis=1)
    fault = f"{source}: a value that is not finite, or too large,"
    refuse(path_N[~np.isfinite(length_N)], fault, "look for a NaN in the model")
    return length_N


def refuse(paths: Sequence[str] | np.ndarray | pd.Index, fault: str, remedy: str) -> None:
    """Raise UserError where there are any paths: how many, and the first."""
    if len(paths):
        raise UserError(f"{fault} for {len(paths)} image(s), first {str(paths[0])!r}; {remedy}")


def _arrays(path: str | Path) -> dict[str, np.ndarray]:
    """All arrays of an .npz. Raises UserError for one that unpacks to far more than embeddings do."""
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if member.file_size > max(BOMB_BYTES, BOMB_RATIO * member.compress_size):
                raise UserError(
                    f"{path}: {member.filename} unpacks from {member.compress_size:,} to"
                    f" {member.file_size:,} bytes; refused as a decompression bomb"
                )
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    if not all(isinstance(array, np.ndarray) for array in arrays.values()):
        raise ValueError("a member that is no array")
    return arrays


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
