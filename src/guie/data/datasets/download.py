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
from dataclasses import dataclass
from pathlib import Path

from guie.base.errors import UserError, run
from guie.base.files import replacing
from guie.base.network import stream
from guie.data.archives import unpack


@dataclass(frozen=True)
class Download:
    """A file and its digest, `<algorithm>:<hex>`."""

    url: str
    digest: str

    @property
    def name(self) -> str:
        """The file's name."""
        return self.url.rpartition("/")[2]

    @property
    def is_archive(self) -> bool:
        """Whether to unpack the file after the download."""
        return self.name.endswith((".zip", ".tgz", ".tar.gz"))


OXFORD = "https://www.robots.ox.ac.uk/~vgg/data"
DOWNLOADS: dict[str, tuple[Download, ...]] = {
    "cub": (
        Download(
            "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
            "md5:97eceeb196236b17998738112f37df78",
        ),
    ),
    "sop": (
        Download(
            "ftp://cs.stanford.edu/cs/cvgl/Stanford_Online_Products.zip",
            "md5:7f73d41a2f44250d4779881525aea32e",
        ),
    ),
    "flowers": (
        Download(f"{OXFORD}/flowers/102/102flowers.tgz", "md5:52808999861908f626f3c1f4e79d11fa"),
        Download(f"{OXFORD}/flowers/102/imagelabels.mat", "md5:e0620be6f572b9609742df49c70aed4d"),
    ),
    "aircraft": (
        Download(
            f"{OXFORD}/fgvc-aircraft/archives/fgvc-aircraft-2013b.tar.gz",
            "md5:d4acdd33327262359767eeaa97a4f732",
        ),
    ),
    "food101": (
        Download(
            "http://data.vision.ee.ethz.ch/cvl/food-101.tar.gz",
            "md5:85eeb15f3717b99a5da872d97d918f87",
        ),
    ),
    "rp2k": (
        Download(
            "https://blob-nips2020-rp2k-dataset.obs.cn-east-3.myhuaweicloud.com/rp2k_dataset.zip",
            "sha256:4c32449993e720285865405c3b46d2958cb36f33a9d7db6c3d70bde49d580205",
        ),
    ),
    "uned": (  # the lists; the images come from the eight datasets
        Download(
            "https://cmp.felk.cvut.cz/univ_emb/info_files.zip",
            "sha256:6d3661d53e9a93e0492eefb6850cf97f5cd70f293bd76e59c014f610ff72c021",
        ),
    ),
}


def fetch_dataset(name: str, root: Path) -> Path:
    """Download the files of data set `name` and unpack them into `root / name`. Raises UserError."""
    folder = root / name
    for download in DOWNLOADS[name]:
        if download.is_archive:
            unpack(fetch(download, root / download.name), folder)
        else:
            fetch(download, folder / download.name)
    return folder


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
        print(f"{name}: {fetch_dataset(name, args.to)}")


if __name__ == "__main__":
    run(main)
