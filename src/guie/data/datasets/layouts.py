"""Turn lists, or the names of files, into rows as a layout says: the readers that most declarations name."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Formatter
from typing import Any, Literal

import numpy as np
import pandas as pd

from guie.base.errors import UserError
from guie.base.seeds import seeded_draws
from guie.data.datasets.parsing import (
    prefixed,
    read_columns,
    read_mat,
    read_pairs,
    read_words,
    refuse_others,
    whole_numbers,
)
from guie.data.manifest.companions import Companions
from guie.data.names import IMAGE_SUFFIXES


@dataclass(frozen=True)
class Listing:
    """The contents of the data set's own lists, before checking that the images exist.

    Columns of `rows`: image_path (relative to the data set's folder), label (the class within the
    data set; several joined by `|`), split, role; and domain, if a data set has several.
    `companions` name images and classes like `rows` do: see `guie.data.manifest.companions`.
    """

    rows: pd.DataFrame
    warnings: tuple[str, ...] = ()
    companions: Companions = field(default_factory=dict)


@dataclass(frozen=True)
class Layout:
    """Which lists to read, and how columns become rows.

    Attributes:
        lists: by split, the name of its list, with `*` for several; or the names that it may have.
        optional: splits whose list may be absent.
        form: a table with a header; words, separated by spaces; pairs, split at the first separator;
            variables of a MATLAB file.
        join: a second list, and its columns.
        replace: by column, a regular expression and its replacement.
        parse: by column, a regular expression, whose named groups are further columns.
        numbers: columns of whole numbers. `number` counts the rows from 1.
        unique: columns by which a split's rows are unique; the first of equal ones stays.
        path, label: format strings of columns.
        prefixes: folders that the path may be in; the one with most images counts.
        split: of every image. By default that of its list.
        splits: by column and value, the split and the role.
        train_half, train_up_to: the column by whose values, in order, the first half, or those up to a
            value, are train. With an odd number of values, train has one more.
        domains: by column and value, the domain.
        several_labels: an image has a row for each of its labels.
        only_present: leave out rows without an image.
    """

    label: str
    path: str = "{path}"
    lists: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    optional: Sequence[str] = ()
    form: Literal["table", "words", "pairs", "mat"] = "table"
    columns: Sequence[str] = ()
    separator: str = ","
    skip: int = 0
    join: Mapping[str, Sequence[str]] = field(default_factory=dict)
    replace: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    parse: Mapping[str, str] = field(default_factory=dict)
    numbers: Sequence[str] = ()
    unique: Sequence[str] = ()
    prefixes: Sequence[str] = ("",)
    split: str | None = None
    splits: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)
    train_half: str | None = None
    train_up_to: Mapping[str, int] = field(default_factory=dict)
    domains: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    several_labels: bool = False
    only_present: bool = False


def read_lists(folder: Path, files: frozenset[str], layout: Layout, **options: Any) -> Listing:
    """Return rows in the order of the lists. Raises UserError naming the list and the line."""
    parts = []
    for split, names in layout.lists.items():
        paths = _found(folder, [names] if isinstance(names, str) else names)
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


def _found(folder: Path, names: Sequence[str]) -> list[Path]:
    """Return the lists of the first name that has any; the first name if none has."""
    several = (sorted(folder.glob(name)) for name in names)
    return next(filter(None, several), [folder / names[0]])


def _read(path: Path, layout: Layout) -> pd.DataFrame:
    """Return the columns of one list."""
    skip = layout.skip
    if layout.form == "words":
        table = read_words(path, layout.columns, skip)
    elif layout.form == "pairs":
        table = read_pairs(path, layout.columns, layout.separator)
    elif layout.form == "mat":
        table = pd.DataFrame({name: pd.Series(read_mat(path, name)) for name in layout.columns})
    else:
        table, skip = read_columns(path, layout.columns, layout.separator), 1
    for name, columns in layout.join.items():
        path = path.with_name(name)
        table = table.merge(read_words(path, columns))
    table["number"] = range(1, len(table) + 1)
    for column, (old, new) in layout.replace.items():
        table[column] = table[column].str.replace(old, new, regex=True)
    for column, pattern in layout.parse.items():
        found = table[column].astype(str).str.extract(pattern)
        if (odd := found.isna().any(axis=1).to_numpy()).any():
            row = int(odd.argmax())
            raise UserError(
                f"{path}:{row + 1 + skip}: {column} {table[column].iloc[row]!r} is not of the form"
                f" {pattern}"
            )
        table[found.columns] = found
    for column in layout.numbers:
        table[column] = whole_numbers(table[column], path)
    for column, allowed in (*layout.splits.items(), *layout.domains.items()):
        refuse_others(path, table[column], allowed, skip)
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
    """Return rows of columns: image_path, split by list, and those of the layout."""
    if layout.only_present:
        table = table[present(table["image_path"], files)]
    label, split, role = _filled(layout.label, table), table["split"], None
    trained = None
    for column, meanings in layout.splits.items():
        split, *roles = (
            table[column].map(dict(zip(meanings, part, strict=True)))
            for part in zip(*meanings.values(), strict=True)
        )
        role = roles[0] if roles else None
    for column, last in layout.train_up_to.items():
        trained = table[column] <= last
    if layout.train_half:
        distinct = sorted(table[layout.train_half].unique())
        trained = table[layout.train_half].isin(distinct[: (len(distinct) + 1) // 2])
    if "test_classes" in options:
        trained = drawn_train(label, **options)
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


def drawn_train(label: pd.Series, test_classes: int, seed: int) -> pd.Series:
    """Return a boolean per image: whether its class is none of `test_classes` random ones.

    The choice depends only on the seed and the names, so a missing class changes no other. Raises
    UserError if no class would remain to train on.
    """
    names = np.array(sorted(label.unique()), dtype=object)
    if test_classes >= len(names):
        raise UserError(f"test_classes {test_classes}: there are only {len(names)} classes")
    chosen = names[np.argsort(seeded_draws(seed, names))[:test_classes]]
    return ~label.isin(chosen)


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
