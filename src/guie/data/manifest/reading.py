"""Read a manifest and its sidecar: the columns, the classes in labels such as `a|b`, and the file.

A plain file is read fast, and line by line if anything is unusual.
"""

import csv
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from guie.base.errors import UserError, why_unreadable
from guie.base.files import write_text
from guie.config.loading import load_config, to_yaml
from guie.config.types import Config, Decode

REQUIRED = ("image_path", "label", "domain", "split", "role")
OPTIONAL = ("dataset", "caption", "width", "height", "sha256", "label_source", "weight")
NUMBERS = ("width", "height", "weight")
ROLES = {
    "train": ("train",),
    "val": ("query", "index", "both"),
    "test": ("query", "index", "both"),
}

Fault = tuple[int, str]  # place (line of a CSV, row of a Parquet file), message
SAVE_AS = (
    "save it as CSV in UTF-8, with commas between the columns and their names in the first line"
)
HEAD_BYTES = 65_536  # more than any header


class DomainDeclaration(Config):
    """The declarations that a sidecar may make about one domain."""

    shared_classes: bool = False
    index_is_train: bool = False


class Sidecar(Config):
    """`<manifest name>.sidecar.yaml`: how images are decoded, and what overlaps the checks allow."""

    decode: Decode = "seen"
    domains: dict[str, DomainDeclaration] = {}

    def whole(self) -> list[str]:
        """Return the domains whose test index is their train images, so none may be held out."""
        return [name for name, declared in self.domains.items() if declared.index_is_train]


def sidecar_path(path: Path) -> Path:
    """Return the sidecar's path: `mix/manifest.csv` -> `mix/manifest.sidecar.yaml`."""
    return path.with_suffix(".sidecar.yaml")


def read_sidecar(path: Path) -> Sidecar:
    """Return the sidecar of the manifest `path`; the defaults if it does not exist. Raises UserError."""
    file = sidecar_path(path)
    return load_config(file, Sidecar) if os.path.lexists(file) else Sidecar()


def write_sidecar(manifest: Path, sidecar: Sidecar) -> None:
    """Write a manifest's sidecar if it says anything, else remove an earlier one."""
    file = sidecar_path(manifest)
    if sidecar == Sidecar():
        file.unlink(missing_ok=True)
        return
    values = sidecar.model_dump(exclude={"decode"} if sidecar.decode == "seen" else None)
    if not file.is_file() or read_sidecar(manifest) != sidecar:
        write_text(file, to_yaml(values))


def one_class_each(rows: pd.DataFrame) -> pd.DataFrame:
    """Return `rows` with one row per label; a row labelled `a|b` is repeated with the same index."""
    if not rows["label"].str.contains("|", regex=False).any():
        return rows  # the fast path for most manifests
    return rows.assign(label=rows["label"].str.split("|")).explode("label")


def memberships(table: pd.DataFrame) -> pd.DataFrame:
    """Return columns row (index in `table`), domain, split, label: one row per image and class."""
    pairs = one_class_each(table[["domain", "split", "label"]])
    return pairs.rename_axis(index="row").reset_index()


def class_sizes(members: pd.DataFrame) -> pd.Series:
    """Return the number of images in the class of each row of `memberships`."""
    return members.groupby("label", sort=False)["label"].transform("size")


def class_names(labels: pd.Series) -> set[str]:
    """Return the classes that some images have; `a|b` names two."""
    return {name for label in labels.unique() for name in label.split("|")}


@dataclass(frozen=True)
class TextRows:
    """A file's rows as text, the place of each in the file, and the invalid lines."""

    table: pd.DataFrame  # indexed from 0
    places: np.ndarray  # int [rows]: the line in a CSV, the row from 0 in a Parquet file
    unit: str  # "line" or "row"
    faults: list[Fault]


def read_rows(path: Path) -> TextRows:
    """Read a manifest: a CSV or, by its extension, a Parquet file.

    Raises UserError if the file as a whole is not a manifest; invalid lines are returned as faults.
    """
    if why := why_unreadable(path, "manifest"):
        raise UserError(why)
    rows = _read_parquet(path) if path.suffix == ".parquet" else _read_csv(path, REQUIRED)
    if rows.table.empty and not rows.faults:
        raise UserError(f"{path}: has a header but no rows")
    return rows


def read_csv_rows(path: Path, required: Sequence[str] = ()) -> TextRows:
    """Return the rows of any CSV with a header, as text, without blank lines.

    Raises UserError naming the file and a missing column, or the first invalid line.
    """
    if why := why_unreadable(path, "table"):
        raise UserError(why)
    rows = _read_csv(path, required)
    if rows.faults:
        line, what = min(rows.faults)
        raise UserError(f"{path}:{line}: {what}")
    return rows


def _read_parquet(path: Path) -> TextRows:
    try:
        table, schema = pd.read_parquet(path).reset_index(drop=True), pa.parquet.read_schema(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as a table: {error}") from None
    _refuse_columns(path, list(table.columns), REQUIRED)
    text = [c for c in table.columns if c in (*REQUIRED, "dataset", "caption", "label_source")]
    plain = {c: pd.api.types.is_string_dtype(table[c].dtype) for c in text}
    # others are objects first: a null must become "", not the class "None"; a category rejects new values
    known = {c: table[c] if plain[c] else table[c].astype(object) for c in text}
    for name in text:
        if pa.types.is_nested(schema.field(name).type):
            raise UserError(f"{path}: {name} holds lists; write each as one text, such as a|b")
    table = table.assign(**{c: values.fillna("").astype(str) for c, values in known.items()})
    return TextRows(table, np.arange(len(table)), "row", [])


def _read_csv(path: Path, required: Sequence[str]) -> TextRows:
    data = path.read_bytes()
    if not data.strip():
        remedy = "its first line must name its columns"
        raise UserError(f"{path}: cannot be read: it is empty; {remedy}")
    if b"\0" in data[:HEAD_BYTES]:  # UTF-16, a workbook, an archive
        raise UserError(f"{path}: is not text in UTF-8; {SAVE_AS}")
    try:
        header = (row for row in _reader(data[:HEAD_BYTES]) if not _is_blank(row))
        columns: list[str] = next(header, [])
    except csv.Error as error:
        raise UserError(f"{path}: cannot be read as a table: {error}") from None
    _refuse_columns(path, columns, required)
    table = _read_plain(data, columns)
    if table is None:
        return _read_by_line(data, columns)
    return TextRows(table, np.arange(len(table)) + 2, "line", [])


def _refuse_columns(path: Path, columns: list[str], required: Sequence[str]) -> None:
    if missing := [c for c in required if c not in columns]:
        found = ", ".join(map(str, columns))
        found = found if len(found) <= 200 else found[:199] + "…"
        remedy = "" if {*columns} & {*required} else f"; {SAVE_AS}"
        raise UserError(f"{path}: missing columns {', '.join(missing)}; found {found!r}{remedy}")
    if twice := sorted({c for c in columns if columns.count(c) > 1}):
        raise UserError(f"{path}: column {twice[0]!r} occurs twice in the header")


def _read_plain(data: bytes, columns: list[str]) -> pd.DataFrame | None:
    """Read all rows at once; None if a line is not exactly one valid row."""
    try:
        table = pa.csv.read_csv(
            pa.BufferReader(data),
            # Threads would outlive this call, and make a later fork of this process unsafe.
            read_options=pa.csv.ReadOptions(use_threads=False),
            convert_options=pa.csv.ConvertOptions(column_types=dict.fromkeys(columns, pa.string())),
        )
    except pa.ArrowException:
        return None
    # Arrow silently skips blank lines and closes an open quote at the end of the file.
    lines = data.count(b"\n") + (not data.endswith(b"\n"))
    plain = table.num_rows + 1 == lines and table.column_names == columns
    return table.to_pandas() if plain else None


def _read_by_line(data: bytes, columns: list[str]) -> TextRows:
    rows, lines, faults = [], [], _not_utf8(data)
    reader = _reader(data)
    while True:
        line = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            break
        except csv.Error as error:
            faults.append((line, f"a quote is opened or closed in the wrong place ({error})"))
            continue
        if len(row) == len(columns) and not _is_blank(row):
            rows.append(row)
            lines.append(line)
        elif not _is_blank(row):
            remedy = "put quotes around a value that holds a comma"
            if len(row) < len(columns):
                remedy = "a column without a value still needs its comma"
            found = f"{len(row)} columns where the header has {len(columns)}"
            faults.append((line, f"{found}; {remedy}"))
    table = pd.DataFrame(rows[1:], columns=columns, dtype=str)  # the first is the header
    return TextRows(table, np.array(lines[1:], dtype=int), "line", faults)


def _not_utf8(data: bytes) -> list[Fault]:
    """Report the first byte that is not UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        line, byte = data.count(b"\n", 0, error.start) + 1, data[error.start]
        return [(line, f"not UTF-8 (byte 0x{byte:02x}, Latin-1 perhaps); {SAVE_AS}")]
    return []


def _reader(data: bytes) -> Any:  # the csv module names no type
    # Invalid bytes stay distinct, so that two different names are not mistaken for one.
    text = data.decode("utf-8-sig", errors="backslashreplace")
    return csv.reader(io.StringIO(text, newline=""), strict=True)


def _is_blank(row: list[str]) -> bool:
    return not row or (len(row) == 1 and not row[0].strip())
