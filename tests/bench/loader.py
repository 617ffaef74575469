"""How fast training images are made, against pure decoding and a plain loader, in one run.

python tests/bench/loader.py [--images 300] [--side 500] [--size-px 224]

Draws photograph-like JPEGs into a temporary folder. One core, images per second, ratios.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import albumentations as A
import numpy as np
import torch
from PIL import Image, ImageFilter

from guie.augment import Augment
from guie.config.stages import AugmentConfig
from guie.data import as_batch
from guie.images import open_as_seen
from guie.model.preprocess import Preprocess

AUGMENT = AugmentConfig(flip=0.5, color=0.2, erase=0.2)
MEAN, STD = [0.48, 0.46, 0.41], [0.27, 0.26, 0.28]
PASSES = 3

Make = Callable[[Path, int], object]


def draw(folder: Path, count: int, side: int) -> list[Path]:
    """JPEG files of smooth random pictures, 4:3."""
    rng = np.random.default_rng(0)
    files = []
    for number in range(count):
        coarse = rng.integers(0, 256, (side // 24, side // 18, 3), dtype=np.uint8)
        image = Image.fromarray(coarse).resize((side * 4 // 3, side), Image.Resampling.BICUBIC)
        files.append(folder / f"{number}.jpg")
        image.filter(ImageFilter.DETAIL).save(files[-1], quality=90)
    return files


def ours(size_px: int) -> Make:
    """A sample as `TrainDataset` makes it."""
    augment, preprocess = Augment(AUGMENT, size_px, "squash"), Preprocess(size_px, MEAN, STD)

    def make(file: Path, seed: int) -> torch.Tensor:
        image_HWC = np.asarray(open_as_seen(file, augment.least_px))
        return preprocess(as_batch(augment(image_HWC, seed)).contiguous())[0]

    return make


def peer(size_px: int) -> Make:
    """The usual: PIL, then albumentations with its random resized crop."""
    plain = A.Compose(
        [
            A.RandomResizedCrop((size_px, size_px), scale=(0.5, 1.0)),
            A.HorizontalFlip(p=0.5),
            A.ColorJitter((0.8, 1.2), (0.8, 1.2), (0.8, 1.2), (0, 0), p=0.8),
            A.CoarseDropout((1, 1), (0.1, 0.4), (0.1, 0.4), p=0.2),
            A.Normalize(MEAN, STD),
        ]
    )

    def make(file: Path, seed: int) -> torch.Tensor:
        image_HWC = np.asarray(Image.open(file).convert("RGB"))
        return torch.from_numpy(plain(image=image_HWC)["image"]).permute(2, 0, 1)

    return make


def decoded(file: Path, seed: int) -> np.ndarray:
    """Nothing but the decoding."""
    return np.asarray(Image.open(file).convert("RGB"))


def compare(files: list[Path], makes: dict[str, Make]) -> dict[str, float]:
    """Images per second of each: the best of several passes, in turn, for other work only slows."""
    best = dict.fromkeys(makes, 0.0)
    for _ in range(PASSES):
        for name, make in makes.items():
            began = time.perf_counter()
            for number, file in enumerate(files):
                make(file, number)
            best[name] = max(best[name], len(files) / (time.perf_counter() - began))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=300)
    parser.add_argument("--side", type=int, nargs="+", default=[500, 1000], help="shorter sides")
    parser.add_argument("--size-px", type=int, default=224)
    args = parser.parse_args()
    torch.set_num_threads(1)
    makes = {
        "JPEG decoding alone": decoded,
        "ours: decode, augment, antialiased resize": ours(args.size_px),
        "peer: PIL + albumentations, cv2 resize": peer(args.size_px),
    }
    for side in args.side:
        with tempfile.TemporaryDirectory() as folder:
            rates = compare(draw(Path(folder), args.images, side), makes)
        print(
            f"{f'photographs of {side * 4 // 3} x {side} px':<44}{'images/s':>10}{'of decoding':>14}"
        )
        for name, rate in rates.items():
            print(f"{name:<44}{rate:>10.0f}{rate / rates['JPEG decoding alone']:>14.2f}")


if __name__ == "__main__":
    main()
