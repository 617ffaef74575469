"""The list files of datasets, read as text; whatever is wrong with one is told by file and line."""

from __future__ import annotations

import csv
import json
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.io import loadmat

from guie.base.errors import UserError


def read_words(path: Path, columns: Sequence[str], skip: int = 0) -> pd.DataFrame:
    """Columns of words separated by any number of blanks, without a header; all text.

    `skip` lines come first, such as a count and a header. Raises UserError.
    """
    return _table(path, sep=r"\s+", header=None, names=list(columns), skiprows=skip, exact=True)


def read_pairs(path: Path, columns: tuple[str, str], separator: str = " ") -> pd.DataFrame:
    """Two columns parted at the first separator, so that the second may hold more of them."""
    lines = pd.Series(read_lines(path), dtype=str)
    parts = lines[lines.str.strip() != ""].str.partition(separator)
    for line in parts.index[parts[1] == ""]:
        raise UserError(f"{path}:{line + 1}: expected {columns[0]}{separator}{columns[1]}")
    return parts[[0, 2]].set_axis(list(columns), axis=1).apply(lambda column: column.str.strip())


def read_columns(path: Path, columns: Iterable[str], separator: str = ",") -> pd.DataFrame:
    """The named columns of a table with a header; all text. Raises UserError if one is missing."""
    table = _table(path, sep=separator, header=0)
    missing = [name for name in columns if name not in table.columns]
    if missing:
        raise UserError(
            f"{path}: no column {', '.join(missing)}; found {', '.join(map(str, table.columns))}"
        )
    return table[list(columns)]


def read_records(path: Path, keys: Sequence[str]) -> pd.DataFrame:
    """A JSON list of objects, as a table of `keys`; a key absent from an object is missing."""
    try:
        records = json.loads(_text(path))
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno}: not valid JSON: {error.msg}") from None
    if not isinstance(records, list) or not all(isinstance(entry, dict) for entry in records):
        raise UserError(f"{path}: expected a list of objects with {', '.join(keys)}")
    # object: a number beside missing ones must not become 12.0
    return pd.DataFrame(records, dtype=object).reindex(columns=list(keys))


def read_mat(path: Path, key: str, fields: Sequence[str] = ()) -> Any:
    """One array of a MATLAB file, of at least one dimension, with `fields`. Raises UserError."""
    _require(path)
    try:
        array = np.atleast_1d(loadmat(path, squeeze_me=True, variable_names=[key])[key])
    except KeyError:
        raise UserError(f"{path}: holds no {key!r}") from None
    except (ValueError, TypeError, OSError, NotImplementedError) as error:
        raise UserError(f"{path}: not a readable MATLAB file: {error}") from None
    missing = sorted(set(fields) - set(array.dtype.names or ()))
    if missing:
        raise UserError(f"{path}: {key!r} has no field {', '.join(missing)}")
    return array


def whole_numbers(column: pd.Series, path: Path) -> pd.Series:
    """A column of text as whole numbers. Raises UserError with the first that is none."""
    numbers = pd.to_numeric(column, errors="coerce")
    if (numbers.isna() | (numbers % 1 != 0)).any():
        wrong = column[numbers.isna() | (numbers % 1 != 0)].iloc[0]
        raise UserError(f"{path}: {column.name}: {wrong!r} is no whole number")
    return numbers.astype(int)


def read_lines(path: Path) -> list[str]:
    """Lines without their ends. Raises UserError."""
    return _text(path).splitlines()


def first_present(folder: Path, names: Sequence[str]) -> Path:
    """The first of several places of a list that there is; the first name if there is none."""
    return next((folder / name for name in names if (folder / name).is_file()), folder / names[0])


def prefixed(paths: pd.Series, files: frozenset[str], prefixes: Sequence[str]) -> pd.Series:
    """`paths` with the one of `prefixes` under which most of them lie on disk.

    Downloads differ in the folder around the images; lists name them from within it.
    """
    some = paths.drop_duplicates().iloc[:2000]
    best = max(prefixes, key=lambda prefix: sum(prefix + path in files for path in some))
    return best + paths


def _table(path: Path, exact: bool = False, **how: Any) -> pd.DataFrame:
    """The table as text; with `exact`, every line must have a word for every column."""
    _require(path)
    quoting = csv.QUOTE_NONE if exact else csv.QUOTE_MINIMAL
    try:
        with warnings.catch_warnings():
            # pandas drops the words of a too long first line with no more than this warning
            warnings.simplefilter("error", pd.errors.ParserWarning)
            table = pd.read_csv(
                path,
                dtype=str,
                keep_default_na=False,
                encoding="utf-8-sig",
                index_col=False,
                quoting=quoting,
                **how,
            ).fillna("")
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8; fetch the file again") from None
    except pd.errors.EmptyDataError:
        table = pd.DataFrame()
    except (pd.errors.ParserError, pd.errors.ParserWarning, ValueError) as error:
        raise UserError(f"{path}: cannot be read as a table: {str(error).strip()}") from None
    if table.empty:
        raise UserError(f"{path}: empty; fetch the file again")
    short = table.iloc[:, -1] == ""
    if exact and short.any():
        line = int(short.to_numpy().argmax()) + 1 + how.get("skiprows", 0)
        columns = ", ".join(table.columns)
        raise UserError(f"{path}:{line}: expected {len(table.columns)} columns: {columns}")
    return table


def _text(path: Path) -> str:
    _require(path)
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8; fetch the file again") from None


def _require(path: Path) -> None:
    if not path.is_file():
        raise UserError(f"{path}: no such file; the dataset's download holds it")
