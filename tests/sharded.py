"""A small data set on disk, its shards, and tars as other tools write them."""

import io
import shutil
import tarfile
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

from guie.curation.packing import pack
from guie.data.manifest import Manifest, load_manifest

SHARD_BYTES = 20_000  # some five of the images below


def picture_bytes(number: int, suffix: str = "JPEG") -> bytes:
    """Encode a noisy picture of some 2 kB that no other number has."""
    pixels = np.random.default_rng(number).integers(0, 256, (24, 30, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, suffix)
    return buffer.getvalue()


def data_set(folder: Path, images: int = 23) -> Manifest:
    """Images of three classes, some of val and test, and one that is in two rows."""
    rows = ["image_path,label,domain,split,role,sha256"]
    for number in range(images):
        split = ("train", "train", "val", "test")[number % 4]
        path = f"{split}/{number:02d}.v1.jpg"
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(picture_bytes(number))
        label = f"art/{split}-{number // 4 % 3}"
        rows.append(
            f"{path},{label},art,{split},{'train' if split == 'train' else 'both'},s{number}"
        )
        if number == 0:
            rows.append(f"{path},{label},art,test,index,s{number}")
    manifest = folder / "m.csv"
    manifest.write_text("\n".join(rows) + "\n")
    manifest.with_suffix(".sidecar.yaml").write_text("domains: {art: {index_is_train: true}}\n")
    return load_manifest(manifest)


@cache
def packed_once() -> tempfile.TemporaryDirectory:
    """The data set and its shards, as every test begins with them."""
    made = tempfile.TemporaryDirectory()
    folder = Path(made.name)
    pack(data_set(folder / "files"), folder / "shards", SHARD_BYTES, 2)
    return made


def packed(folder: Path) -> tuple[Manifest, Manifest]:
    """The data set, and the same from shards: copies, for a test to change."""
    for name in ("files", "shards"):
        shutil.copytree(Path(packed_once().name) / name, folder / name)
    return load_manifest(folder / "files/m.csv"), load_manifest(folder / "shards/index.parquet")


def tar_of(path: Path, members: Iterable[tuple[str, bytes]], mode: str = "w") -> Path:
    """A tar of these members, in order, names as given."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as tar:
        for name, data in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return path
