"""Features on disk: verified shards, and an array over them.

`<folder>/<key>/` holds for each shard `<hash>.npy`, the rows, and `<hash>.parquet`, the files they
are of (path, size, time of change, decoder). The hash is the SHA-256 of both, by which a shard is
verified before it is read. The key is a hash of all that a feature depends on besides the file;
`model.json` says what. Shapes: N images, D features.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from guie.base.errors import UserError
from guie.base.files import replacing, write_json
from guie.data.looks.decoded import KEY, TYPES

INDEX_TYPES = {**TYPES, "shard": str, "row": int}
# A shard's files, and what a killed process leaves of a file (see `replacing`)
OWN_FILE = re.compile(r"[0-9a-f]{64}\.(npy|parquet)|\.([0-9a-f]{64}|model)\.\d+\.tmp\.\w+")

logger = logging.getLogger(__name__)


class Features:
    """(N, D) rows over several shards; `features[rows]` reads those rows, as float32.

    What computes with them wants float32, and what is on disk need not all be in memory: shards are
    mapped, once each, so processes of one machine share what the system keeps of them.
    """

    def __init__(self, shards: Sequence[Path], shard_N: np.ndarray, row_N: np.ndarray, dim: int):
        self._shards, self._shard_N, self._row_N = shards, shard_N, row_N
        self._mapped = lru_cache(maxsize=None)(self._map)
        self.shape, self.ndim, self.dtype = (len(row_N), dim), 2, np.dtype(np.float32)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> np.ndarray:
        shard_N, row_N = self._shard_N[rows], self._row_N[rows]
        shape, shard_N, row_N = np.shape(row_N), np.reshape(shard_N, -1), np.reshape(row_N, -1)
        found_ND = np.empty((len(row_N), self.shape[1]), np.float32)
        order = np.argsort(shard_N, kind="stable")
        numbers, first = np.unique(shard_N[order], return_index=True)
        for number, here in zip(numbers.tolist(), np.split(order, first)[1:], strict=True):
            found_ND[here] = self._mapped(number)[row_N[here]]
        return found_ND.reshape(*shape, self.shape[1])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self[:].astype(dtype or np.float32, copy=False)

    def _map(self, number: int) -> np.ndarray:
        return np.asarray(np.load(self._shards[number], mmap_mode="r"))


class FeatureCache:
    """The shards of one key.

    Args:
        folder: where caches of all keys lie.
        recipe: all that a feature depends on but the file: model, preprocessing, view.
        dtype: what rows are kept as; float16 halves the disk they take.
    """

    def __init__(
        self, folder: str | Path, recipe: dict[str, Any], dtype: type[np.floating] = np.float16
    ):
        self.folder = Path(folder) / _key(recipe)
        self.recipe, self.dtype = recipe, np.dtype(dtype)

    def missing(self, states: pd.DataFrame) -> np.ndarray:
        """Positions in `states` whose features are yet to be computed, each file once.

        Every shard that has some of the others is verified; a damaged one is said and removed.
        """
        index = self._index()
        used = set(states.merge(index, on=KEY)["shard"])
        for name in sorted(used):
            if not self._is_whole(name):
                self._forget(name)
                index = index[index["shard"] != name]
        place = states.merge(index, "left", on=KEY)["shard"]
        absent = states.reset_index(drop=True)[place.isna()].drop_duplicates("file")
        return absent.index.to_numpy()

    def begin(self) -> None:
        """Write down what the features are of. Raises UserError where nothing can be written."""
        if not (self.folder / "model.json").exists():
            write_json(self.folder / "model.json", self.recipe)

    def add(self, states: pd.DataFrame, features_ND: np.ndarray) -> None:
        """Write one shard. Raises UserError if it cannot be written, or the dtype cannot hold it."""
        reach, most = np.abs(features_ND).max(axis=1), float(np.finfo(self.dtype).max)
        if not (reach <= most).all():  # NaN is not either
            worst = int(np.argmin(reach <= most))
            raise UserError(
                f"{states['file'].iloc[worst]}: a feature of it is {reach[worst]:,.0f}; features are"
                f" kept as {self.dtype}, which ends at {most:,.0f}, so this model's cannot be"
            )
        rows_ND = np.ascontiguousarray(features_ND, self.dtype)
        name = _shard_hash(states, rows_ND)
        with replacing(self._file(name)) as temporary:
            np.save(temporary, rows_ND)
        # Last: a shard without it does not count.
        with replacing(self._file(name, "parquet")) as temporary:
            states.reset_index(drop=True).to_parquet(temporary, index=False)

    def open(self, states: pd.DataFrame, dim: int) -> Features:
        """The features of files that are all there."""
        index = self._index()
        found = states.merge(index, "left", on=KEY)
        names, shards = pd.factorize(found["shard"])
        files = [self._file(name) for name in shards]
        return Features(files, names, found["row"].to_numpy(np.int64), dim)

    def _index(self) -> pd.DataFrame:
        """The KEY of every file that has features, their shard, and their row in it."""
        tables = [pd.DataFrame(columns=list(INDEX_TYPES)).astype(INDEX_TYPES)]
        for path in sorted(self.folder.glob("[0-9a-f]*.parquet")):
            try:
                states = pd.read_parquet(path, columns=KEY)
            except (OSError, ValueError):
                self._forget(path.stem)
                continue
            tables.append(states.assign(shard=path.stem, row=np.arange(len(states))))
        index = pd.concat(tables, ignore_index=True).astype(INDEX_TYPES)
        return index.drop_duplicates(KEY)

    def _is_whole(self, name: str) -> bool:
        try:
            rows_ND = np.load(self._file(name))
            states = pd.read_parquet(self._file(name, "parquet"), columns=KEY)
        except (OSError, ValueError, EOFError):
            return False
        return _shard_hash(states, rows_ND) == name

    def _forget(self, name: str) -> None:
        logger.warning(f"{self._file(name)}: damaged; its images are computed again")
        self._file(name, "parquet").unlink(missing_ok=True)
        self._file(name).unlink(missing_ok=True)

    def _file(self, name: str, suffix: str = "npy") -> Path:
        return self.folder / f"{name}.{suffix}"


def caches_in(folder: Path) -> list[Path]:
    """The caches of any key in a folder, each proved by its `model.json`; never a link's."""
    if folder.is_symlink() or not folder.is_dir():
        return []
    return [path for path in sorted(folder.iterdir()) if not path.is_symlink() and _is_cache(path)]


def remove_caches(folder: Path) -> None:
    """Delete the caches of any key in a folder, and the folder if nothing else lies in it."""
    for cache in caches_in(folder):
        for path in cache.iterdir():
            if OWN_FILE.fullmatch(path.name):
                path.unlink()
        (cache / "model.json").unlink()  # last: until then the proof is there
        with suppress(OSError):  # somebody else's files lie in it
            cache.rmdir()
    with suppress(OSError):
        folder.rmdir()


def _is_cache(folder: Path) -> bool:
    """Does its name follow from the recipe in it?"""
    try:
        recipe = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return folder.name == _key(recipe)


def _key(recipe: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:16]


def _shard_hash(states: pd.DataFrame, rows_ND: np.ndarray) -> str:
    """SHA-256 of what the rows are of, and the rows."""
    files = states[KEY].to_csv(index=False, header=False)
    return hashlib.sha256(files.encode() + rows_ND.tobytes()).hexdigest()
