"""From rows of the manifest to samples, tensors that a loader makes batches of."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pandas as pd
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from guie.base.errors import UserError
from guie.batches.augment import Augment
from guie.data.images import open_as_host, open_part, patiently
from guie.data.looks.boxes import Box
from guie.data.manifest import Manifest
from guie.model.preprocess import Preprocess
from guie.model.shapes import image_shape, image_shapes

# A JPEG decoded small is sharper than what the model's own filter leaves of the whole, unless that
# has its share of the shrinking: decoded to just the size, a view is twice as far from the scored.
MARGIN = 1.5


class TrainDataset(Dataset):
    """Random views of training images; a sample is a pure function of (seed, step, position, row).

    `image` (3, S, S) is uint8: a quarter of the bytes to hand over, and normalised as a batch, on
    the device. `shape` (3,) is the `image_shape` of the whole image.

    Args:
        rows: training rows of a manifest.
        classes: the class list; a label's place in it is its id.
        root: folder that image_path is relative to.
        augment, preprocess: what makes the view and the network's input.
        seed: integers that tell this stage's views from all others.
    """

    def __init__(
        self,
        rows: pd.DataFrame,
        classes: Sequence[str],
        root: Path,
        augment: Augment,
        preprocess: Preprocess,
        seed: Sequence[int],
    ):
        ids = {label: number for number, label in enumerate(classes)}
        self.paths = rows["image_path"].to_numpy()
        self.labels = rows["label"].map(ids).to_numpy(np.int64)
        self.captions = rows["caption"].to_numpy() if "caption" in rows else None
        self.root, self.augment, self.preprocess = root, augment, preprocess
        self.seed = tuple(seed)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, key: tuple[int, int, int]) -> dict[str, Any]:
        step, position, row = key
        drawn = np.random.SeedSequence([*self.seed, step, position]).generate_state(3).tolist()
        view_CHW, size = self._view(row, drawn[0], drawn[1])
        if self.augment.config.mixup:
            view_CHW = self._blended(view_CHW, drawn[2])
        sample = {
            "image": view_CHW,
            "shape": torch.tensor(image_shape(*size)),
            "label": self.labels[row],
            "row": row,
        }
        if self.captions is not None:
            sample["caption"] = self.captions[row]
        return sample

    def _view(
        self, row: int, seed_of_part: int, seed_of_pixels: int
    ) -> tuple[Tensor, tuple[int, int]]:
        """A view (3, S, S) uint8, and the height and width in pixels of the whole image."""
        part = self.augment.part(seed_of_part)
        file = self.root / self.paths[row]
        part_HWC, size = patiently(partial(open_part, file, part, self._enough))
        part_HWC = self.augment.at_full_size(part_HWC, seed_of_pixels)
        resized_HWC = self.preprocess.resized_in_8_bits(as_batch(part_HWC))[0].permute(1, 2, 0)
        view_HWC = self.augment(resized_HWC.contiguous().numpy(), seed_of_pixels)
        return self.preprocess.padded(_planes(view_HWC)[None])[0], size

    def _blended(self, view_CHW: Tensor, seed: int) -> Tensor:
        """The view, or a blend of it with one of any row: see `AugmentConfig.mixup`."""
        draw = random.Random(seed)
        if draw.random() >= self.augment.config.mixup:
            return view_CHW
        row, part, pixels = draw.randrange(len(self)), draw.getrandbits(32), draw.getrandbits(32)
        other_CHW, _ = self._view(row, part, pixels)
        return torch.lerp(view_CHW.float(), other_CHW.float(), draw.random()).round().byte()

    def _enough(self, height: int, width: int) -> bool:
        if self.augment.config.full_size:
            return False  # never: all pixels are to be distorted
        return self.preprocess.shrinks(int(height / MARGIN), int(width / MARGIN))


class Samples(Dataset[Any]):
    """A data set of known size."""

    def __len__(self) -> int:
        raise NotImplementedError


class EvalDataset(Samples):
    """Images as the scorer decodes them, through the preprocessing that is exported.

    Args:
        boxes: what each is cropped to first, None for the whole.
        open_image: how they are decoded.
    """

    def __init__(
        self,
        files: Sequence[Path],
        preprocess: Callable[[Tensor], Tensor],
        boxes: Sequence[Box | None] | None = None,
        open_image: Callable[[Path], Image.Image] = open_as_host,
    ):
        self.files, self.preprocess, self.boxes = files, preprocess, boxes
        self.open_image = open_image

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """The network's input (3, S, S), and the shape (3,) of the image as it came, or of its box."""
        image = patiently(partial(self.open_image, self.files[index]))
        box = self.boxes[index] if self.boxes else None
        if box:
            image = image.crop(box)
        image_1CHW = as_batch(np.asarray(image))
        return self.preprocess(image_1CHW)[0], image_shapes(image_1CHW)[0]


def as_batch(image_HWC: np.ndarray) -> Tensor:
    """uint8 image (H, W, 3) -> uint8 tensor (1, 3, H, W), as the scorer hands it to the model."""
    if not image_HWC.flags.writeable:  # Pillow's buffer, which torch would warn of
        image_HWC = image_HWC.copy()
    return torch.from_numpy(image_HWC).permute(2, 0, 1)[None]


def _planes(image_HWC: np.ndarray) -> Tensor:
    """uint8 image (H, W, 3) -> (3, H, W), channel by channel in memory."""
    planes_CHW = np.empty((3, *image_HWC.shape[:2]), np.uint8)
    cv2.split(image_HWC, list(planes_CHW))  # ten times as fast as a copy with strides
    return torch.from_numpy(planes_CHW)


def training_rows(manifest: Manifest, domains: Iterable[str] | None = None) -> pd.DataFrame:
    """Rows to train on, of all or of the named domains.

    Raises UserError for an unknown domain and for rows with several labels.
    """
    rows = manifest.split("train")
    several = rows["label"].str.contains("|", regex=False)
    if several.any():
        raise UserError(
            f"{manifest.path}: {int(several.sum())} training images have several labels, first"
            f" {rows.loc[several, 'image_path'].iloc[0]}; training takes one label an image"
        )
    if domains is None:
        return rows
    known = sorted(rows["domain"].unique())
    unknown = sorted(set(domains) - set(known))
    if unknown:
        raise UserError(
            f"stages: unknown domains {', '.join(unknown)}; known: {', '.join(known)}, which have"
            " training images"
        )
    return rows[rows["domain"].isin(domains)].reset_index(drop=True)


@dataclass(frozen=True)
class Classes:
    """The training classes in the order of their ids: sorted, so a domain's stand together."""

    labels: list[str]
    sizes: list[int]  # training images of each
    domains: list[str]

    def __len__(self) -> int:
        return len(self.labels)


def classes_of(rows: pd.DataFrame) -> Classes:
    """The classes of training rows; an image that several stages train on counts once."""
    groups = rows.drop_duplicates("image_path").groupby("label", sort=True)
    return Classes(
        labels=list(groups.groups),
        sizes=groups.size().tolist(),
        domains=groups["domain"].first().tolist(),
    )


def rows_hash(rows: pd.DataFrame) -> str:
    """A hash of what is trained on: images, labels, domains, weights, in their order."""
    columns = [c for c in ("image_path", "label", "domain", "weight") if c in rows]
    values = pd.util.hash_pandas_object(rows[columns], index=False)
    return hashlib.sha256(values.to_numpy().tobytes()).hexdigest()[:16]
