"""Send decoded images of any sizes from a loader to a GPU, which resizes and normalises them.

Resizing in float takes a loader longer than decoding; on a GPU it takes next to nothing.

Shapes: N bytes of all images, B images, G images of equal size, L large images.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate, get_worker_info

from guie.data.dataset import EvalDataset, image_shape

# Larger images are resized by the loader, as memory holds many that wait. A photo of 4 megapixels.
LARGE_BYTES = 12_000_000

Prepared = tuple[Tensor, Tensor]  # network input and `image_shape`, like a sample of `EvalDataset`


@dataclass(frozen=True)
class RawBatch:
    """Decoded images, one after another in one tensor: many tensors are slow to send and to copy.

    Attributes:
        pixels_N: uint8, each image as (H, W, 3).
        shapes_B3: `image_shape` of all images.
        sizes: height and width of each image; None for a large one.
        inputs_L: network inputs of the large images, in order; None if there are none.
    """

    pixels_N: Tensor
    shapes_B3: Tensor
    sizes: Sequence[tuple[int, int] | None]
    inputs_L: Tensor | None

    def to(self, device: torch.device) -> RawBatch:
        """Return the batch with its tensors on the device; the CPU does not wait for the GPU's work."""
        move = partial(Tensor.to, device=device, non_blocking=True)
        large = None if self.inputs_L is None else move(self.inputs_L)
        return replace(
            self, pixels_N=move(self.pixels_N), shapes_B3=move(self.shapes_B3), inputs_L=large
        )

    def prepared(self, preprocess: Callable[[Tensor], Tensor]) -> Prepared:
        """Return network inputs and shapes (B, 3) in order, like a batch of `EvalDataset`.

        Images of equal size are resized together, which changes no bit of the result on a CPU.
        """
        rows: list[Tensor | None] = [None] * len(self.sizes)
        equal: dict[tuple[int, int], list[tuple[int, Tensor]]] = defaultdict(list)
        start = 0
        for place, size in enumerate(self.sizes):
            if size:
                stop = start + 3 * size[0] * size[1]
                equal[size].append((place, self.pixels_N[start:stop].view(*size, 3)))
                start = stop
        for pairs in equal.values():
            places, images = zip(*pairs, strict=True)
            images_GHWC = torch.stack(images) if len(images) > 1 else images[0][None]
            inputs = preprocess(images_GHWC.permute(0, 3, 1, 2))
            for place, one in zip(places, inputs.unbind(), strict=True):
                rows[place] = one
        large = iter(() if self.inputs_L is None else self.inputs_L.unbind())
        return torch.stack([next(large) if row is None else row for row in rows]), self.shapes_B3


class RawImages(Dataset):
    """The images of an `EvalDataset` before preprocessing; a large one after it."""

    def __init__(self, dataset: EvalDataset):
        self.dataset, self.files_of = dataset, dataset.files_of

    def __getitem__(self, index: int) -> np.ndarray | Prepared:
        """Return uint8 (H, W, 3), or the result of `EvalDataset`."""
        image_HWC = self.dataset.pixels(index)
        return self.dataset.prepared(image_HWC) if image_HWC.nbytes > LARGE_BYTES else image_HWC


def packed(samples: Sequence[np.ndarray | Prepared]) -> RawBatch:
    """Collate samples of `RawImages`."""
    large = [sample for sample in samples if isinstance(sample, tuple)]
    raw = [sample for sample in samples if isinstance(sample, np.ndarray)]
    pixels_N = _empty(sum(image.nbytes for image in raw))
    start = 0
    for image in raw:
        stop = start + image.nbytes
        pixels_N.numpy()[start:stop] = image.reshape(-1)
        start = stop
    shapes = [
        sample[1] if isinstance(sample, tuple) else torch.tensor(image_shape(*sample.shape[:2]))
        for sample in samples
    ]
    return RawBatch(
        pixels_N,
        torch.stack(shapes),
        [None if isinstance(one, tuple) else (one.shape[0], one.shape[1]) for one in samples],
        default_collate([inputs for inputs, _ in large]) if large else None,
    )


def _empty(size: int) -> Tensor:
    """Return memory for N bytes; in a loader process shared, which saves a copy when it is sent."""
    if get_worker_info() is None:
        return torch.empty(size, dtype=torch.uint8)
    shared = torch.UntypedStorage._new_shared(size)  # as `default_collate` does
    return torch.empty(0, dtype=torch.uint8).set_(shared)
