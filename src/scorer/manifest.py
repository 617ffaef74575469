"""The scorer's own manifest reader: queries and index of one split, and where their images are.

Images are files below a folder, or byte ranges of tars that an index lists, as `curate.py --shards` writes
them. An index, `index.parquet` in the folder of its tars, on disk or in object storage, takes the place of
the images' folder.
"""

import io
import os
import warnings
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from scorer.errors import UserError, one_line
from scorer.retrieval import count_positives

COLUMNS = ["image_path", "label", "domain", "split", "role"]
PLACE = ["shard", "offset", "size", "content"]  # `content` changes with the bytes
ROLES = {"query": ("query",), "index": ("index",), "both": ("query", "index")}
SHOWN = 5  # faults


@dataclass(frozen=True)
class Manifest:
    """One split of a manifest."""

    path: str
    root: str  # the folder of the images, or their index
    table: pd.DataFrame  # COLUMNS, `row` for messages and, with an index, PLACE

    def part(self, role: str) -> pd.DataFrame:
        """Return the rows of role `query` or `index`, including `both`, renumbered from 0."""
        return self.table[self.table["role"].isin([role, "both"])].reset_index(drop=True)

    @cached_property
    def images(self) -> dict[str, dict[str, str]]:
        """The first row of each image; an image may have a query and an index row."""
        return self.table.drop_duplicates("image_path").set_index("image_path").to_dict("index")

    def open(self, image_path: str) -> str | io.BytesIO:
        """Return the image's file, or its bytes in a shard. Raises OSError if the shard is too short."""
        row = self.images[image_path]
        if "shard" not in row:
            return os.path.join(self.root, image_path)
        import fsspec

        start, size = int(row["offset"]), int(row["size"])
        system, shard = fsspec.url_to_fs(os.path.join(os.path.dirname(self.root), row["shard"]))
        data = system.cat_file(shard, start=start, end=start + size)
        if len(data) < size:
            raise OSError(f"{shard} is cut short; copy it again")
        return io.BytesIO(data)

    def key(self, image_path: str) -> str:
        """Return what changes with an image: name and size, and its modification time or content."""
        row = self.images[image_path]
        if "shard" in row:
            return f"{image_path} {row['size']} {row['content']}"
        known = os.stat(os.path.join(self.root, image_path))
        return f"{image_path} {known.st_size} {known.st_mtime_ns}"

    def refuse(self, faults: list[str]) -> None:
        """Raise a `UserError` that names the first faults and counts the rest, if there are any."""
        if faults:
            more = f"; and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
            raise UserError(f"{self.path}: {'; '.join(faults[:SHOWN])}{more}")


def read_manifest(path: str, split: str, root: str | None = None) -> Manifest:
    """Read one split of a CSV or Parquet manifest, with its images found under `root`.

    Without a root that is the manifest's folder; for an index of shards, the index itself. Raises
    UserError for a file, split or rows that cannot be scored; the first bad rows are named at once.
    """
    table = _read_table(path, COLUMNS)
    if root is None:
        root = path if {*PLACE} <= {*table} else os.path.dirname(path)
    found = ", ".join(sorted(set(table["split"]) - {""})) or "none"
    table = table.loc[table["split"] == split, [*COLUMNS, "row"]].reset_index(drop=True)
    if table.empty:
        hint = "; use --split val" if split == "test" and "val" in found else ""
        raise UserError(f"{path}: split {split!r} has no row; splits there: {found}{hint}")
    if root.endswith(".parquet"):
        places = _read_table(root, ["image_path", *PLACE]).drop_duplicates("image_path")
        table = table.merge(places[["image_path", *PLACE]], "left", "image_path")
    manifest = Manifest(path, root, table)
    manifest.refuse(_faults(table, root))
    for role in ("query", "index"):
        if manifest.part(role).empty:
            raise UserError(f"{path}: split {split!r} has no row of role {role} or both")
    if not count_positives(manifest.part("query"), manifest.part("index")).any():
        raise UserError(f"{path}: in split {split!r} no query shares a label with an index image")
    return manifest


def _read_table(path: str, columns: list[str]) -> pd.DataFrame:
    """Read all cells as text, and add the column `row`, which messages name."""
    if not path.endswith((".csv", ".parquet")):
        raise UserError(f"{path}: a manifest ends in .csv or .parquet")
    try:
        if path.endswith(".parquet"):
            table = pd.read_parquet(path).reset_index(drop=True)
            table = table.astype(object).fillna("").astype(str)
            table["row"] = [f"row {i}" for i in range(len(table))]
        else:
            with warnings.catch_warnings():
                # If a row has more fields than the header, pandas drops them and only warns.
                warnings.simplefilter("error", pd.errors.ParserWarning)
                table = pd.read_csv(
                    path,
                    dtype=str,
                    na_filter=False,  # a class may be called NA
                    skip_blank_lines=False,  # so that row 0 is line 2
                    index_col=False,
                    encoding="utf-8-sig",
                )
            table["row"] = [f"line {i + 2}" for i in range(len(table))]
    # pandas' and pyarrow's own errors are ValueErrors.
    except (OSError, ValueError, ImportError, pd.errors.ParserWarning) as error:
        raise UserError(f"{path}: cannot be read as a table ({one_line(error)})") from error
    if missing := [name for name in columns if name not in table]:
        raise UserError(f"{path}: no column {', '.join(missing)}; needed: {', '.join(columns)}")
    return table


def _faults(table: pd.DataFrame, root: str) -> list[str]:
    """Return the first fault of each row, in file order."""
    faults: list[str] = []
    seen: set[tuple[str, str]] = set()
    for row in table.itertuples():
        path, fault = row.image_path, ""
        roles = {(path, role) for role in ROLES.get(row.role, ())}
        in_shard = isinstance(getattr(row, "shard", None), str)
        if not all(map(str.strip, (path, row.domain, *row.label.split("|")))):
            fault = "image_path, domain or a label is empty"
        elif not roles:
            fault = f"role {row.role!r} is not one of {', '.join(ROLES)}"
        elif path != os.path.normpath(path) or path.startswith(("/", "..")):
            fault = f"image_path {path!r} must be below the root, and written without . and .."
        elif not in_shard and not os.path.isfile(os.path.join(root, path)):
            fault = f"no image: {path!r} under {root}"
        elif roles & seen:
            fault = f"image {path!r} has this role in an earlier row already"
        seen |= roles
        if fault:
            faults.append(f"{row.row}: {fault}")
    return faults
