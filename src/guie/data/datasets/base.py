"""Declare a public data set: names, expected counts, and how its lists become manifest rows."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from guie.base.errors import UserError
from guie.base.seeds import seeded_draws
from guie.data.manifest import DomainDeclaration, Manifest
from guie.data.manifest.companions import Companions
from guie.data.names import IMAGE_SUFFIXES


def present(paths: pd.Series, files: frozenset[str]) -> pd.Series:
    """Return a boolean per path: whether it is one of `files`."""
    # 7 times faster than isin, which first converts all names to an Arrow array (500,000 names)
    return pd.Series([path in files for path in paths], index=paths.index, dtype=bool)


def as_on_disk(paths: pd.Series, files: frozenset[str]) -> pd.Series:
    """Return the paths as named on disk, if unzip wrote them differently from the list."""
    absent = paths[~present(paths, files)]
    odd = absent[[not path.isascii() or "#U" in path for path in absent]]
    if odd.empty:
        return paths
    real = {plain_name(path): path for path in files}
    renamed = paths.copy()
    renamed[odd.index] = [real.get(plain_name(path), path) for path in odd]
    return renamed


def plain_name(path: str) -> str:
    """Return a path in NFC, with `#U4e2d`, as some versions of unzip write it, decoded to its letter."""
    unescaped = re.sub(r"#U([0-9a-fA-F]{4})", lambda match: chr(int(match[1], 16)), path)
    return unicodedata.normalize("NFC", unescaped)


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


SHARED_CLASSES = DomainDeclaration(shared_classes=True)


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
class Expected:
    """The number of rows, or classes, of one kind in a complete download.

    If sources disagree or round, `least` and `most` differ, and a count outside the range is a warning.
    A different count from a certain one is an error.
    """

    least: int
    most: int
    split: str | None = None  # None: all of them
    roles: tuple[str, ...] | None = None
    unit: str = "images"
    domain: str | None = None
    source: str = ""
    where: tuple[str, Any] | None = None  # option and value for which this count holds

    @property
    def certain(self) -> bool:
        """Whether the sources agree on one number."""
        return self.least == self.most

    def applies(self, splits: Collection[str] | None, options: Mapping[str, Any]) -> bool:
        """Return whether the count applies to these splits and options."""
        applicable = splits is None or self.split in splits
        if self.domain and options.get("subsets"):
            applicable &= self.domain in options["subsets"]
        return applicable and (self.where is None or options.get(self.where[0]) == self.where[1])

    def select(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return the rows that are counted."""
        counted = pd.Series(True, index=rows.index)
        if self.split:
            counted &= rows["split"] == self.split
        if self.roles:
            counted &= rows["role"].isin(self.roles)
        if self.domain:
            counted &= rows["domain"] == self.domain
        return rows[counted]

    def count(self, rows: pd.DataFrame) -> int:
        """Return the number of images or classes in `rows`, a selection."""
        return len(rows) if self.unit == "images" else rows["label"].nunique()

    def __str__(self) -> str:
        number = f"{self.least:,}" if self.certain else f"{self.least:,} to {self.most:,}"
        named: dict[tuple[str, ...], str] = {("query",): "query ", ("index",): "index "}
        role = named.get(self.roles or (), "")
        words = [number, self.domain or "", self.split or "", f"{role}{self.unit}"]
        return " ".join(word for word in words if word)


def images(split: str, least: int, most: int | None = None, **more: Any) -> Expected:
    """Expect `least` images of a split, or from `least` to `most` if the sources disagree."""
    return Expected(least, most or least, split, **more)


@dataclass(frozen=True)
class Dataset:
    """A public data set: its source, its contents, and the reader of its folder.

    Args:
        name: its name in a mix config and in the manifest's column `dataset`.
        folders: names of its folder under `input/`; case, `-` and `_` are ignored.
        markers: files or folders; a folder with any of them is the data set's.
        read: (folder, files below it, **options) -> Listing. Opens lists, never images.
        options: options of `read` with their defaults; `choices`: their allowed values.
        declares: overlaps that are part of the data set, by domain.
    """

    name: str
    title: str
    domain: str
    folders: tuple[str, ...]
    markers: tuple[str, ...]
    homepage: str
    read: Callable[..., Listing]
    expected: tuple[Expected, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    choices: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    declares: Mapping[str, DomainDeclaration] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reading(Manifest):
    """A data set as a manifest, and warnings."""

    warnings: tuple[str, ...] = ()


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


def first_half(class_ids: pd.Series) -> pd.Series:
    """Return a boolean per image: whether its class is in the first half, by number.

    The usual split of metric learning; with an odd number of classes, train has one more.
    """
    distinct = sorted(class_ids.unique())
    train = distinct[: (len(distinct) + 1) // 2]
    return class_ids.isin(train)


def by_class(image_path: pd.Series, label: pd.Series, trained: pd.Series) -> pd.DataFrame:
    """Build rows from columns: train where `trained` is True, else test."""
    return listing(image_path, label, trained.map({True: "train", False: "test"}))


def pictures(files: frozenset[str], start: str = "") -> list[str]:
    """Return the images among `files`, by their extensions, whose path starts so, sorted."""
    below = (file for file in files if file.startswith(start))
    return sorted(file for file in below if Path(file).suffix.lower() in IMAGE_SUFFIXES)


def by_folder(paths: Sequence[str], above: str, split: str) -> pd.DataFrame:
    """Return rows of the images below `above`; the folders in between are the class, with slashes."""
    path = pd.Series(paths, dtype=str)
    inside = path.str.removeprefix(f"{above}/" if above else "")
    label = inside.str.extract(r"^(.+)/[^/]+$")[
        0
    ]  # partition returns no columns if there are no paths
    return listing(path, label, split).dropna(subset="label", ignore_index=True)
