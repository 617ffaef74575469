"""What shards cost against files on one disk: packing, and training batches from them.

python tests/bench/shards.py [--images 512] [--side 375] [--size-px 112] [--passes 7]

Draws JPEGs as heavy as photographs into a temporary folder. One core, no loader processes; batches from
files and from shards take turns, in CPU time. Packing is compared with `shutil.copy` of the same files; it
also decodes each image once, which is measured apart. All files are in the page cache.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pandas as pd
from common import Way, arguments, in_turn, photographs, ratio, show

from guie.config.stages import AugmentConfig
from guie.curation.packing import pack
from guie.data.augmentation import Augment
from guie.data.dataset import TrainDataset
from guie.data.loader import TrainLoader
from guie.data.manifest import Manifest, load_manifest
from guie.data.preprocess import Preprocess
from guie.data.sampling import RankBatches, Sampler

AUGMENT = AugmentConfig(flip=0.5, color=0.2, erase=0.2)
BATCH = 64
SHARD_BYTES = 10_000_000
CPU = "user and system seconds"


def batches_of(manifest: Manifest, size_px: int) -> Way:
    """A pass over the training batches, as a loader process makes them."""
    rows, preprocess = manifest.table, Preprocess(size_px, [0.5] * 3, [0.25] * 3)
    dataset = TrainDataset(rows, ["d/l"], manifest.root, Augment(AUGMENT), preprocess, (0, 0))
    sampler = Sampler(rows["domain"], "mixed", BATCH, (0, 0))
    batches = RankBatches(sampler, 0, len(rows) // BATCH, 0, 1)
    loader = TrainLoader(dataset, batches, workers=0).loader

    def exhaust() -> None:
        for _ in loader:
            pass

    return exhaust


def cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system


def main() -> None:
    args = arguments(__doc__, images=512, side=375, size_px=112, passes=7)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["GUIE_CACHE"] = str(folder / "cache")
        (folder / "files").mkdir()
        files = photographs(folder / "files", args.images, args.side)
        rows = pd.DataFrame({"image_path": [file.name for file in files], "label": "d/l"})
        rows = rows.assign(domain="d", split="train", role="train")
        rows.to_csv(folder / "files/m.csv", index=False)
        manifest = load_manifest(folder / "files/m.csv")
        pack(manifest, folder / "shards", SHARD_BYTES, 1)  # decodes: later packings only write

        def packed() -> None:
            shutil.rmtree(folder / "again", ignore_errors=True)
            pack(manifest, folder / "again", SHARD_BYTES, 1)

        def copied() -> None:
            shutil.rmtree(folder / "copies", ignore_errors=True)
            (folder / "copies").mkdir()
            for file in files:
                shutil.copy(file, folder / "copies")

        shards = load_manifest(folder / "shards/index.parquet")
        ways = {
            "files": batches_of(manifest, args.size_px),
            "shards": batches_of(shards, args.size_px),
        }
        made = in_turn(ways, args.passes, cpu_seconds)
        written = in_turn({"copy": copied, "pack": packed}, args.passes, cpu_seconds)
        size_mb = sum(file.stat().st_size for file in files) / 1e6
        print(f"{args.images} images, {args.side} px high, {size_mb:.1f} MB; {CPU}, one process")
        show(
            ["", "a pass", "over the first"],
            [
                ("batches from files", made["files"].mean(), 1.0),
                ("batches from shards", made["shards"].mean(), ratio(made, "shards", "files")),
                ("copying the files", written["copy"].mean(), 1.0),
                ("packing them", written["pack"].mean(), ratio(written, "pack", "copy")),
            ],
        )


if __name__ == "__main__":
    main()
