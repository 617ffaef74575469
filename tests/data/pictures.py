"""Pictures of odd sizes, datasets of them, and JPEGs of every kind."""

from pathlib import Path

import numpy as np
from PIL import Image

from guie.config.stages import AugmentConfig
from guie.data.augmentation import Augment
from guie.data.dataset import TrainDataset
from guie.data.images import Region
from guie.data.manifest import Manifest
from guie.data.preprocess import Preprocess

NO_AUGMENT = AugmentConfig(crop_scale=[1.0, 1.0], crop_ratio=[1.0, 1.0])
FULL_AUGMENT = AugmentConfig(flip=0.5, color=0.3, gray=0.3, blur=0.3, jpeg=0.3, erase=0.3)
SIZES = [(1, 1), (1, 300), (300, 1), (32, 32), (90, 40), (40, 90), (257, 131)]  # width, height


def preprocess(fit: str = "squash") -> Preprocess:
    """Of a fit, or `pad on black`."""
    fit, _, color = fit.partition(" on ")
    return Preprocess(32, [0.5, 0.4, 0.3], [0.2, 0.3, 0.4], fit, pad_color=color or "white")


def dataset(manifest: Manifest, augment: AugmentConfig, fit: str = "squash") -> TrainDataset:
    classes = sorted(manifest.table["label"].unique())
    return TrainDataset(
        manifest.table,
        classes,
        manifest.root,
        Augment(augment),
        preprocess(fit),
        seed=(0, 0),
    )


def whole(height: int, width: int) -> Region:
    """A crop for `open_part`: all of an image of any size."""
    return Region(0.0, 0.0, 1.0, 1.0)


def jpeg(path: Path, mode: str = "RGB", size: tuple[int, int] = (333, 251), **options) -> Path:
    blobs = np.random.default_rng(0).integers(0, 256, (6, 8, 3), np.uint8)
    image = Image.fromarray(blobs).resize(size, Image.Resampling.BICUBIC).convert(mode)
    image.save(path, quality=90, **options)
    return path
