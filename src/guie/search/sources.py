"""Which pictures are to be indexed: those of a folder, an archive or a manifest."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from guie.base.errors import UserError
from guie.data.archives import unpacked
from guie.data.datasets.folder import image_files
from guie.data.looks.decoded import absolute, file_states
from guie.data.manifest import load_manifest

MANIFESTS = (".csv", ".parquet")


@dataclass(frozen=True)
class Pictures:
    """Rows of `guie.search.index`, without vectors.

    Attributes: `skipped`, files that are none, by reason.
    """

    root: Path
    files: pd.DataFrame
    skipped: Counter[str]


def pictures_of(source: Path, root: Path | None = None) -> Pictures:
    """The pictures of a source, each once, by path.

    Of a folder the first folder below it is taken for the domain; labels come with a manifest alone. An
    archive is inspected, then unpacked beside itself.

    Raises UserError where there is none, or no picture in it.
    """
    if source.suffix in MANIFESTS:
        manifest = load_manifest(source, root)
        rows = manifest.table.drop_duplicates("image_path")[["image_path", "domain", "label"]]
        return Pictures(manifest.root.resolve(), _with_states(rows, manifest.root), Counter())
    folder = unpacked(source)
    paths, skipped = image_files(folder)
    domains = [path.split("/")[0] if "/" in path else "" for path in paths]
    rows = pd.DataFrame({"image_path": paths, "domain": domains, "label": ""}, dtype=str)
    return Pictures(folder.resolve(), _with_states(rows, folder), skipped)


def shard_of(pictures: Pictures, number: int, count: int) -> Pictures:
    """Each `count`th picture, from `number` on. Raises UserError where there is none."""
    files = pictures.files.iloc[number::count].reset_index(drop=True)
    if files.empty:
        raise UserError(
            f"--shard {number}/{count}: of {len(pictures.files):,} pictures it gets none; make fewer shards"
        )
    return Pictures(pictures.root, files, pictures.skipped)


def _with_states(rows: pd.DataFrame, root: Path) -> pd.DataFrame:
    states = file_states(absolute(root, rows["image_path"].tolist()), "")
    rows = rows.reset_index(drop=True).assign(
        size_bytes=states["size_bytes"], mtime_ns=states["mtime_ns"]
    )
    return rows.sort_values("image_path", ignore_index=True)
