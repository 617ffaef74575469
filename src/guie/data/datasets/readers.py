"""The readers that most declarations name: turn lists, or the names of files, into rows as a layout says.

Below them are the parsers of tables, words, pairs, JSON and MATLAB files. An error names file and line.
"""

import csv
import json
import re
import unicodedata
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Formatter
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy.io import loadmat

from guie.base.errors import UserError, why_unreadable
from guie.base.seeds import seeded_draws
from guie.data.manifest.companions import Companions
from guie.data.names import IMAGE_SUFFIXES


@dataclass(frozen=True)
class Listing:
    """The contents of the data set's own lists, before checking that the images exist."""

    # image_path (relative to the data set's folder), label (the class within the data set; several joined by
    # `|`), split, role; and domain, if a data set has several. Companions name images and classes alike.
    rows: pd.DataFrame
    warnings: tuple[str, ...] = ()
    companions: Companions = field(default_factory=dict)


@dataclass(frozen=True)
class Layout:
    """The lists of a data set, and how their columns become rows."""

    label: str  # a format string of columns, like `path`
    path: str = "{path}"
    # By split, the name of its list, with `*` for several; or the names that it may have
    lists: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    optional: Sequence[str] = ()  # splits whose list may be absent
    # A table with a header; words, separated by spaces; pairs, split at the first separator; variables of a
    # MATLAB file
    form: Literal["table", "words", "pairs", "mat"] = "table"
    columns: Sequence[str] = ()
    separator: str = ","
    skip: int = 0
    # Columns with an image each, and its role outside train; a row becomes one for each image
    images: Mapping[str, str] = field(default_factory=dict)
    # A second list, and its columns
    join: Mapping[str, Sequence[str]] = field(default_factory=dict)
    # By column, a regular expression: and its replacement, or its named groups are further columns
    replace: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    parse: Mapping[str, str] = field(default_factory=dict)
    numbers: Sequence[str] = ()  # columns of whole numbers; `number` counts the rows from 1
    unique: Sequence[str] = ()  # columns that identify a row within its split; the first one stays
    # Folders that the path may be in; the one with most images counts
    prefixes: Sequence[str] = ("",)
    split: str | None = None  # of every image; by default that of its list
    # By column and value, the split and the role
    splits: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)
    # The column by whose values, in order, the first half, or those up to a value, are train. With an odd
    # number of values, train has one more.
    train_half: str | None = None
    train_up_to: Mapping[str, int] = field(default_factory=dict)
    domains: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # by column and value
    several_labels: bool = False  # an image has a row for each of its labels
    only_present: bool = False  # leave out rows without an image


def read_lists(folder: Path, files: frozenset[str], layout: Layout, **options: Any) -> Listing:
    """Return rows in the order of the lists. Raises UserError naming the list and the line."""
    parts = []
    for split, names in layout.lists.items():
        names = [names] if isinstance(names, str) else names
        found = filter(None, (sorted(folder.glob(name)) for name in names))
        paths = next(found, [folder / names[0]])  # if none exists, reading it says so
        if split in layout.optional and not paths[0].is_file():
            continue
        part = pd.concat([_read(path, layout) for path in paths], ignore_index=True)
        if layout.unique:
            part = part.drop_duplicates(layout.unique)
        prefixes = [prefix.format(split=split) for prefix in layout.prefixes]
        path = prefixed(_filled(layout.path, part), files, prefixes)
        parts.append(part.assign(image_path=path, split=split))
    return _rows(pd.concat(parts, ignore_index=True), files, layout, options)


def read_names(folder: Path, files: frozenset[str], layout: Layout, **options: Any) -> Listing:
    """Return a row for each image on disk whose path has the layout's form, by path.

    A class has one name, however its folder was unzipped.
    """
    table = pd.DataFrame({"path": pictures(files)}, dtype=str)
    found = table["path"].str.extract(layout.parse["path"])
    table = table.join(found.dropna(), how="inner").reset_index(drop=True)
    table[found.columns] = table[found.columns].map(plain_name)
    table = table.assign(image_path=table["path"], split=layout.split)
    return _rows(table, files, layout, options)


def _read(path: Path, layout: Layout) -> pd.DataFrame:
    """Return the columns of one list."""
    skip = layout.skip
    if layout.form == "words":
        table = read_words(path, layout.columns, skip)
    elif layout.form == "pairs":
        table = _read_pairs(path, layout.columns, layout.separator)
    elif layout.form == "mat":
        table = pd.DataFrame({name: pd.Series(read_mat(path, name)) for name in layout.columns})
    else:
        table, skip = read_columns(path, layout.columns, layout.separator), 1
    for name, columns in layout.join.items():
        path = path.with_name(name)
        table = table.merge(read_words(path, columns))
    table["number"] = range(1, len(table) + 1)
    if layout.images:
        sides = [table.assign(path=table[name], role=role) for name, role in layout.images.items()]
        table = pd.concat(sides)  # with the index that says a row's place in the list
    for column, (old, new) in layout.replace.items():
        table[column] = table[column].str.replace(old, new, regex=True)

    def refuse(column: str, bad: pd.Series, why: str) -> None:
        """Raise UserError naming the line of the first bad value."""
        if bad.any():
            row = int(bad.to_numpy().argmax())
            line = table.index[row] + 1 + skip
            raise UserError(f"{path}:{line}: {column} {table[column].iloc[row]!r}{why}")

    for column, pattern in layout.parse.items():
        found = table[column].astype(str).str.extract(pattern)
        refuse(column, found.isna().any(axis=1), f" is not of the form {pattern}")
        table[found.columns] = found
    for column in layout.numbers:
        table[column] = whole_numbers(table[column], path)
    for column, allowed in (*layout.splits.items(), *layout.domains.items()):
        why = f"; allowed are {', '.join(allowed)}"
        refuse(column, ~table[column].isin(list(allowed)), why)
    return table


def _filled(template: str, table: pd.DataFrame) -> pd.Series:
    filled = pd.Series("", index=table.index, dtype=str)
    for literal, name, spec, _ in Formatter().parse(template):
        filled += literal
        if name:
            filled += table[name].map(f"{{:{spec}}}".format) if spec else table[name].astype(str)
    return filled


def _rows(
    table: pd.DataFrame, files: frozenset[str], layout: Layout, options: Mapping[str, Any]
) -> Listing:
    """Return the rows of a table with image_path, the split of its list, and the columns of the layout."""
    if layout.only_present:
        table = table[present(table["image_path"], files)]
    label, split = _filled(layout.label, table), table["split"]
    role = trained = None
    for column, meanings in layout.splits.items():
        split, *roles = (
            table[column].map(dict(zip(meanings, part, strict=True)))
            for part in zip(*meanings.values(), strict=True)
        )
        role = roles[0] if roles else None
    if layout.images:
        role = table["role"].mask(split == "train", "train")
    for column, last in layout.train_up_to.items():
        trained = table[column] <= last
    if layout.train_half:
        distinct = sorted(table[layout.train_half].unique())
        trained = table[layout.train_half].isin(distinct[: (len(distinct) + 1) // 2])
    if "test_classes" in options:
        trained = ~label.isin(_test_classes(label, **options))
    if trained is not None:
        split = trained.map({True: "train", False: "test"})
    rows = listing(table["image_path"], label, split, role)
    for column, domains in layout.domains.items():
        rows["domain"] = table[column].map(domains)
    if layout.several_labels:
        joined = rows.groupby("image_path", sort=False)["label"].agg("|".join)
        rows = rows.drop_duplicates("image_path", ignore_index=True)
        rows["label"] = joined.to_numpy()
    return Listing(rows)


def listing(
    image_path: pd.Series,
    label: pd.Series,
    split: pd.Series | str,
    role: pd.Series | str | None = None,
) -> pd.DataFrame:
    """Build rows from columns; the default role is `train` in train, elsewhere `both`."""
    rows = pd.DataFrame({"image_path": image_path, "label": label}).assign(split=split)
    usual = rows["split"].map({"train": "train"}).fillna("both")
    return rows.assign(role=usual if role is None else role).reset_index(drop=True)


def _test_classes(label: pd.Series, test_classes: int, seed: int) -> np.ndarray:
    """Draw classes. One that is missing changes the choice among no others."""
    names = np.array(sorted(label.unique()), dtype=object)
    if test_classes >= len(names):
        raise UserError(f"test_classes {test_classes}: there are only {len(names)} classes")
    return names[np.argsort(seeded_draws(seed, names))[:test_classes]]


def pictures(files: frozenset[str], start: str = "") -> list[str]:
    """Return the images among `files`, by their extensions, whose path starts so, sorted."""
    below = (file for file in files if file.startswith(start))
    return sorted(file for file in below if Path(file).suffix.lower() in IMAGE_SUFFIXES)


def present(paths: pd.Series, files: frozenset[str]) -> pd.Series:
    """Return a boolean per path: whether it is one of `files`."""
    # 7 times faster than isin, which first converts all names to an Arrow array (500,000 names)
    return pd.Series([path in files for path in paths], index=paths.index, dtype=bool)


def plain_name(path: str) -> str:
    """Return a path in NFC, with `#U4e2d`, as some versions of unzip write it, decoded to its letter."""
    unescaped = re.sub(r"#U([0-9a-fA-F]{4})", lambda match: chr(int(match[1], 16)), path)
    return unicodedata.normalize("NFC", unescaped)


def read_words(path: Path, columns: Sequence[str], skip: int = 0) -> pd.DataFrame:
    """Read columns of words separated by spaces, without a header, as text; `skip` lines come before.

    Raises UserError.
    """
    how = {"header": None, "names": list(columns), "skiprows": skip, "quoting": csv.QUOTE_NONE}
    table = _table(path, r"\s+", **how)
    if (short := table.iloc[:, -1] == "").any():
        line = int(short.to_numpy().argmax()) + 1 + skip
        raise UserError(f"{path}:{line}: expected {len(columns)} columns: {', '.join(columns)}")
    return table


def _read_pairs(path: Path, columns: Sequence[str], separator: str) -> pd.DataFrame:
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
        found = ", ".join(map(str, table.columns))
        raise UserError(f"{path}: no column {', '.join(missing)}; found {found}")
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
    """Read the lines of a text. Raises UserError."""
    return _text(path).splitlines()


def whole_numbers(column: pd.Series, path: Path) -> pd.Series:
    """Convert a text column to whole numbers. Raises UserError naming the first invalid value."""
    numbers = pd.to_numeric(column, errors="coerce")
    if (wrong := numbers.isna() | (numbers % 1 != 0)).any():
        raise UserError(f"{path}: {column.name}: {column[wrong].iloc[0]!r} is not a whole number")
    return numbers.astype(int)


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
