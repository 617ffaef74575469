"""List the images of a folder, an archive or a manifest, with what changes when a file does."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from guie.config.types import Decode
from guie.data.archives import unpacked
from guie.data.datasets.folder import image_files
from guie.data.manifest import load_manifest
from guie.data.shards.storage import as_path, url_of
from guie.rows.states import states

COLUMNS = ["image_path", "domain", "label"]


@dataclass(frozen=True)
class Pictures:
    """Images to index."""

    root: Path
    files: pd.DataFrame  # image_path, domain, label (empty if unknown), size_bytes and mtime_ns
    skipped: Counter[str]  # files that are not images, by reason
    decode: Decode = "seen"


def pictures_of(source: str | Path, root: str | Path | None = None) -> Pictures:
    """Return the images of a source, each once.

    In a folder, the first subfolder is the domain. Only a manifest has labels. An archive is inspected, then
    unpacked next to itself. Raises UserError if the source is missing or has no image.
    """
    source, skipped = as_path(source), Counter[str]()
    decode: Decode = "seen"
    if source.suffix in (".csv", ".parquet"):
        manifest = load_manifest(source, root)
        rows, folder = manifest.table.drop_duplicates("image_path")[COLUMNS], manifest.root
        decode = manifest.sidecar.decode
    else:
        folder = source if url_of(source) else unpacked(source)
        paths, skipped = image_files(folder)
        domains = [path.split("/")[0] if "/" in path else "" for path in paths]
        rows = pd.DataFrame({"image_path": paths, "domain": domains, "label": ""}, dtype=str)
    known = states(folder, rows["image_path"], by_content=False)
    files = rows.reset_index(drop=True).assign(size_bytes=known.size_N, mtime_ns=known.time_N)
    return Pictures(folder if url_of(folder) else folder.resolve(), files, skipped, decode)
