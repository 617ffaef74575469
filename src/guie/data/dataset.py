"""Turn manifest rows into samples, and samples into the `Batch` that a step trains on."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import cv2
import numpy as np
import pandas as pd
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from guie.base.errors import UserError
from guie.config.types import Decode
from guie.data.columns import StringColumn
from guie.data.images import (
    DECODERS,
    DIFFERENCES,
    difference,
    open_part,
    whole_px,
    with_retries,
)
from guie.data.manifest import Manifest, rows_where
from guie.data.preprocess import Preprocess

if TYPE_CHECKING:  # albumentations takes a second to import, and only training draws views
    from guie.data.augmentation import Augment

# A JPEG decoded at reduced size is sharper than the full image resized by the model's own filter. That
# filter must do part of the downscaling: decoded to the exact size, a view differs from the scored image
# twice as much.
DECODE_MARGIN = 1.5
T = TypeVar("T")
HASHED_ROWS = 10_000  # at once: the strings of ten million would fill gigabytes


def image_shape(height: int, width: int) -> list[float]:
    """Return H / W, H / 224 and W / 224 for a size in pixels (the challenge's 5th place)."""
    return [height / width, height / 224.0, width / 224.0]


def image_shapes(images_BCHW: Tensor) -> Tensor:
    """Return `image_shape` of each image: (B, C, H, W) of one size -> (B, 3) float32."""
    shape = image_shape(images_BCHW.size(2), images_BCHW.size(3))
    rows = [shape] * images_BCHW.size(0)
    return torch.tensor(rows, dtype=torch.float32, device=images_BCHW.device)


def each_tensor(batch: T, make: Callable[[Tensor], Tensor]) -> T:
    """Return a dataclass with other tensors."""
    made: dict[str, Any] = {k: make(v) for k, v in vars(batch).items() if torch.is_tensor(v)}
    return replace(batch, **made)  # type: ignore[type-var]


@dataclass(frozen=True)
class Batch:
    """One process's part of a global batch, or a micro-batch of it."""

    # Class ids, on the CPU: losses need their values, and would wait for the device
    label_B: Tensor
    row_B: Tensor  # row numbers in the stage's training table, on the CPU
    shapes_B3: Tensor | None = None  # `image_shape` of the original images
    images_BCHW: Tensor | None = None  # uint8 and not normalised from a loader's worker
    feat_BF: Tensor | None = None  # features of a frozen backbone, in place of images
    teacher_BT: Tensor | None = None  # precomputed teacher features of the images, concatenated
    captions: Sequence[str] | None = None
    generic_GCHW: Tensor | None = None  # on which the backbone's features are preserved; G may be 0
    # Of this micro-batch's mean over generic images. With it, the mean weighted by images per micro-batch
    # equals the mean over all generic images.
    generic_weight: float = 1.0
    # Micro-batches that networks see at a time, where the loss sees the whole batch
    pieces: int = 1

    def __len__(self) -> int:
        return len(self.label_B)

    def to(self, device: torch.device | str) -> Batch:
        """Return the batch with its tensors on the device, other than labels and rows."""
        moved = each_tensor(self, lambda tensor: tensor.to(device, non_blocking=True))
        return replace(moved, label_B=self.label_B, row_B=self.row_B)

    def pin_memory(self) -> Batch:
        """Return the batch in page-locked memory; DataLoader calls this."""
        return each_tensor(self, Tensor.pin_memory)

    def normalised(self, preprocess: Preprocess) -> Batch:
        """Return the batch with uint8 images normalised to network input."""
        images: dict[str, Any] = {
            name: preprocess.normalised(value)
            for name in ("images_BCHW", "generic_GCHW")
            if (value := getattr(self, name)) is not None
        }
        return replace(self, **images)

    def split(self, pieces: int) -> Iterator[Batch]:
        """Yield `pieces` non-empty micro-batches of nearly equal size; some may lack generic images."""
        pieces = min(pieces, len(self))
        columns = {k: v for k, v in vars(self).items() if isinstance(v, Tensor | list | tuple)}
        for number in range(pieces):
            cut: dict[str, Any] = {
                name: column[len(column) * number // pieces : len(column) * (number + 1) // pieces]
                for name, column in columns.items()
            }
            piece = replace(self, **cut)
            if self.generic_GCHW is not None and piece.generic_GCHW is not None:
                share = len(piece.generic_GCHW) / len(self.generic_GCHW)
                piece = replace(piece, generic_weight=share * len(self) / len(piece))
            yield piece


def collated(samples: Sequence[dict[str, Any]]) -> Batch:
    """Collate samples of `TrainDataset` into a batch; generic images go into `generic_GCHW`."""
    generic = [sample["generic"] for sample in samples if "generic" in sample]
    parts = default_collate([sample for sample in samples if "generic" not in sample])
    return Batch(
        label_B=parts["label"],
        row_B=parts["row"],
        shapes_B3=parts["shape"],
        images_BCHW=parts["image"],
        captions=parts.get("caption"),
        generic_GCHW=torch.stack(generic) if generic else None,
    )


class TrainDataset(Dataset):
    """Random views of training images; a sample is a pure function of (seed, step, position, row).

    `image` (3, S, S) is uint8, a quarter of the bytes of float32. The device normalises it as a batch.
    `shape` (3,) is the `image_shape` of the whole image.

    Args:
        classes: the class list; a label's index in it is its id.
        seed: integers unique to this stage's views.
    """

    generic: TrainDataset | None = None  # of `add_generic`: its row n is row -1 - n here

    def __init__(
        self,
        rows: pd.DataFrame,
        classes: Sequence[str],
        root: Path,
        augment: Augment,
        preprocess: Preprocess,
        seed: Sequence[int],
        decode: Decode = "seen",
    ):
        self.paths = StringColumn(rows["image_path"])
        self.labels = StringColumn(rows["label"]).positions_in(classes)
        self.captions = StringColumn(rows["caption"]) if "caption" in rows else None
        self.root, self.augment, self.preprocess = root, augment, preprocess
        self.seed, self.decode = tuple(seed), decode

    def __len__(self) -> int:
        return len(self.paths)

    def files_of(self, keys: Sequence[tuple[int, int, int]]) -> list[str]:
        """Return the files of samples, so that a loader can fetch them all at once."""
        files = [f"{self.root}/{self.paths[row]}" for _, _, row in keys if row >= 0]
        generic = [(step, position, ~row) for step, position, row in keys if row < 0]
        return files + self.generic.files_of(generic) if self.generic else files

    def __getitem__(self, key: tuple[int, int, int]) -> dict[str, Any]:
        step, position, row = key
        if row < 0 and self.generic:
            return {"generic": self.generic[step, position, ~row]["image"]}
        drawn = np.random.SeedSequence([*self.seed, step, position]).generate_state(3).tolist()
        view_CHW, size = self._view(row, drawn[0], drawn[1])
        if self.augment.config.mixup:
            view_CHW = self._blended(view_CHW, drawn[2])
        shape = torch.tensor(image_shape(*size))
        sample = {"image": view_CHW, "shape": shape, "label": int(self.labels[row]), "row": row}
        if self.captions is not None:
            sample["caption"] = self.captions[row]
        return sample

    def _view(
        self, row: int, seed_of_part: int, seed_of_pixels: int
    ) -> tuple[Tensor, tuple[int, int]]:
        """Return a view (3, S, S) uint8, and the height and width in pixels of the whole image."""
        part_of, file = partial(self.augment.part, seed_of_part), self.root / self.paths[row]
        decoded = partial(open_part, file, part_of, self._enough, self.decode)
        part_HWC, size = with_retries(decoded)
        part_HWC = self.augment.at_full_size(part_HWC, seed_of_pixels)
        resized_HWC = self.preprocess.resized_in_8_bits(as_batch(part_HWC))[0].permute(1, 2, 0)
        view_HWC = self.augment(resized_HWC.contiguous().numpy(), seed_of_pixels)
        planes_CHW = np.empty((3, *view_HWC.shape[:2]), np.uint8)
        cv2.split(view_HWC, list(planes_CHW))  # ten times as fast as a strided copy
        return self.preprocess.padded(torch.from_numpy(planes_CHW)[None])[0], size

    def _blended(self, view_CHW: Tensor, seed: int) -> Tensor:
        """Return the view, or its blend with a view of any row: see `AugmentConfig.mixup`."""
        draw = random.Random(seed)
        if draw.random() >= self.augment.config.mixup:
            return view_CHW
        row, part, pixels = draw.randrange(len(self)), draw.getrandbits(32), draw.getrandbits(32)
        other_CHW, _ = self._view(row, part, pixels)
        return torch.lerp(view_CHW.float(), other_CHW.float(), draw.random()).round().byte()

    def _enough(self, height: int, width: int) -> bool:
        if self.augment.config.full_size:
            return False  # full-size distortions need every pixel
        return self.preprocess.shrinks(int(height / DECODE_MARGIN), int(width / DECODE_MARGIN))


class Samples(Dataset[Any]):
    """A data set of known size."""

    def __len__(self) -> int:
        raise NotImplementedError


class Crop(Iterable[float], Protocol):
    """A box in an image: `Box` in pixels, or `guie.data.regions.Region` in shares."""

    def corners(self, size_px: tuple[int, int]) -> tuple[int, int, int, int]: ...


class EvalDataset(Samples):
    """Images decoded whole, with the preprocessing that is exported.

    Attributes: `differs_N`, the number in DIFFERENCES of each image that was opened, shared with loaders.

    Args:
        boxes: crop box of each image, None for the whole image. Crops of a file that follow one another
            decode it once.
    """

    def __init__(
        self,
        files: Sequence[str | Path],
        preprocess: Callable[[Tensor], Tensor],
        boxes: Sequence[Crop | None] | None = None,
        decode: Decode = "seen",
    ):
        self.files = StringColumn(map(str, files))
        self.preprocess, self.boxes, self.decode = preprocess, boxes, decode
        self.differs_N = torch.zeros(len(files), dtype=torch.uint8).share_memory_()
        self._last: tuple[str, Image.Image] | None = None

    def __len__(self) -> int:
        return len(self.files)

    def files_of(self, keys: Sequence[int]) -> list[str]:
        return [self.files[index] for index in keys]

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Return the network input (3, S, S), and `image_shape` (3,) of the original image or box."""
        return self.prepared(self.pixels(index))

    def pixels(self, index: int) -> np.ndarray:
        """Return an image or its box: uint8 (H, W, 3)."""
        file, box = self.files[index], self.boxes[index] if self.boxes else None
        if box is None or self._last is None or self._last[0] != file:
            self._last = file, with_retries(partial(DECODERS[self.decode], Path(file)))
        image = self._last[1]
        self.differs_N[index] = DIFFERENCES.index(difference(image))
        if box is None:
            return np.asarray(image)
        scale = image.width / whole_px(image)[0]
        left, top, right, bottom = (round(scale * n) for n in box.corners(whole_px(image)))
        return np.asarray(image.crop((left, top, max(right, left + 1), max(bottom, top + 1))))

    def prepared(self, image_HWC: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return what `__getitem__` returns for a decoded image."""
        image_1CHW = as_batch(image_HWC)
        return self.preprocess(image_1CHW)[0], image_shapes(image_1CHW)[0]


def as_batch(image_HWC: np.ndarray) -> Tensor:
    """Return a uint8 image (H, W, 3) as the tensor (1, 3, H, W) that the scorer gives the model."""
    if not image_HWC.flags.writeable:  # torch warns about Pillow's read-only buffer
        image_HWC = image_HWC.copy()
    return torch.from_numpy(image_HWC).permute(2, 0, 1)[None]


def training_rows(manifest: Manifest, domains: Iterable[str] | None = None) -> pd.DataFrame:
    """Return the training rows, optionally of the named domains only. Raises UserError."""
    rows = manifest.split("train")
    several = rows["label"].str.contains("|", regex=False)
    if several.any():
        first = rows.loc[several, "image_path"].iloc[0]
        fault = f"{several.sum()} training images have several labels, first {first}"
        raise UserError(f"{manifest.path}: {fault}; training needs one label per image")
    if domains is None:
        return rows
    known = sorted(rows["domain"].unique())
    if unknown := ", ".join(sorted(set(domains) - set(known))):
        found = f"known: {', '.join(known)}, which have training images"
        raise UserError(f"stages: unknown domains {unknown}; {found}")
    return rows_where(rows, rows["domain"].isin(domains))


def distinct_rows(stages: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Concatenate the training rows of stages; an image that several stages use occurs once.

    An image has one row in train, and a stage uses whole domains.
    """
    seen: set[str] = set()
    parts = []
    for rows in stages:
        domains = set(rows["domain"].unique())
        if new := domains - seen:
            parts.append(rows_where(rows, rows["domain"].isin(new)))
        seen |= domains
    return parts[0] if len(parts) == 1 else pd.concat(parts, ignore_index=True)


@dataclass(frozen=True)
class Classes:
    """The training classes in the order of their ids: sorted, so that each domain is contiguous."""

    labels: list[str]
    sizes: list[int]  # training images per class
    domains: list[str]

    def __len__(self) -> int:
        return len(self.labels)


def classes_of(rows: pd.DataFrame) -> Classes:
    """Return the classes of training rows, one row an image; see `distinct_rows`."""
    class_N, labels = StringColumn(rows["label"]).encoded()
    newest_N = np.maximum.accumulate(class_N)
    first_C = np.append(0, np.flatnonzero(newest_N[1:] > newest_N[:-1]) + 1)
    order = sorted(range(len(labels)), key=labels.__getitem__)
    domains = rows["domain"].iloc[first_C[order]].tolist()
    return Classes(sorted(labels), np.bincount(class_N)[order].tolist(), domains)


def rows_hash(stages: Sequence[pd.DataFrame]) -> str:
    """Return a hash of the training data of stages: images, labels, domains and weights, in order."""
    columns = ["image_path", "label", "domain"]
    columns += ["weight"] if any("weight" in rows for rows in stages) else []
    digest, hashes = hashlib.sha256(), dict[int, bytes]()
    for rows in stages:
        if id(rows) not in hashes:  # most stages train on all rows
            whole = rows.reindex(columns=columns)
            parts = [
                pd.util.hash_pandas_object(
                    whole[first : first + HASHED_ROWS], index=False, categorize=False
                )
                for first in range(0, len(rows), HASHED_ROWS)
            ]
            hashes[id(rows)] = np.concatenate(parts).tobytes() if parts else b""
        digest.update(hashes[id(rows)])
    return digest.hexdigest()[:16]
