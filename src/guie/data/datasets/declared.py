"""Public data sets: load the declarations of `declared.yaml`, and read folders into manifest rows."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from ruamel.yaml import YAML

from guie.base.errors import UserError
from guie.data.datasets.folder import walk
from guie.data.datasets.readers import Layout, Listing, plain_name, present, read_lists, read_names
from guie.data.datasets.special import SPECIAL
from guie.data.manifest import DomainDeclaration, Manifest, Sidecar
from guie.data.manifest.companions import renamed, within
from guie.data.names import foreign

SPLITS = ("train", "test", "val", "all")  # keys of a count in a declaration


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
        return self.least == self.most

    def applies(self, splits: Collection[str] | None, options: Mapping[str, Any]) -> bool:
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
class Dataset:
    """A public data set: its source, its contents, and the reader of its folder."""

    name: str  # in a mix config, and in the manifest's column `dataset`
    title: str
    domain: str
    folders: Sequence[str]
    markers: Sequence[str]
    homepage: str
    read: Callable[..., Listing]  # takes folder, files below it, options; opens lists, never images
    expected: Sequence[Expected] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    choices: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    declares: Mapping[str, DomainDeclaration] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    downloads: Sequence[Mapping[str, str]] = ()  # url and digest, `<algorithm>:<hex>`


def _dataset(
    name: str,
    reader: str,
    layout: Mapping[str, Any] | None = None,
    counts: Sequence[Mapping[str, Any]] = (),
    declares: Mapping[str, Mapping[str, bool]] | None = None,
    **others: Any,
) -> Dataset:
    layout, generic = layout or {}, {"lists": read_lists, "names": read_names}
    if reader in generic:
        read = partial(generic[reader], layout=Layout(**layout))
    else:
        read = partial(SPECIAL[reader], **layout)
    expected = []
    for count in counts:
        shared = {key: value for key, value in count.items() if key not in SPLITS}
        for split in (split for split in SPLITS if split in count):
            least, most = count[split] if isinstance(count[split], list) else [count[split]] * 2
            expected.append(Expected(least, most, None if split == "all" else split, **shared))
    own = {key: DomainDeclaration(**value) for key, value in (declares or {}).items()}
    return Dataset(name, read=read, expected=expected, declares=own, **others)


DATASETS = {
    name: _dataset(name, **keys)
    for name, keys in YAML(typ="safe", pure=True)
    .load(Path(__file__).with_name("declared.yaml").read_text(encoding="utf-8"))
    .items()
}


@dataclass(frozen=True)
class Reading(Manifest):
    """A data set as a manifest, and warnings."""

    warnings: tuple[str, ...] = ()


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
        domain: replaces the data set's domain; not allowed for a data set of several domains.
        partial: accept an incomplete download with a warning.
        as_train: every image becomes a train image, each once.
        options: the data set's own options, such as `test_vehicles`.

    Raises UserError if the download is incomplete, a list is invalid, or an option is unknown.
    """
    folder = Path(folder)
    options = _checked(dataset, options)
    files = frozenset(path for path, entry in walk(folder) if not foreign(entry.name))
    listing = dataset.read(folder, files, **options)
    rows = listing.rows if splits is None else listing.rows[listing.rows["split"].isin(splits)]
    if rows.empty:
        chosen = f" of split {', '.join(splits)}" if splits else ""
        raise UserError(f"{dataset.title} in {folder}: no images{chosen} are listed")
    # unzip may have written names with other letters than ASCII differently from the list
    absent = rows["image_path"][~present(rows["image_path"], files)]
    odd = [path for path in absent if not path.isascii() or "#U" in path]
    real = {plain_name(path): path for path in files} if odd else {}
    names = {path: real[name] for path in odd if (name := plain_name(path)) in real}

    def as_on_disk(column: pd.Series) -> pd.Series:
        return column.map(lambda path: names.get(path, path)) if names else column

    rows = rows.assign(image_path=as_on_disk(rows["image_path"])).reset_index(drop=True)
    there = present(rows["image_path"], files)
    counted = _check_counts(dataset, folder, rows, there, splits, options, partial)
    rows = rows[there].reset_index(drop=True)
    if as_train:
        rows = rows.assign(split="train", role="train")
        rows = rows.drop_duplicates("image_path", ignore_index=True)
    table = _manifest(dataset, rows, domain)
    companions = {} if as_train else renamed(listing.companions, as_on_disk)
    if "texts" in companions:
        texts = companions["texts"].assign(split="test", role="query")
        named = _manifest(dataset, texts, domain)[["image_path", "label", "domain"]]
        companions = {**companions, "texts": named.assign(text=texts["text"])}
    # declared overlaps of domains with both train and held-out rows
    sides = table["split"].eq("train").groupby(table["domain"]).nunique()
    own = {domain if domain else name: value for name, value in dataset.declares.items()}
    sidecar = Sidecar(domains={name: own[name] for name in sides.index[sides == 2] if name in own})
    warnings = [f"{dataset.title}: {warning}" for warning in dataset.warnings]
    warnings += [*listing.warnings, *counted]
    return Reading(table, folder, folder, sidecar, within(companions, table), tuple(warnings))


def _checked(dataset: Dataset, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with their defaults. Raises UserError."""
    for name, value in given.items():
        if name not in dataset.options:
            known = ", ".join(dataset.options) or "none"
            raise UserError(f"{dataset.name}: unknown option {name!r}; it has: {known}")
        allowed, default = dataset.choices.get(name), dataset.options[name]
        if allowed and value not in allowed:
            fault = f"allowed are {', '.join(map(str, allowed))}"
        elif type(value) is not type(default):
            fault = f"must be {type(default).__name__}; the default is {default}"
        else:
            continue
        raise UserError(f"{dataset.name}: {name}: {value!r}: {fault}")
    return {**dataset.options, **given}


def _check_counts(
    dataset: Dataset,
    folder: Path,
    rows: pd.DataFrame,
    there: pd.Series,
    splits: Collection[str] | None,
    options: Mapping[str, Any],
    partial: bool,
) -> list[str]:
    """Return warnings. Raises UserError if images are missing and `partial` is not set."""
    faults, warnings = [], []

    def missing(there: pd.Series) -> str:
        absent = rows.loc[there.index[~there], "image_path"]
        return f"; first missing {folder / absent.iloc[0]}" if len(absent) else ""

    for count in dataset.expected:
        if not count.applies(splits, options):
            continue
        kind = count.select(rows)
        found = kind[there[kind.index]]
        number = len(found) if count.unit == "images" else found["label"].nunique()
        first = missing(there[kind.index])
        if not first and count.least <= number <= count.most:
            continue
        what = f"{dataset.title}: {count} expected, {number:,} found"
        if first or count.certain:
            faults.append(f"{what}{first}")
        else:
            warnings.append(f"{what} ({count.source})" if count.source else what)
    if not faults and not there.all():
        what = f"{len(rows):,} images are listed, {there.sum():,} found"
        faults = [f"{dataset.title}: {what}{missing(there)}"]
    if faults and not (partial and there.any()):
        remedy = "complete the download, or set partial: true to use what is there"
        raise UserError("\n".join(faults) + f"; {remedy}")
    return warnings + faults


def _manifest(dataset: Dataset, rows: pd.DataFrame, domain: str | None) -> pd.DataFrame:
    """Return the columns of a manifest, with labels `<domain>/<dataset>/<class>`."""
    if domain and "domain" in rows:
        raise UserError(f"{dataset.title} has several domains; drop domain: {domain}")
    domains = rows.get("domain", pd.Series(domain or dataset.domain, rows.index))
    prefix = domains + f"/{dataset.name}/"
    label = prefix + rows["label"]
    several = rows["label"].str.contains("|", regex=False)
    label.loc[several] = [  # each class of a multi-class label gets the prefix
        start + f"|{start}".join(classes.split("|"))
        for start, classes in zip(prefix[several], rows.loc[several, "label"], strict=True)
    ]
    columns = rows[["image_path", "split", "role"]].assign(label=label, domain=domains)
    order = ["image_path", "label", "domain", "split", "role"]
    return columns[order].assign(dataset=dataset.name).astype(str)
