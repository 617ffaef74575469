"""How fast training batches are made, against pure decoding and a plain loader, in one run.

python tests/bench/loader.py [--images 256] [--side 500 1000] [--size-px 224] [--passes 7]

Draws JPEGs as heavy as photographs into a temporary folder, and packs them in shards. One core, no loader
processes. The ways take turns, and all numbers are of CPU time: other work disturbs them least.
"""

import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import albumentations as A
import cv2
import numpy as np
import torch
from albumentations.pytorch import ToTensorV2
from common import (
    BATCH,
    MEAN,
    STD,
    arguments,
    exhaust,
    in_turn,
    manifest_of,
    photographs,
    ratio,
    show,
    train_loader,
)
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from guie.curation.packing import pack
from guie.data.manifest import load_manifest

SHARD_BYTES = 10_000_000


class Plain(Dataset):
    """The usual: PIL, then albumentations with its random resized crop."""

    def __init__(self, files: Sequence[Path], size_px: int):
        self.files = files
        self.transform = A.Compose(
            [
                A.RandomResizedCrop((size_px, size_px), scale=(0.5, 1.0), ratio=(0.8, 1.25)),
                A.HorizontalFlip(p=0.5),
                A.ColorJitter((0.8, 1.2), (0.8, 1.2), (0.8, 1.2), (0, 0), p=0.8),
                A.CoarseDropout((1, 1), (0.1, 0.4), (0.1, 0.4), p=0.2),
                A.Normalize(MEAN, STD),
                ToTensorV2(),
            ]
        )

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image_HWC = np.asarray(Image.open(self.files[index]).convert("RGB"))
        return self.transform(image=image_HWC)["image"], 0


def main() -> None:
    args = arguments(__doc__, images=256, side=[500, 1000], size_px=224, passes=7)
    images = max(BATCH, args.images // BATCH * BATCH)  # whole batches of all
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    for side in args.side:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            os.environ["GUIE_CACHE"] = str(folder / "cache")
            files = photographs(folder / "files", images, side)
            manifest = manifest_of(files)
            shards = load_manifest(pack(manifest, folder / "shards", SHARD_BYTES, 1))
            loader, packed = (train_loader(each, args.size_px) for each in (manifest, shards))
            plain = DataLoader(Plain(files, args.size_px), BATCH, shuffle=True)
            ways = {
                "JPEG decoding alone": lambda files=files: exhaust(
                    np.asarray(Image.open(file).convert("RGB")) for file in files
                ),
                "PIL + albumentations": lambda plain=plain: exhaust(plain),
                "ours, as a loader process makes it": lambda one=loader: exhaust(one.loader),
                "the same from shards": lambda one=packed: exhaust(one.loader),
                "ours, normalised on the CPU too": lambda one=loader: exhaust(one),
            }
            spent = in_turn(ways, args.passes, time.process_time)
            bits = 8 * sum(file.stat().st_size for file in files)
        title = f"{side * 4 // 3} x {side} px, {bits / images / side**2 * 3 / 4:.1f} bits a pixel"
        alone, other, *_ = ways
        rows = (
            (name, images / min(seconds), ratio(spent, alone, name), ratio(spent, other, name))
            for name, seconds in spent.items()
        )
        show(["", "images/s", "of decoding", "of PIL + albumentations"], rows, title)


if __name__ == "__main__":
    main()
