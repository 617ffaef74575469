"""What an adapter of a public dataset says of it: names, counts, and how its lists become rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from guie.data.manifest import Companions, DomainDeclaration, Sidecar

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
