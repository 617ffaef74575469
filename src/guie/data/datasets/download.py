"""Download data sets whose sources offer plain files, check each file's digest, and unpack them.

    python -m guie.data.datasets.download cub sop
    python -m guie.data.datasets.download flowers --to /data/input

An archive is kept next to its folder: `input/CUB_200_2011.tgz` and `input/cub/`. Complete files are
not downloaded again. Digests are those published by torchvision, pytorch-metric-learning or the
sources themselves.
"""

import argparse
import hashlib
from collections.abc import Sequence
from pathlib import Path

from guie.base.errors import UserError, run
from guie.base.files import replacing
from guie.base.network import stream
from guie.data.archives import unpack
from guie.data.datasets.declared import DATASETS

DOWNLOADS = {name: dataset.downloads for name, dataset in DATASETS.items() if dataset.downloads}


def fetch(url: str, digest: str, path: Path) -> Path:
    """Download to `path`, which is renamed into place only when complete and its digest is correct.

    Raises UserError if the source does not answer or sends something else.
    """
    algorithm = digest.partition(":")[0]

    def found(file: Path) -> str:
        with file.open("rb") as opened:
            return f"{algorithm}:{hashlib.file_digest(opened, algorithm).hexdigest()}"

    if path.is_file() and found(path) == digest:
        return path
    with replacing(path) as temporary:
        try:
            stream(url, temporary)
        except OSError as error:
            raise UserError(f"{url}: download failed: {error}; try again later") from None
        if (other := found(temporary)) != digest:
            why = "the file is truncated or has changed, and is not kept"
            raise UserError(f"{url}: digest {other}, expected {digest}; {why}")
    return path


def main(argv: Sequence[str] | None = None) -> None:
    """Download the data sets named on the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add, names = parser.add_argument, ", ".join(DOWNLOADS)
    add("datasets", nargs="+", choices=DOWNLOADS, metavar="DATASET", help=names)
    add("--to", type=Path, default=Path("input"), help="default: input")
    args = parser.parse_args(argv)
    for name in args.datasets:
        folder = args.to / name
        for download in DOWNLOADS[name]:
            file = download["url"].rpartition("/")[2]
            if file.endswith((".zip", ".tgz", ".tar.gz")):
                unpack(fetch(**download, path=args.to / file), folder)
            else:
                fetch(**download, path=folder / file)
        print(f"{name}: {folder}")


if __name__ == "__main__":
    run(main)
