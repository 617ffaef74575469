"""Parse the lists of a data set: tables, words, pairs, JSON and MATLAB files. A fault names file and line."""

from __future__ import annotations

import csv
import json
import warnings
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.io import loadmat

from guie.base.errors import UserError, why_unreadable


def read_words(path: Path, columns: Sequence[str], skip: int = 0) -> pd.DataFrame:
    """Read columns of words separated by spaces, without a header, as text.

    The first `skip` lines, such as a count and a header, are ignored. Raises UserError.
    """
    how = {"header": None, "names": list(columns), "skiprows": skip, "quoting": csv.QUOTE_NONE}
    table = _table(path, r"\s+", **how)
    if (short := table.iloc[:, -1] == "").any():
        line = int(short.to_numpy().argmax()) + 1 + skip
        raise UserError(f"{path}:{line}: expected {len(columns)} columns: {', '.join(columns)}")
    return table


def read_pairs(path: Path, columns: Sequence[str], separator: str = " ") -> pd.DataFrame:
    """Read two columns split at the first separator; the second may contain more separators."""
    lines = pd.Series(read_lines(path), dtype=str)
    parts = lines[lines.str.strip() != ""].str.partition(separator)
    for line in parts.index[parts[1] == ""]:
        raise UserError(f"{path}:{line + 1}: expected {columns[0]}{separator}{columns[1]}")
    return parts[[0, 2]].set_axis(list(columns), axis=1).apply(lambda column: column.str.strip())


def read_columns(path: Path, columns: Iterable[str], separator: str = ",") -> pd.DataFrame:
    """Read the named columns of a table with a header as text. Raises UserError if one is missing."""
    table = _table(path, separator, header=0)
    if missing := [name for name in columns if name not in table.columns]:
        raise UserError(
            f"{path}: no column {', '.join(missing)}; found {', '.join(map(str, table.columns))}"
        )
    return table[list(columns)]


def read_records(path: Path, keys: Sequence[str]) -> pd.DataFrame:
    """Read a JSON list of objects as a table of `keys`; absent keys become missing values."""
    try:
        records = json.loads(_text(path))
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno}: not valid JSON: {error.msg}") from None
    if not isinstance(records, list) or not all(isinstance(entry, dict) for entry in records):
        raise UserError(f"{path}: expected a list of objects with {', '.join(keys)}")
    # object: in a column with missing values, 12 must not become 12.0
    return pd.DataFrame(records, dtype=object).reindex(columns=list(keys))


def read_mat(path: Path, key: str, fields: Sequence[str] = ()) -> Any:
    """Read one array of a MATLAB file, of at least one dimension, with `fields`. Raises UserError."""
    _require(path)
    try:
        array = np.atleast_1d(loadmat(path, squeeze_me=True, variable_names=[key])[key])
    except KeyError:
        raise UserError(f"{path}: has no variable {key!r}") from None
    except (ValueError, TypeError, OSError, NotImplementedError) as error:
        raise UserError(f"{path}: not a readable MATLAB file: {error}") from None
    if missing := sorted(set(fields) - set(array.dtype.names or ())):
        raise UserError(f"{path}: {key!r} has no field {', '.join(missing)}")
    return array


def read_lines(path: Path) -> list[str]:
    """Read lines without line breaks. Raises UserError."""
    return _text(path).splitlines()


def whole_numbers(column: pd.Series, path: Path) -> pd.Series:
    """Convert a text column to whole numbers. Raises UserError naming the first invalid value."""
    numbers = pd.to_numeric(column, errors="coerce")
    if (wrong := numbers.isna() | (numbers % 1 != 0)).any():
        raise UserError(f"{path}: {column.name}: {column[wrong].iloc[0]!r} is not a whole number")
    return numbers.astype(int)


def refuse_others(path: Path, column: pd.Series, allowed: Collection[str], skip: int) -> None:
    """Raise UserError naming the line of the first value that is not allowed, after `skip` lines."""
    if (unknown := ~column.isin(list(allowed)).to_numpy()).any():
        row = int(unknown.argmax())
        raise UserError(
            f"{path}:{row + 1 + skip}: {column.name} {column.iloc[row]!r}; allowed are"
            f" {', '.join(allowed)}"
        )


def first_present(folder: Path, names: Sequence[str]) -> Path:
    """Return the first existing path among `names`; the first name if none exists."""
    return next((folder / name for name in names if (folder / name).is_file()), folder / names[0])


def prefixed(paths: pd.Series, files: frozenset[str], prefixes: Sequence[str]) -> pd.Series:
    """Add to `paths` the one of `prefixes` under which most of them exist.

    Downloads wrap the images in different folders, while the lists name paths inside them.
    """
    some = paths.drop_duplicates().iloc[:2000]
    best = max(prefixes, key=lambda prefix: sum(prefix + path in files for path in some))
    return best + paths


def _table(path: Path, separator: str, **how: Any) -> pd.DataFrame:
    """Read a table as text."""
    _require(path)
    how = {"dtype": str, "keep_default_na": False, "index_col": False, **how}
    try:
        with warnings.catch_warnings():
            # pandas drops the words of a too long first line with only this warning
            warnings.simplefilter("error", pd.errors.ParserWarning)
            table = pd.read_csv(path, sep=separator, encoding="utf-8-sig", **how).fillna("")
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8; download the file again") from None
    except pd.errors.EmptyDataError:
        table = pd.DataFrame()
    except (pd.errors.ParserError, pd.errors.ParserWarning, ValueError) as error:
        raise UserError(f"{path}: cannot be read as a table: {str(error).strip()}") from None
    if table.empty:
        raise UserError(f"{path}: empty; download the file again")
    return table


def _text(path: Path) -> str:
    _require(path)
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8; download the file again") from None


def _require(path: Path) -> None:
    if why := why_unreadable(path):
        raise UserError(f"{why}; it is part of the data set's download")
