"""Download data sets whose sources offer plain files, check each file's digest, and unpack them.

    python -m guie.data.datasets.download cub sop
    python -m guie.data.datasets.download flowers --to /data/input

An archive is kept next to its folder: `input/CUB_200_2011.tgz` and `input/cub/`. Complete files are
not downloaded again. Digests are those published by torchvision, pytorch-metric-learning or the
sources themselves.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Sequence
from pathlib import Path

from guie.base.errors import UserError, run
from guie.base.files import replacing
from guie.base.network import stream
from guie.data.archives import unpack
from guie.data.datasets.declared import DATASETS, Download

DOWNLOADS = {name: dataset.downloads for name, dataset in DATASETS.items() if dataset.downloads}


def fetch(download: Download, path: Path) -> Path:
    """Download to `path`, which is renamed into place only when complete and its digest is correct.

    Raises UserError if the source does not answer or sends something else.
    """
    if path.is_file() and _digest(path, download) == download.digest:
        return path
    with replacing(path) as temporary:
        try:
            stream(download.url, temporary)
        except OSError as error:
            raise UserError(f"{download.url}: download failed: {error}; try again later") from None
        found = _digest(temporary, download)
        if found != download.digest:
            raise UserError(
                f"{download.url}: digest {found}, expected {download.digest}; the file is truncated"
                " or has changed, and is not kept"
            )
    return path


def _digest(path: Path, download: Download) -> str:
    algorithm = download.digest.partition(":")[0]
    with path.open("rb") as file:
        return f"{algorithm}:{hashlib.file_digest(file, algorithm).hexdigest()}"


def main(argv: Sequence[str] | None = None) -> None:
    """Download the data sets named on the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "datasets", nargs="+", choices=DOWNLOADS, metavar="DATASET", help=", ".join(DOWNLOADS)
    )
    parser.add_argument("--to", type=Path, default=Path("input"), help="default: input")
    args = parser.parse_args(argv)
    for name in args.datasets:
        folder = args.to / name
        for download in DOWNLOADS[name]:
            if download.name.endswith((".zip", ".tgz", ".tar.gz")):
                unpack(fetch(download, args.to / download.name), folder)
            else:
                fetch(download, folder / download.name)
        print(f"{name}: {folder}")


if __name__ == "__main__":
    run(main)
