"""Load and save manifests: the checked table with the folder that its paths are relative to."""

import hashlib
import logging
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import pandas as pd

from guie.base.errors import UserError
from guie.base.files import replacing
from guie.data.manifest.checks import check, notes
from guie.data.manifest.reading import (
    OPTIONAL,
    REQUIRED,
    Sidecar,
    read_rows,
    read_sidecar,
    write_sidecar,
)
from guie.data.shards.index import (
    cached_folder,
    is_index,
    local_copy,
    read_facts,
    read_mapped,
    write_mapped,
)
from guie.data.shards.storage import as_path, shown, url_of

SHOWN = 50  # errors printed; the rest are counted
NOTED = 5  # rows printed per kind of note; the rest are counted
CHECKS = 1  # raised when `check` or `notes` changes, so that indexes are checked again

logger = logging.getLogger(__name__)  # unconfigured, logging prints warnings to stderr


@dataclass(frozen=True)
class Manifest:
    """A checked table, the folder its paths are relative to, and its sidecar; its companions if read."""

    table: pd.DataFrame
    root: Path
    path: Path
    sidecar: Sidecar
    companions: Mapping[str, pd.DataFrame] = field(default_factory=dict)

    def split(self, name: str) -> pd.DataFrame:
        """Return the rows of one split, re-indexed from 0. Raises UserError if there are none."""
        rows = rows_where(self.table, self.table["split"] == name)
        if rows.empty:
            known = sorted(self.table["split"].unique())
            remedy = ""
            if name != "train":
                remedy = "; use --split val, or " if name == "test" and "val" in known else "; "
                remedy += f"set {name}_fraction in the mix's config and run curate.py again"
            found = f"it has: {', '.join(known)}{remedy}"
            raise UserError(f"{self.path}: no rows of split {name!r}; {found}")
        return rows

    def without(self, domains: Collection[str]) -> Self:
        """Return the manifest without these domains, in every split. Raises UserError."""
        if not domains:
            return self
        known = set(self.table["domain"].unique())
        if unknown := ", ".join(sorted(set(domains) - known)):
            found = ", ".join(sorted(known))
            raise UserError(f"{self.path}: has no domain {unknown} to leave out; it has: {found}")
        if known <= set(domains):
            raise UserError(f"{self.path}: every domain is left out")
        others = ~self.table["domain"].isin(list(domains))
        return replace(self, table=rows_where(self.table, others))

    def file(self, image_path: str) -> Path:
        return self.root / image_path


def rows_where(table: pd.DataFrame, wanted: pd.Series) -> pd.DataFrame:
    """Return the rows of a mask, re-indexed from 0; rows that follow one another are not copied."""
    wanted_N, count = wanted.to_numpy(bool), int(wanted.sum())
    first = int(wanted_N.argmax()) if count else 0
    if wanted_N[first : first + count].all():
        return table.iloc[first : first + count].reset_index(drop=True)
    return table[wanted_N].reset_index(drop=True)


def load_manifest(path: str | Path, root: str | Path | None = None) -> Manifest:
    """Read and check a manifest (CSV or Parquet, by extension), or the index of shards in its place.

    The root of an index is the index itself. An index in object storage is copied into the cache. The table
    of an index is checked once, and mapped from the cache; see `read_mapped`. Legal but unusual rows, such
    as queries without a positive, are logged as warnings, by the first of several processes.

    Raises UserError that names every bad row by file and line, all of them at once.
    """
    named = as_path(path)
    path = local_copy(str(named), refresh=True) if url_of(named) else named
    sidecar, indexed = read_sidecar(path), is_index(path)
    if indexed and root:
        fault = "the shards of an index must be in its folder"
        raise UserError(f"{shown(named)}: {fault}; leave out the root ({root})")
    folder = as_path(root) if root else named if indexed else named.parent
    table, unusual = _mapped(path, named, sidecar) if indexed else _checked(path, sidecar)
    if os.environ.get("RANK", "0") == "0":  # as set by torchrun and accelerate launch
        for note in unusual:
            logger.warning(note)
    return Manifest(table, folder, path, sidecar)


def _mapped(path: Path, named: Path, sidecar: Sidecar) -> tuple[pd.DataFrame, list[str]]:
    """Return what `_checked` returns for an index, from the cache if it was checked before."""
    key = hashlib.sha256(f"{CHECKS} {sidecar.model_dump_json()}".encode()).hexdigest()[:16]
    file = cached_folder(str(named)) / f"checked-{key}.arrow"
    if found := read_mapped(file):
        return found
    read_facts(path)  # raises if it is none
    checked = _checked(path, sidecar)
    write_mapped(file, *checked)
    return read_mapped(file) or checked


def _checked(path: Path, sidecar: Sidecar) -> tuple[pd.DataFrame, list[str]]:
    """Read and check the file of a manifest; return its table, and what is unusual about it, a line each."""
    rows = read_rows(path)

    def at(place: int) -> str:
        return f"{path}:{place}" if rows.unit == "line" else f"{path}: {rows.unit} {place}"

    if faults := sorted([*rows.faults, *check(rows.table, sidecar, rows.places, rows.unit)]):
        lines = [f"{at(place)}: {what}" for place, what in faults[:SHOWN]]
        if more := len(faults) - len(lines):
            lines.append(f"{path}: and {more:,} more faults")
        raise UserError("\n".join(lines))
    table, unusual = rows.table, []
    if "weight" in table.columns:
        table = table.assign(weight=pd.to_numeric(table["weight"]))
    for found in notes(rows.table):
        unusual += [f"{at(rows.places[row])}: warning: {what}" for row, what in found[:NOTED]]
        if len(found) > NOTED:
            unusual.append(f"{path}: warning: and {len(found) - NOTED:,} more rows like the last")
    return table, unusual


def save_manifest(table: pd.DataFrame, path: str | Path, sidecar: Sidecar | None = None) -> None:
    """Write a manifest, and its sidecar if it declares anything, each atomically."""
    path = Path(path)
    order = [c for c in (*REQUIRED, *OPTIONAL) if c in table.columns]
    with replacing(path) as temporary:
        if path.suffix == ".parquet":
            table[order].to_parquet(temporary, index=False)
        else:
            table[order].to_csv(temporary, index=False, lineterminator="\n")
    write_sidecar(path, sidecar or Sidecar())
