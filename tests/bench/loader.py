"""How fast training batches are made, against pure decoding and a plain loader, in one run.

python tests/bench/loader.py [--images 256] [--side 500 1000] [--size-px 224] [--passes 7]

Draws JPEGs as heavy as photographs into a temporary folder. One core, no loader processes; the
three take turns, and all numbers are of CPU time: other work on the machine disturbs them least.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import albumentations as A
import cv2
import numpy as np
import pandas as pd
import torch
from albumentations.pytorch import ToTensorV2
from common import Way, arguments, in_turn, photographs, ratio, show
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from guie.config.stages import AugmentConfig
from guie.data.augmentation import Augment
from guie.data.dataset import TrainDataset
from guie.data.loader import TrainLoader
from guie.data.preprocess import Preprocess
from guie.data.sampling import RankBatches, Sampler

AUGMENT = AugmentConfig(flip=0.5, color=0.2, erase=0.2)
MEAN, STD = [0.48, 0.46, 0.41], [0.27, 0.26, 0.28]
BATCH = 64


def ours(files: list[Path], size_px: int, normalised: bool) -> Way:
    """The loader that train.py uses; without its last step, what a loader process does."""
    names = [file.name for file in files]
    rows = pd.DataFrame({"image_path": names, "label": "l", "domain": "d"})
    preprocess = Preprocess(size_px, MEAN, STD)
    dataset = TrainDataset(rows, ["l"], files[0].parent, Augment(AUGMENT), preprocess, (0, 0))
    batches = RankBatches(
        Sampler(rows["domain"], "mixed", BATCH, (0, 0)), 0, len(files) // BATCH, 0, 1
    )
    loader = TrainLoader(dataset, batches, workers=0)
    return lambda: _exhaust(loader if normalised else loader.loader)


class Plain(Dataset):
    """The usual: PIL, then albumentations with its random resized crop."""

    def __init__(self, files: list[Path], size_px: int):
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


def peer(files: list[Path], size_px: int) -> Way:
    loader = DataLoader(Plain(files, size_px), BATCH, shuffle=True)
    return lambda: _exhaust(loader)


def decoding(files: list[Path]) -> Way:
    """Nothing but the decoding."""
    return lambda: _exhaust(np.asarray(Image.open(file).convert("RGB")) for file in files)


def _exhaust(made: Iterable) -> None:
    for _ in made:
        pass


def main() -> None:
    args = arguments(__doc__, images=256, side=[500, 1000], size_px=224, passes=7)
    images = max(BATCH, args.images // BATCH * BATCH)  # whole batches of all
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    for side in args.side:
        with tempfile.TemporaryDirectory() as folder:
            files = photographs(Path(folder), images, side)
            bits = 8 * sum(file.stat().st_size for file in files)
            ways = {
                "JPEG decoding alone": decoding(files),
                "peer: PIL + albumentations, cv2 resize": peer(files, args.size_px),
                "ours, as a loader process makes it": ours(files, args.size_px, False),
                "ours, normalised on the CPU too": ours(files, args.size_px, True),
            }
            spent = in_turn(ways, args.passes, time.process_time)
        title = f"{side * 4 // 3} x {side} px, {bits / images / side**2 * 3 / 4:.1f} bits a pixel"
        alone, plain, *_ = ways
        rows = (
            (name, images / min(seconds), ratio(spent, alone, name), ratio(spent, plain, name))
            for name, seconds in spent.items()
        )
        show(["", "images/s", "of decoding", "of the peer"], rows, title)


if __name__ == "__main__":
    main()
