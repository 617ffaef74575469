"""Read a data set's folder into checked manifest rows: parse its lists and match them with its files."""

from __future__ import annotations

import csv
import json
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.io import loadmat

from guie.base.errors import UserError
from guie.data.datasets.base import Dataset, Expected, Reading, as_on_disk, present
from guie.data.datasets.folder import walk
from guie.data.manifest import Sidecar
from guie.data.manifest.companions import Companions, renamed, within
from guie.data.names import foreign


def read_words(path: Path, columns: Sequence[str], skip: int = 0) -> pd.DataFrame:
    """Read columns of words separated by spaces, without a header, as text.

    The first `skip` lines, such as a count and a header, are ignored. Raises UserError.
    """
    return _table(path, sep=r"\s+", header=None, names=list(columns), skiprows=skip, exact=True)


def read_pairs(path: Path, columns: tuple[str, str], separator: str = " ") -> pd.DataFrame:
    """Read two columns split at the first separator; the second may contain more separators."""
    lines = pd.Series(read_lines(path), dtype=str)
    parts = lines[lines.str.strip() != ""].str.partition(separator)
    for line in parts.index[parts[1] == ""]:
        raise UserError(f"{path}:{line + 1}: expected {columns[0]}{separator}{columns[1]}")
    return parts[[0, 2]].set_axis(list(columns), axis=1).apply(lambda column: column.str.strip())


def read_columns(path: Path, columns: Iterable[str], separator: str = ",") -> pd.DataFrame:
    """Read the named columns of a table with a header as text. Raises UserError if one is missing."""
    table = _table(path, sep=separator, header=0)
    missing = [name for name in columns if name not in table.columns]
    if missing:
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
    missing = sorted(set(fields) - set(array.dtype.names or ()))
    if missing:
        raise UserError(f"{path}: {key!r} has no field {', '.join(missing)}")
    return array


def whole_numbers(column: pd.Series, path: Path) -> pd.Series:
    """Convert a text column to whole numbers. Raises UserError naming the first invalid value."""
    numbers = pd.to_numeric(column, errors="coerce")
    if (numbers.isna() | (numbers % 1 != 0)).any():
        wrong = column[numbers.isna() | (numbers % 1 != 0)].iloc[0]
        raise UserError(f"{path}: {column.name}: {wrong!r} is not a whole number")
    return numbers.astype(int)


def read_lines(path: Path) -> list[str]:
    """Read lines without line breaks. Raises UserError."""
    return _text(path).splitlines()


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


def _table(path: Path, exact: bool = False, **how: Any) -> pd.DataFrame:
    """Read a table as text; with `exact`, every line must have a word for every column."""
    _require(path)
    quoting = csv.QUOTE_NONE if exact else csv.QUOTE_MINIMAL
    try:
        with warnings.catch_warnings():
            # pandas drops the words of a too long first line with only this warning
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
        raise UserError(f"{path}: not UTF-8; download the file again") from None
    except pd.errors.EmptyDataError:
        table = pd.DataFrame()
    except (pd.errors.ParserError, pd.errors.ParserWarning, ValueError) as error:
        raise UserError(f"{path}: cannot be read as a table: {str(error).strip()}") from None
    if table.empty:
        raise UserError(f"{path}: empty; download the file again")
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
        raise UserError(f"{path}: not UTF-8; download the file again") from None


def _require(path: Path) -> None:
    if not path.is_file():
        raise UserError(f"{path}: no such file; it is part of the data set's download")


def read_dataset(
    dataset: Dataset,
    folder: str | Path,
    *,
    splits: Collection[str] | None = None,
    domain: str | None = None,
    partial: bool = False,
    as_train: bool = False,
    **options: Any,
) -> Reading:
    """Return manifest rows of a downloaded data set; labels are `<domain>/<dataset>/<class>`.

    Args:
        splits: keep only these; None keeps all.
        domain: replaces the data set's domain; not allowed for a data set of several domains.
        partial: accept an incomplete download with a warning.
        as_train: every image becomes a train image, each once.
        options: the data set's own options, such as `test_vehicles`.

    Raises UserError if the download is incomplete, a list is invalid, or an option is unknown.
    """
    folder = Path(folder)
    chosen = _options(dataset, options)
    files = frozenset(path for path, entry in walk(folder) if not foreign(entry.name))
    listing = dataset.read(folder, files, **chosen)
    rows = listing.rows if splits is None else listing.rows[listing.rows["split"].isin(splits)]
    rows = rows.reset_index(drop=True)
    if rows.empty:
        chosen_splits = f" of split {', '.join(splits)}" if splits else ""
        raise UserError(f"{dataset.title} in {folder}: no images{chosen_splits} are listed")
    on_disk = as_on_disk(rows["image_path"], files)
    names = dict(zip(rows["image_path"], on_disk, strict=True)) if listing.companions else {}
    rows = rows.assign(image_path=on_disk)
    there = present(rows["image_path"], files)
    expected = [count for count in dataset.expected if count.applies(splits, chosen)]
    counted = _check_counts(dataset, folder, rows, there, expected, partial)
    rows = rows[there].reset_index(drop=True)
    if as_train:
        rows = rows.assign(split="train", role="train")
        rows = rows.drop_duplicates("image_path", ignore_index=True)
    table = _manifest(dataset, rows, domain)
    all_warnings = (*dataset.warnings, *listing.warnings, *counted)
    said = {} if as_train else _companions(dataset, listing.companions, names, domain)
    sidecar = _sidecar(dataset, table, domain)
    return Reading(table, folder, folder, sidecar, within(said, table), all_warnings)


def _check_counts(
    dataset: Dataset,
    folder: Path,
    rows: pd.DataFrame,
    there: pd.Series,
    expected: Sequence[Expected],
    partial: bool,
) -> list[str]:
    """Return warnings. Raises UserError if images are missing and `partial` is not set."""
    faults, warnings = [], []
    for count in expected:
        kind = count.select(rows)
        present = count.count(kind[there[kind.index]])
        absent = kind.loc[~there[kind.index], "image_path"]
        if absent.empty and count.least <= present <= count.most:
            continue
        what = f"{dataset.title}: {count} expected, {present:,} found"
        if not absent.empty:
            faults.append(f"{what}; first missing {folder / absent.iloc[0]}")
        elif count.certain:
            faults.append(what)
        else:
            warnings.append(f"{what} ({count.source})" if count.source else what)
    if not faults and not there.all():
        first = rows.loc[~there, "image_path"].iloc[0]
        faults = [
            f"{dataset.title}: {len(rows):,} images are listed, {there.sum():,} found; first"
            f" missing {folder / first}"
        ]
    if faults and not (partial and there.any()):
        raise UserError(
            "\n".join(faults) + "; complete the download, or set partial: true to use what is there"
        )
    return warnings + faults


def _manifest(dataset: Dataset, rows: pd.DataFrame, domain: str | None) -> pd.DataFrame:
    if domain and "domain" in rows:
        raise UserError(f"{dataset.title} has several domains; drop domain: {domain}")
    domains = (
        rows["domain"] if "domain" in rows else pd.Series(domain or dataset.domain, rows.index)
    )
    # labels before domains: each class of a multi-class label gets the prefix
    prefix = domains + f"/{dataset.name}/"
    label = prefix + rows["label"]
    several = rows["label"].str.contains("|", regex=False)
    label.loc[several] = [
        start + f"|{start}".join(classes.split("|"))
        for start, classes in zip(prefix[several], rows.loc[several, "label"], strict=True)
    ]
    return pd.DataFrame(
        {
            "image_path": rows["image_path"],
            "label": label,
            "domain": domains,
            "split": rows["split"],
            "role": rows["role"],
            "dataset": dataset.name,
        },
        dtype=str,
    )


def _companions(
    dataset: Dataset, companions: Companions, names: Mapping[str, str], domain: str | None
) -> Companions:
    """Return a listing's companions with images named as on disk and classes as in the manifest."""
    said = renamed(companions, lambda column: column.map(names).fillna(column))
    if "texts" not in said:
        return said
    texts = said["texts"]
    rows = _manifest(dataset, texts.assign(split="test", role="query"), domain)
    return {**said, "texts": rows[["image_path", "label", "domain"]].assign(text=texts["text"])}


def _sidecar(dataset: Dataset, table: pd.DataFrame, domain: str | None) -> Sidecar:
    """Return the data set's declarations for domains with both train and held-out rows."""
    sides = table["split"].eq("train").groupby(table["domain"]).nunique()
    own = {domain if domain else name: value for name, value in dataset.declares.items()}
    return Sidecar(domains={name: own[name] for name in sides.index[sides == 2] if name in own})


def _options(dataset: Dataset, given: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in given.items():
        if name not in dataset.options:
            known = ", ".join(dataset.options) or "none"
            raise UserError(f"{dataset.name}: unknown option {name!r}; it has: {known}")
        allowed = dataset.choices.get(name)
        default = dataset.options[name]
        if allowed and value not in allowed:
            raise UserError(
                f"{dataset.name}: {name}: {value!r}: allowed are {', '.join(map(str, allowed))}"
            )
        if type(value) is not type(default):
            kind = type(default).__name__
            raise UserError(
                f"{dataset.name}: {name}: {value!r} is no {kind}; the default is {default}"
            )
    return {**dataset.options, **given}
