"""The scorer's own manifest reader: queries and index of one split."""

from __future__ import annotations

import os
import re
import stat
import warnings
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import pandas as pd

from scorer.errors import UserError
from scorer.retrieval import count_positives
from scorer.shards import PLACE, range_of, with_slashes

COLUMNS = ["image_path", "label", "domain", "split", "role"]
ROLES = ("query", "index", "both")
SHOWN = 5
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")  # line breaks among them


@dataclass(frozen=True)
class Manifest:
    """One split: `table` has `image_path`, `label`, `domain`, `role` and, for messages, `row`."""

    path: Path
    root: Path
    table: pd.DataFrame

    def part(self, role: str) -> pd.DataFrame:
        """Return the rows of role `query` or `index`, including `both`, renumbered from 0."""
        return self.table[self.table["role"].isin([role, "both"])].reset_index(drop=True)

    def images(self) -> dict[str, str]:
        """Map each image to its first row; an image may have a query and an index row."""
        first = self.table.drop_duplicates("image_path")
        return dict(zip(first["image_path"], first["row"], strict=True))

    def refuse(self, faults: list[str]) -> None:
        """Raise a `UserError` that names the first faults and counts the rest, if there are any."""
        if faults:
            more = f"; and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
            raise UserError(f"{self.path}: {'; '.join(faults[:SHOWN])}{more}")


def read_manifest(path: Path, split: str, root: Path | None = None) -> Manifest:
    """Read one split of a CSV or Parquet manifest, with its images found under `root`.

    Without a root that is the manifest's folder; for an index of shards, the index itself.

    Raises:
        UserError: unreadable file, missing columns, an empty split, no query with a positive, or
            bad rows (all at once).
    """
    table = _read_table(path)
    missing = [name for name in COLUMNS if name not in table]
    if missing:
        raise UserError(f"{path}: no column {', '.join(missing)}; needed: {', '.join(COLUMNS)}")
    if root is None:
        root = path if {*PLACE} <= {*table} else path.parent
    found = ", ".join(sorted(set(table["split"]) - {""})) or "none"
    table = table.loc[table["split"] == split, [*COLUMNS, "row"]].reset_index(drop=True)
    if table.empty:
        hint = "; use --split val" if split == "test" and "val" in found else ""
        raise UserError(f"{path}: split {split!r} has no row; splits there: {found}{hint}")
    manifest = Manifest(path, root, table)
    manifest.refuse(_faults(table, root))
    for role in ("query", "index"):
        if manifest.part(role).empty:
            raise UserError(f"{path}: split {split!r} has no row of role {role} or both")
    if not count_positives(manifest.part("query"), manifest.part("index")).any():
        raise UserError(f"{path}: in split {split!r} no query shares a label with an index image")
    return manifest


def _read_table(path: Path) -> pd.DataFrame:
    """Read all cells as text, and add the column `row`, which messages name."""
    kind = path.suffix.lower()
    if kind not in (".csv", ".parquet"):
        raise UserError(f"{path}: a manifest ends in .csv or .parquet")
    try:
        if kind == ".parquet":
            table = pd.read_parquet(with_slashes(path)).reset_index(drop=True)
            table = table.astype(object).fillna("").astype(str)
            return table.assign(row=[f"row {i}" for i in range(len(table))])
        with warnings.catch_warnings():
            # If a row has more fields than the header, pandas drops them and only warns.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            table = pd.read_csv(
                path,
                dtype=str,
                keep_default_na=False,  # a class may be called NA
                na_filter=False,
                skip_blank_lines=False,  # so that row 0 is line 2
                index_col=False,
                encoding="utf-8-sig",
            )
        return table.assign(row=[f"line {i + 2}" for i in range(len(table))])
    # pandas' and pyarrow's own errors are ValueErrors.
    except (OSError, ValueError, pd.errors.ParserWarning) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path}: cannot be read as a table ({reason})") from error


def _faults(table: pd.DataFrame, root: Path) -> list[str]:
    """Return the first fault of each row, in file order."""
    faults: list[str] = []
    seen: set[tuple[str, str]] = set()
    for row in table.itertuples():
        roles = ("query", "index") if row.role == "both" else (row.role,)
        fault = _row_fault(row) or _file_fault(root, row.image_path)
        if not fault and any((row.image_path, role) in seen for role in roles):
            fault = f"image {row.image_path!r} has this role in an earlier row already"
        seen.update((row.image_path, role) for role in roles)
        if fault:
            faults.append(f"{row.row}: {fault}")
    return faults


def _row_fault(row: Any) -> str:
    for column in ("image_path", "label", "domain"):
        value = getattr(row, column)
        if not value.strip():
            return f"{column} is empty"
        if column != "image_path" and CONTROL.search(value):
            return f"{column} {value!r} holds a line break or another control character"
    if "" in (label.strip() for label in row.label.split("|")):
        return f"label {row.label!r} holds an empty label"
    if row.role not in ROLES:
        return f"role {row.role!r} is not one of {', '.join(ROLES)}"
    path = PurePosixPath(row.image_path)
    if path.is_absolute() or ".." in path.parts:
        return f"image_path {row.image_path!r} leads out of the root"
    if str(path) != row.image_path:  # otherwise one image could have two names
        return f"image_path {row.image_path!r} must be written {str(path)!r}"
    return ""


def _file_fault(root: Path, image_path: str) -> str:
    try:
        if range_of(root / image_path) or stat.S_ISREG(os.stat(root / image_path).st_mode):
            return ""
    except UserError as error:
        return str(error)
    except FileNotFoundError:
        return f"no image: {image_path!r} under {root}"
    except (OSError, ValueError) as error:  # no permission, a name that is too long, a NUL
        return f"image_path {image_path!r} under {root}: {getattr(error, 'strerror', error)}"
    return f"not a file: {image_path!r} under {root}"
