"""What the reader of a public data set declares: names, counts, and how its lists become manifest rows."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from guie.base.errors import UserError
from guie.base.seeds import seeded_draws
from guie.data.manifest import Companions, DomainDeclaration, Sidecar


def present(paths: pd.Series, files: frozenset[str]) -> pd.Series:
    """Boolean per path: it is one of `files`."""
    # 7 times faster than isin, which first turns all names into an Arrow array (500,000 names)
    return pd.Series([path in files for path in paths], index=paths.index, dtype=bool)


def as_on_disk(paths: pd.Series, files: frozenset[str]) -> pd.Series:
    """Paths as the files are really named, where unzip wrote them in another way than the list."""
    absent = paths[~present(paths, files)]
    odd = absent[[not path.isascii() or "#U" in path for path in absent]]
    if odd.empty:
        return paths
    real = {plain_name(path): path for path in files}
    renamed = paths.copy()
    renamed[odd.index] = [real.get(plain_name(path), path) for path in odd]
    return renamed


def plain_name(path: str) -> str:
    """A path with `#U4e2d`, as some versions of unzip write it, turned into its letter, in NFC."""
    unescaped = re.sub(r"#U([0-9a-fA-F]{4})", lambda match: chr(int(match[1], 16)), path)
    return unicodedata.normalize("NFC", unescaped)


def class_disjoint(label: pd.Series, test_classes: int, seed: int) -> pd.Series:
    """`test` for the images of `test_classes` random classes, else `train`.

    Which classes depends on the seed and their names alone, so that a missing one changes no
    other. Raises UserError if that would leave no class to train.
    """
    names = np.array(sorted(label.unique()), dtype=object)
    if test_classes >= len(names):
        raise UserError(f"test_classes {test_classes}: only {len(names)} classes are there")
    chosen = names[np.argsort(seeded_draws(seed, names))[:test_classes]]
    return label.isin(chosen).map({True: "test", False: "train"})


COLUMNS = ("image_path", "label", "split", "role")
SHARED_CLASSES = DomainDeclaration(shared_classes=True)


@dataclass(frozen=True)
class Listing:
    """What the dataset's own lists say, before anybody looks whether the images are there.

    Columns of `rows`: image_path (relative to the dataset's folder), label (the class within the
    dataset; several joined by `|`), split, role; and domain, where a dataset has several.
    `companions` name images, and classes, as `rows` do: see `guie.data.manifest.companions`.
    """

    rows: pd.DataFrame
    warnings: tuple[str, ...] = ()
    companions: Companions = field(default_factory=dict)


@dataclass(frozen=True)
class Expected:
    """How many rows, or classes, of one kind a whole download has.

    Where sources disagree, or round, `least` and `most` differ: then a count outside of the range
    is a warning. A certain count that is not met is a refusal.
    """

    least: int
    most: int
    split: str | None = None  # None: all of them
    roles: tuple[str, ...] | None = None
    unit: str = "images"
    domain: str | None = None
    source: str = ""
    where: tuple[str, Any] | None = None  # the option's value that this count belongs to

    @property
    def certain(self) -> bool:
        """Whether the sources agree on one number."""
        return self.least == self.most

    def applies(self, splits: Collection[str] | None, options: Mapping[str, Any]) -> bool:
        """Whether the count says anything of what is read."""
        applicable = splits is None or self.split in splits
        if self.domain and options.get("subsets"):
            applicable &= self.domain in options["subsets"]
        return applicable and (self.where is None or options.get(self.where[0]) == self.where[1])

    def select(self, rows: pd.DataFrame) -> pd.DataFrame:
        """The rows that are counted."""
        counted = pd.Series(True, index=rows.index)
        if self.split:
            counted &= rows["split"] == self.split
        if self.roles:
            counted &= rows["role"].isin(self.roles)
        if self.domain:
            counted &= rows["domain"] == self.domain
        return rows[counted]

    def count(self, rows: pd.DataFrame) -> int:
        """How many there are in `rows`, a selection."""
        return len(rows) if self.unit == "images" else rows["label"].nunique()

    def __str__(self) -> str:
        number = f"{self.least:,}" if self.certain else f"{self.least:,} to {self.most:,}"
        named: dict[tuple[str, ...], str] = {("query",): "query ", ("index",): "index "}
        role = named.get(self.roles or (), "")
        words = [number, self.domain or "", self.split or "", f"{role}{self.unit}"]
        return " ".join(word for word in words if word)


def images(split: str, least: int, most: int | None = None, **more: Any) -> Expected:
    """`least` images of a split, or from `least` to `most` where the sources disagree."""
    return Expected(least, most or least, split, **more)


@dataclass(frozen=True)
class Dataset:
    """A public dataset: where it comes from, what it holds, how its folder is read.

    Args:
        name: what a mix config calls it; also the manifest's column `dataset`.
        folders: names of its folder under `input/`; case, `-` and `_` do not matter.
        markers: files or folders, one of which tells that a folder is the dataset's.
        read: (folder, files below it, **options) -> Listing. Opens lists, never images.
        options: the options `read` knows, with their defaults; `choices` what they may be.
        declares: overlaps that are part of the dataset, by domain.
    """

    name: str
    title: str
    domain: str
    folders: tuple[str, ...]
    markers: tuple[str, ...]
    homepage: str
    licence: str
    read: Callable[..., Listing]
    expected: tuple[Expected, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    choices: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    declares: Mapping[str, DomainDeclaration] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reading:
    """Manifest rows of a dataset, the overlaps its sidecar must declare, and what to tell.

    Attributes: `companions`, what else is known of these images.
    """

    table: pd.DataFrame
    sidecar: Sidecar
    warnings: tuple[str, ...]
    companions: Companions = field(default_factory=dict)


def listing(
    image_path: pd.Series,
    label: pd.Series,
    split: pd.Series | str,
    role: pd.Series | str | None = None,
) -> pd.DataFrame:
    """Rows from columns; a role not given is `train` in train, elsewhere `both`."""
    rows = pd.DataFrame({"image_path": image_path, "label": label}).assign(split=split)
    usual = rows["split"].map({"train": "train"}).fillna("both")
    return rows.assign(role=usual if role is None else role).reset_index(drop=True)


def first_half(class_ids: pd.Series) -> pd.Series:
    """`train` for images of the first half of the classes, by number, else `test`.

    The split of metric learning; of an odd number of classes train has one more.
    """
    distinct = sorted(class_ids.unique())
    train = distinct[: (len(distinct) + 1) // 2]
    return class_ids.isin(train).map({True: "train", False: "test"})


def by_folder(paths: Sequence[str], above: str, split: str) -> pd.DataFrame:
    """Rows of the images below `above`; the folders between are the class, slashes included."""
    path = pd.Series(paths, dtype=str)
    inside = path.str.removeprefix(f"{above}/" if above else "")
    label = inside.str.extract(r"^(.+)/[^/]+$")[0]  # partition has no columns for no paths
    return listing(path, label, split).dropna(subset="label", ignore_index=True)
