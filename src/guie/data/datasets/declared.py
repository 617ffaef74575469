"""Load the declarations of public data sets from `declared.yaml`, which says what their keys mean."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from ruamel.yaml import YAML

from guie.data.datasets.layouts import Layout, Listing, read_lists, read_names
from guie.data.datasets.special import SPECIAL
from guie.data.manifest import DomainDeclaration


@dataclass(frozen=True)
class Expected:
    """The number of rows, or classes, of one kind in a complete download.

    If sources disagree or round, `least` and `most` differ, and a count outside the range is a warning.
    A different count from a certain one is an error.
    """

    least: int
    most: int
    split: str | None = None  # None: all of them
    roles: Sequence[str] = ()  # (): all of them
    unit: str = "images"
    domain: str | None = None
    source: str = ""
    where: Mapping[str, Any] = field(default_factory=dict)  # options for which this count holds

    @property
    def certain(self) -> bool:
        """Whether the sources agree on one number."""
        return self.least == self.most

    def applies(self, splits: Collection[str] | None, options: Mapping[str, Any]) -> bool:
        """Return whether the count applies to these splits and options."""
        applicable = splits is None or self.split in splits
        if self.domain and options.get("subsets"):
            applicable &= self.domain in options["subsets"]
        return applicable and all(options[name] == value for name, value in self.where.items())

    def select(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return the rows that are counted."""
        for column in ("split", "domain"):
            if value := getattr(self, column):
                rows = rows[rows[column] == value]
        return rows[rows["role"].isin(self.roles)] if self.roles else rows

    def __str__(self) -> str:
        number = f"{self.least:,}" if self.certain else f"{self.least:,} to {self.most:,}"
        words = [number, self.domain, self.split, *self.roles, self.unit]
        return " ".join(word for word in words if word)


@dataclass(frozen=True)
class Download:
    """A file that a data set's source offers, and its digest, `<algorithm>:<hex>`."""

    url: str
    digest: str

    @property
    def name(self) -> str:
        """The file's name."""
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class Dataset:
    """A public data set: its source, its contents, and the reader of its folder.

    Attributes:
        name: its name in a mix config and in the manifest's column `dataset`.
        read: (folder, files below it, **options) -> Listing. Opens lists, never images.
    """

    name: str
    title: str
    domain: str
    folders: Sequence[str]
    markers: Sequence[str]
    homepage: str
    read: Callable[..., Listing]
    expected: Sequence[Expected] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    choices: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    declares: Mapping[str, DomainDeclaration] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    downloads: Sequence[Download] = ()


def _expected(counts: Mapping[str, Any]) -> list[Expected]:
    """Return an entry of `counts`, one for each split in it."""
    splits = [split for split in ("train", "test", "val", "all") if split in counts]
    shared = {key: value for key, value in counts.items() if key not in splits}
    expected = []
    for split in splits:
        number = counts[split]
        least, most = number if isinstance(number, list) else (number, number)
        expected.append(Expected(least, most, None if split == "all" else split, **shared))
    return expected


def _dataset(
    name: str,
    reader: str,
    layout: Mapping[str, Any] | None = None,
    counts: Sequence[Mapping[str, Any]] = (),
    declares: Mapping[str, Mapping[str, bool]] | None = None,
    downloads: Sequence[Mapping[str, str]] = (),
    **others: Any,
) -> Dataset:
    generic = {"lists": read_lists, "names": read_names}
    read = (
        partial(generic[reader], layout=Layout(**(layout or {})))
        if reader in generic
        else partial(SPECIAL[reader], **(layout or {}))
    )
    return Dataset(
        name,
        read=read,
        expected=[one for count in counts for one in _expected(count)],
        declares={key: DomainDeclaration(**value) for key, value in (declares or {}).items()},
        downloads=[Download(**download) for download in downloads],
        **others,
    )


DATASETS = {
    name: _dataset(name, **keys)
    for name, keys in YAML(typ="safe", pure=True)
    .load(Path(__file__).with_name("declared.yaml").read_text(encoding="utf-8"))
    .items()
}
