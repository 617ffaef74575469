"""How fast training images are made, against pure decoding and a plain loader, in one run.

python tests/bench/loader.py [--images 400] [--side 500] [--size-px 224]

Draws photographs-like JPEGs in memory, so it needs no data. One core, images per second, ratios.
"""

from __future__ import annotations

import argparse
import io
import time
from collections.abc import Callable

import albumentations as A
import numpy as np
import torch
from PIL import Image, ImageFilter

from guie.augment import Augment
from guie.config.run import AugmentConfig
from guie.data import as_batch
from guie.images import open_as_seen
from guie.model.preprocess import Preprocess

AUGMENT = AugmentConfig(flip=0.5, color=0.2, erase=0.2)
MEAN, STD = [0.48, 0.46, 0.41], [0.27, 0.26, 0.28]


def draw(count: int, side: int) -> list[bytes]:
    """JPEG bytes of smooth random pictures, 4:3."""
    rng = np.random.default_rng(0)
    encoded = []
    for _ in range(count):
        coarse = rng.integers(0, 256, (side // 24, side // 18, 3), dtype=np.uint8)
        image = Image.fromarray(coarse).resize((side * 4 // 3, side), Image.Resampling.BICUBIC)
        buffer = io.BytesIO()
        image.filter(ImageFilter.DETAIL).save(buffer, "JPEG", quality=90)
        encoded.append(buffer.getvalue())
    return encoded


def images_per_second(images: list[bytes], make: Callable[[bytes, int], object]) -> float:
    for number, data in enumerate(images[:20]):
        make(data, number)
    began = time.perf_counter()
    for number, data in enumerate(images):
        make(data, number)
    return len(images) / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--side", type=int, default=500)
    parser.add_argument("--size-px", type=int, default=224)
    args = parser.parse_args()
    torch.set_num_threads(1)
    images = draw(args.images, args.side)
    augment, preprocess = Augment(AUGMENT), Preprocess(args.size_px, MEAN, STD)
    plain = A.Compose(
        [
            A.RandomResizedCrop((args.size_px, args.size_px), scale=(0.5, 1.0)),
            A.HorizontalFlip(p=0.5),
            A.ColorJitter((0.8, 1.2), (0.8, 1.2), (0.8, 1.2), (0, 0), p=0.8),
            A.CoarseDropout((1, 1), (0.1, 0.4), (0.1, 0.4), p=0.2),
            A.Normalize(MEAN, STD),
        ]
    )

    def ours(data: bytes, number: int) -> torch.Tensor:
        view = augment(np.asarray(open_as_seen(io.BytesIO(data))), number)
        return preprocess(as_batch(view))[0]

    def peer(data: bytes, number: int) -> torch.Tensor:
        image = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
        return torch.from_numpy(plain(image=image)["image"]).permute(2, 0, 1)

    def decode(data: bytes, number: int) -> np.ndarray:
        return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))

    limit = images_per_second(images, decode)
    print(f"{'':<44}{'images/s':>10}{'of the limit':>14}")
    for name, make in (
        ("JPEG decoding alone (the limit)", decode),
        ("ours: decode, augment, exported resize", ours),
        ("peer: PIL + albumentations, cv2 resize", peer),
    ):
        rate = images_per_second(images, make)
        print(f"{name:<44}{rate:>10.0f}{rate / limit:>14.2f}")


if __name__ == "__main__":
    main()
