"""From a dataset's folder to checked manifest rows: what is listed, what is there, what is not."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from guie.base.errors import UserError
from guie.data.datasets.base import Dataset, Expected, Reading
from guie.data.datasets.names import as_on_disk, present
from guie.data.manifest import Companions, Sidecar
from guie.data.manifest.companions import renamed, within


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
    """Manifest rows of a dataset as downloaded; labels are `<domain>/<dataset>/<class>`.

    Args:
        splits: keep only these; None keeps all.
        domain: instead of the dataset's own; not for a dataset of several domains.
        partial: take an incomplete download as it is, with a warning.
        as_train: every image becomes a train image, each once.
        options: the dataset's own, such as `test_vehicles`.

    Raises UserError if the download is incomplete, a list is at fault, or an option unknown.
    """
    folder = Path(folder)
    chosen = _options(dataset, options)
    files = frozenset(walk(folder))
    listing = dataset.read(folder, files, **chosen)
    rows = listing.rows if splits is None else listing.rows[listing.rows["split"].isin(splits)]
    rows = rows.reset_index(drop=True)
    if rows.empty:
        raise UserError(f"{dataset.title} in {folder}: no images{_of(splits)} are listed")
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
    return Reading(table, _sidecar(dataset, table, domain), all_warnings, within(said, table))


def walk(folder: Path) -> Iterator[str]:
    """Every file below, as a path from `folder`; what is hidden (`._x`, Thumbs.db) is passed over.

    Links to folders are not entered, so that a loop of them ends. Raises UserError.
    """
    pending = [""]
    while pending:
        below = pending.pop()
        try:
            with os.scandir(folder / below) as entries:
                for entry in entries:
                    if entry.name.startswith(".") or entry.name == "Thumbs.db":
                        continue
                    path = f"{below}{entry.name}"
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(f"{path}/")
                    else:
                        yield path
        except FileNotFoundError:
            raise UserError(f"{folder / below}: no such folder") from None
        except NotADirectoryError:
            raise UserError(f"{folder / below}: not a folder; unpack the archive first") from None
        except PermissionError:
            raise UserError(f"{folder / below}: permission denied; allow reading it") from None


def _check_counts(
    dataset: Dataset,
    folder: Path,
    rows: pd.DataFrame,
    there: pd.Series,
    expected: Sequence[Expected],
    partial: bool,
) -> list[str]:
    """What to warn of. Raises UserError if images are missing and `partial` does not allow it."""
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
    # labels before domains: a label of several classes has the prefix before each of them
    prefix = domains + f"/{dataset.name}/"
    label = prefix + rows["label"]
    several = rows["label"].str.contains("|", regex=False)
    label[several] = [
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
    """What a listing says of its images, by their names on disk and the manifest's classes."""
    said = renamed(companions, lambda column: column.map(names).fillna(column))
    if "texts" not in said:
        return said
    texts = said["texts"]
    rows = _manifest(dataset, texts.assign(split="test", role="query"), domain)
    return {**said, "texts": rows[["image_path", "label", "domain"]].assign(text=texts["text"])}


def _sidecar(dataset: Dataset, table: pd.DataFrame, domain: str | None) -> Sidecar:
    """The dataset's declarations for domains that have both train and held-out rows."""
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
                f"{dataset.name}: {name}: {value!r} is no {kind}; it is {default} by default"
            )
    return {**dataset.options, **given}


def _of(splits: Collection[str] | None) -> str:
    return f" of split {', '.join(splits)}" if splits else ""
