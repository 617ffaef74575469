"""How fast training batches are made, against pure decoding and a plain loader, in one run.

python tests/bench/loader.py [--images 256] [--side 500 1000] [--size-px 224] [--passes 7]

Draws JPEGs as heavy as photographs into a temporary folder. One core, no loader processes; the
three take turns, and all numbers are of CPU time: other work on the machine disturbs them least.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import albumentations as A
import cv2
import numpy as np
import pandas as pd
import torch
from albumentations.pytorch import ToTensorV2
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from guie.config.stages import AugmentConfig
from guie.data.augmentation import Augment
from guie.data.dataset import TrainDataset
from guie.data.loader import train_loader
from guie.data.sampling import RankBatches, Sampler
from guie.models.preprocess import Preprocess

AUGMENT = AugmentConfig(flip=0.5, color=0.2, erase=0.2)
MEAN, STD = [0.48, 0.46, 0.41], [0.27, 0.26, 0.28]
BATCH = 64
GRAIN = 4.0  # grey levels of noise: 2.5 bits a pixel, as photographs of quality 85 to 90 have

Run = Callable[[], object]


def draw(folder: Path, count: int, side: int) -> list[Path]:
    """JPEG files of random pictures with grain, 4:3."""
    rng = np.random.default_rng(0)
    files = []
    for number in range(count):
        coarse = rng.integers(0, 256, (side // 24, side // 18, 3), dtype=np.uint8)
        smooth = Image.fromarray(coarse).resize((side * 4 // 3, side), Image.Resampling.BICUBIC)
        grain = rng.normal(0, GRAIN, (side, side * 4 // 3, 1))
        pixels = (np.asarray(smooth) + grain).clip(0, 255).astype(np.uint8)
        files.append(folder / f"{number}.jpg")
        Image.fromarray(pixels).save(files[-1], quality=90)
    return files


def ours(files: list[Path], size_px: int, normalised: bool) -> Run:
    """The loader that train.py uses; without its last step, what a loader process does."""
    names = [file.name for file in files]
    rows = pd.DataFrame({"image_path": names, "label": "l", "domain": "d"})
    preprocess = Preprocess(size_px, MEAN, STD)
    dataset = TrainDataset(rows, ["l"], files[0].parent, Augment(AUGMENT), preprocess, (0, 0))
    batches = RankBatches(Sampler(rows["domain"], "mixed", BATCH, (0, 0)), 0, _steps(files), 0, 1)
    loader = train_loader(dataset, batches, workers=0)
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


def peer(files: list[Path], size_px: int) -> Run:
    loader = DataLoader(Plain(files, size_px), BATCH, shuffle=True)
    return lambda: _exhaust(loader)


def decoding(files: list[Path]) -> Run:
    """Nothing but the decoding."""
    return lambda: _exhaust(np.asarray(Image.open(file).convert("RGB")) for file in files)


def seconds(runs: dict[str, Run], passes: int) -> pd.DataFrame:
    """CPU seconds of each run (columns) in each pass (rows), after one pass to warm up."""
    table = []
    for _ in range(passes + 1):
        table.append({})
        for name, run in runs.items():
            began = time.process_time()
            run()
            table[-1][name] = time.process_time() - began
    return pd.DataFrame(table[1:])


def _steps(files: list[Path]) -> int:
    return len(files) // BATCH


def _exhaust(made: Iterable) -> None:
    for _ in made:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--side", type=int, nargs="+", default=[500, 1000], help="shorter sides")
    parser.add_argument("--size-px", type=int, default=224)
    parser.add_argument("--passes", type=int, default=7)
    args = parser.parse_args()
    args.images = max(BATCH, args.images // BATCH * BATCH)  # whole batches of all
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    for side in args.side:
        with tempfile.TemporaryDirectory() as folder:
            files = draw(Path(folder), args.images, side)
            bits = 8 * sum(file.stat().st_size for file in files)
            runs = {
                "JPEG decoding alone": decoding(files),
                "peer: PIL + albumentations, cv2 resize": peer(files, args.size_px),
                "ours, as a loader process makes it": ours(files, args.size_px, False),
                "ours, normalised on the CPU too": ours(files, args.size_px, True),
            }
            spent = seconds(runs, args.passes)
        title = (
            f"{side * 4 // 3} x {side} px, {bits / args.images / side**2 * 3 / 4:.1f} bits a pixel"
        )
        print(f"{title:<42}{'images/s':>10}{'of decoding':>13}{'of the peer':>13}")
        alone, plain = spent.iloc[:, 0], spent.iloc[:, 1]
        for name in runs:
            ratios = (alone / spent[name]).median(), (plain / spent[name]).median()
            rate = args.images / spent[name].min()
            print(f"{name:<42}{rate:>10.0f}{ratios[0]:>13.2f}{ratios[1]:>13.2f}")


if __name__ == "__main__":
    main()
