"""The one table: a row an image. Everything reads and writes it; loading checks it.

Columns: image_path, label, domain, split, role, and optionally dataset, caption, width, height,
sha256, label_source, weight. A sidecar `<manifest name>.yaml` may declare, per domain,
`shared_classes` (test classes occur in train: GLDv2) and `index_is_train` (Met).
"""

from __future__ import annotations

import csv
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import yaml
from pydantic import ValidationError

from guie.config.base import Config, read_yaml
from guie.errors import UserError
from guie.files import replacing

REQUIRED = ("image_path", "label", "domain", "split", "role")
OPTIONAL = ("dataset", "caption", "width", "height", "sha256", "label_source", "weight")
ROLES = {
    "train": ("train",),
    "val": ("query", "index", "both"),
    "test": ("query", "index", "both"),
}
SHOWN = 50  # faults printed; the rest are counted


class DomainDeclaration(Config):
    """What a sidecar may declare of one domain."""

    shared_classes: bool = False
    index_is_train: bool = False


class Sidecar(Config):
    """`<manifest name>.yaml`: declared overlaps, which the checks then allow."""

    domains: dict[str, DomainDeclaration] = {}


@dataclass(frozen=True)
class Manifest:
    """A checked table, the folder its paths are relative to, and its declared overlaps."""

    table: pd.DataFrame
    root: Path
    path: Path
    sidecar: Sidecar

    def split(self, name: str) -> pd.DataFrame:
        """Rows of one split, re-indexed from 0. Raises UserError if there are none."""
        rows = self.table[self.table["split"] == name].reset_index(drop=True)
        if rows.empty:
            found = ", ".join(sorted(self.table["split"].unique()))
            raise UserError(f"{self.path}: no rows of split {name!r}; it has: {found}")
        return rows

    def file(self, image_path: str) -> Path:
        """Where an image of this manifest lies."""
        return self.root / image_path


def load_manifest(path: str | Path, root: str | Path | None = None) -> Manifest:
    """Read and check a manifest (CSV or Parquet, by extension).

    Raises UserError that names every bad row by file and line, all of them at once.
    """
    path = Path(path)
    table = read_table(path)
    sidecar = read_sidecar(path)
    faults = check(table, sidecar)
    if faults:
        lines = [f"{path}:{line}: {what}" for line, what in faults[:SHOWN]]
        more = len(faults) - len(lines)
        raise UserError("\n".join(lines + ([f"{path}: and {more} more faults"] if more else [])))
    if "weight" in table.columns:
        table = table.assign(weight=pd.to_numeric(table["weight"]))
    return Manifest(table, Path(root) if root else path.parent, path, sidecar)


def check(table: pd.DataFrame, sidecar: Sidecar) -> list[tuple[int, str]]:
    """(line in a CSV, what is wrong) of every fault, by line; `table` is indexed from 0."""
    return sorted(
        [
            *_row_faults(table),
            *_label_faults(table),
            *_repeat_faults(table, sidecar),
            *_overlap_faults(table, sidecar),
        ]
    )


def save_manifest(table: pd.DataFrame, path: str | Path, sidecar: Sidecar | None = None) -> None:
    """Write a manifest, and its sidecar if it declares anything, each atomically.

    Raises UserError where a YAML file that is no sidecar stands in the sidecar's place.
    """
    path = Path(path)
    read_sidecar(path)
    order = [c for c in (*REQUIRED, *OPTIONAL) if c in table.columns]
    with replacing(path) as temporary:
        if path.suffix == ".parquet":
            table[order].to_parquet(temporary, index=False)
        else:
            table[order].to_csv(temporary, index=False, lineterminator="\n")
    if sidecar and sidecar.domains:
        with replacing(sidecar_path(path)) as temporary:
            temporary.write_text(yaml.safe_dump(sidecar.model_dump()), encoding="utf-8")
    else:  # one left by an earlier manifest of this name would excuse overlaps of this one
        sidecar_path(path).unlink(missing_ok=True)


def sidecar_path(path: Path) -> Path:
    """`mix/manifest.csv` -> `mix/manifest.yaml`."""
    return path.with_suffix(".yaml")


def queries_without_positive(rows: pd.DataFrame) -> pd.Series:
    """Boolean per query row of one split: nothing else in the index shares a label with it."""
    index = rows[rows["role"].isin(("index", "both"))]
    queries = rows[rows["role"].isin(("query", "both"))]
    ids = index.assign(label=index["label"].str.split("|")).explode("label")
    images_of = ids.groupby("label")["image_path"].agg(set).to_dict()
    alone = [
        not set().union(*(images_of.get(part, set()) for part in label.split("|"))) - {image}
        for label, image in zip(queries["label"], queries["image_path"], strict=True)
    ]
    return pd.Series(alone, index=queries.index, dtype=bool)


def read_table(path: Path) -> pd.DataFrame:
    """Read the columns as text, unchecked but for their presence. Raises UserError."""
    try:
        table = _read_parquet(path) if path.suffix == ".parquet" else _read_csv(path)
    except FileNotFoundError:
        raise UserError(f"{path}: no such manifest") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8; save the manifest as UTF-8 CSV") from None
    except (pd.errors.ParserWarning, pd.errors.ParserError) as error:
        raise UserError(_too_wide(path) or f"{path}: not a table: {error}") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as a table: {error}") from None
    missing = [c for c in REQUIRED if c not in table.columns]
    if missing:
        raise UserError(
            f"{path}: missing columns {', '.join(missing)}; found {', '.join(table.columns)}"
            " (a manifest is comma-separated, with a header line)"
        )
    if table.empty:
        raise UserError(f"{path}: has a header but no rows")
    return table


def _read_csv(path: Path) -> pd.DataFrame:
    with warnings.catch_warnings():
        # pandas drops the values of a too wide first row with no more than this warning
        warnings.simplefilter("error", pd.errors.ParserWarning)
        return pd.read_csv(
            path,
            dtype=str,
            keep_default_na=False,
            encoding="utf-8-sig",
            skip_blank_lines=False,
            index_col=False,
        ).fillna("")


def _read_parquet(path: Path) -> pd.DataFrame:
    table = pd.read_parquet(path).reset_index(drop=True)
    text = [c for c in table.columns if c in (*REQUIRED, "dataset", "caption", "label_source")]
    # object first: a null must become "", not the class "None"; a category refuses new values
    return table.assign(**{c: table[c].astype(object).fillna("").astype(str) for c in text})


def _too_wide(path: Path) -> str:
    """Every row with more columns than the header, one a line."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.reader(file)
        width = len(next(rows, []))
        return "\n".join(
            f"{path}:{rows.line_num}: {len(row)} columns where the header has {width};"
            " put quotes around a value that holds a comma"
            for row in rows
            if len(row) > width
        )


def read_sidecar(path: Path) -> Sidecar:
    """What the sidecar of the manifest `path` declares; nothing where there is none."""
    beside = sidecar_path(path)
    if not beside.is_file():
        return Sidecar()
    try:
        return Sidecar.model_validate(read_yaml(beside) or {})
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "the file"
        raise UserError(
            f"{beside}: stands where {path.name} has its sidecar, and is none ({key}:"
            f" {first['msg']}); mend it or rename one of them"
        ) from None


def _row_faults(table: pd.DataFrame) -> Iterator[tuple[int, str]]:
    """(line, what) for faults that a row shows by itself."""
    for column in ("image_path", "domain"):
        for row in table.index[table[column].str.strip() == ""]:
            yield row + 2, f"{column} is empty"
    for row in table.index[~table["split"].isin(ROLES)]:
        yield row + 2, f"split {table['split'][row]!r}: allowed are {', '.join(ROLES)}"
    for split, roles in ROLES.items():
        rows = table[table["split"] == split]
        for row in rows.index[~rows["role"].isin(roles)]:
            yield row + 2, f"role {rows['role'][row]!r} in {split}: allowed are {', '.join(roles)}"
    parts = table["image_path"].str.replace("\\", "/", regex=False)
    outside = parts.str.match(r"^(?:/|[A-Za-z]:)") | parts.str.contains(r"(?:^|/)\.\.(?:/|$)")
    for row in table.index[outside]:
        yield row + 2, f"image_path {table['image_path'][row]!r} leaves the root"
    # a/b.jpg and a/./b.jpg are one image: it could stand in two splits under two names
    for row in table.index[~outside & parts.str.contains(r"(?:^|/)\.?/|/\.?$")]:
        yield row + 2, f"image_path {table['image_path'][row]!r}: write it without './' and '//'"
    if "weight" in table.columns:
        weight = pd.to_numeric(table["weight"], errors="coerce")
        for row in table.index[~((weight > 0) & (weight < float("inf")))]:
            yield row + 2, f"weight {table['weight'][row]!r} is not a positive number"


def _label_faults(table: pd.DataFrame) -> Iterator[tuple[int, str]]:
    """(line, what) for labels that are empty or stand for classes of two domains."""
    empty = table["label"].str.contains(r"(?:^|\|)\s*(?:\||$)")
    for row in table.index[empty]:
        yield row + 2, f"label {table['label'][row]!r} is empty or has an empty part"
    parts = table.loc[~empty & (table["domain"] != ""), ["label", "domain"]]
    parts = parts.assign(label=parts["label"].str.split("|")).explode("label")
    of_several = parts.groupby("label")["domain"].transform("nunique") > 1
    for row, label in parts.loc[of_several, "label"].items():
        yield row + 2, f"class {label!r} stands in several domains; labels are global"


def _repeat_faults(table: pd.DataFrame, sidecar: Sidecar) -> Iterator[tuple[int, str]]:
    """(line, what) for images in two rows, but for train rows that a Met-like index repeats."""
    rows = table[table.duplicated("image_path", keep=False)]
    image = rows["image_path"]
    declared = [d for d, v in sidecar.domains.items() if v.index_is_train]
    train = rows["split"] == "train"
    fitting = rows["domain"].isin(declared) & (train | (rows["role"] == "index"))
    fitting &= ~rows.duplicated(["image_path", "split"], keep=False)
    legal = (
        fitting.groupby(image).transform("all")
        & train.groupby(image).transform("any")
        & (rows.groupby("image_path")["label"].transform("nunique") == 1)
    )
    first = pd.Series(rows.index, rows.index).groupby(image).transform("first")
    for row in rows.index[~legal & (first != rows.index)]:
        yield row + 2, f"image {image[row]!r} stands already in line {first[row] + 2}"


def _overlap_faults(table: pd.DataFrame, sidecar: Sidecar) -> Iterator[tuple[int, str]]:
    """(line, what) for classes that are trained on and held out, undeclared."""
    trained = _classes(table, "train")
    shared = [d for d, v in sidecar.domains.items() if v.shared_classes or v.index_is_train]
    for split in ("val", "test"):
        held = table[(table["split"] == split) & ~table["domain"].isin(shared)]
        parts = held["label"].str.split("|").explode()
        for row, label in parts[parts.isin(trained)].items():
            yield row + 2, f"class {label!r} is in train and in {split}"


def _classes(table: pd.DataFrame, split: str) -> set[str]:
    labels = table.loc[table["split"] == split, "label"]
    return set(labels.str.split("|").explode())
