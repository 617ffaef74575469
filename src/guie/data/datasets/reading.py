"""Read a data set's folder into checked manifest rows: match its lists with its files, count the images."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from guie.base.errors import UserError
from guie.data.datasets.declared import Dataset
from guie.data.datasets.folder import walk
from guie.data.datasets.layouts import plain_name, present
from guie.data.manifest import Manifest, Sidecar
from guie.data.manifest.companions import renamed, within
from guie.data.names import foreign


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
        splits: keep only these; None keeps all.
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
        chosen_splits = f" of split {', '.join(splits)}" if splits else ""
        raise UserError(f"{dataset.title} in {folder}: no images{chosen_splits} are listed")
    names = _names_on_disk(rows["image_path"], files)

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
    warnings = tuple(f"{dataset.title}: {warning}" for warning in dataset.warnings)
    warnings = (*warnings, *listing.warnings, *counted)
    return Reading(table, folder, folder, sidecar, within(companions, table), warnings)


def _checked(dataset: Dataset, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with their defaults. Raises UserError."""
    for name, value in given.items():
        if name not in dataset.options:
            known = ", ".join(dataset.options) or "none"
            raise UserError(f"{dataset.name}: unknown option {name!r}; it has: {known}")
        allowed, default = dataset.choices.get(name), dataset.options[name]
        fault = None
        if allowed and value not in allowed:
            fault = f"allowed are {', '.join(map(str, allowed))}"
        elif type(value) is not type(default):
            fault = f"must be {type(default).__name__}; the default is {default}"
        if fault:
            raise UserError(f"{dataset.name}: {name}: {value!r}: {fault}")
    return {**dataset.options, **given}


def _names_on_disk(paths: pd.Series, files: frozenset[str]) -> dict[str, str]:
    """Return the name on disk of paths that unzip wrote differently from the list."""
    absent = paths[~present(paths, files)]
    odd = [path for path in absent if not path.isascii() or "#U" in path]
    real = {plain_name(path): path for path in files} if odd else {}
    return {path: real[name] for path in odd if (name := plain_name(path)) in real}


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
        raise UserError(
            "\n".join(faults) + "; complete the download, or set partial: true to use what is there"
        )
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
