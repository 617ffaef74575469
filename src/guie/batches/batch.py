"""What a step trains on.

Shapes: B images, C channels, H height, W width, F features, G generic images, T teachers' dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from guie.model.preprocess import Preprocess


@dataclass(frozen=True)
class Batch:
    """The share of one process in a global batch, or a micro-batch of it.

    Attributes:
        label_B: class ids.
        row_B: rows of the stage's training table.
        shapes_B3: `image_shape` of the images as they came.
        images_BCHW: as the network takes them; of a loader's workers, uint8 and not normalised.
            None where features stand in for them.
        feat_BF: features of a frozen backbone.
        teacher_BT: what teachers made of the images beforehand, side by side.
        captions: one an image, where the manifest has them.
        generic_GCHW: images that the backbone's features are to be held on; there may be none.
        generic_weight: what a mean over the generic images of a micro-batch counts, so that
            micro-batches weighed by their images make the mean over all.
    """

    label_B: Tensor
    row_B: Tensor
    shapes_B3: Tensor | None = None
    images_BCHW: Tensor | None = None
    feat_BF: Tensor | None = None
    teacher_BT: Tensor | None = None
    captions: Sequence[str] | None = None
    generic_GCHW: Tensor | None = None
    generic_weight: float = 1.0

    def __len__(self) -> int:
        return len(self.label_B)

    def to(self, device: torch.device | str) -> Batch:
        """The same with its tensors on the device."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> Batch:
        """The same in page-locked memory, by which a loader hands it over."""
        return self._each(Tensor.pin_memory)

    def normalised(self, preprocess: Preprocess) -> Batch:
        """The same with uint8 images made the network's input."""
        images: dict[str, Any] = {
            name: preprocess.normalised(value)
            for name in ("images_BCHW", "generic_GCHW")
            if (value := getattr(self, name)) is not None
        }
        return replace(self, **images)

    def split(self, pieces: int) -> Iterator[Batch]:
        """`pieces` micro-batches of nearly equal size, none empty but of generic images."""
        pieces = min(pieces, len(self))
        for number in range(pieces):
            yield self._piece(number, pieces)

    def _piece(self, number: int, pieces: int) -> Batch:
        def part(values: Any) -> Any:
            return values[len(values) * number // pieces : len(values) * (number + 1) // pieces]

        cut = {
            field.name: part(value)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor | list | tuple)
        }
        piece = replace(self, **cut)
        if self.generic_GCHW is None or piece.generic_GCHW is None:
            return piece
        share = len(piece.generic_GCHW) / len(self.generic_GCHW)
        return replace(piece, generic_weight=share * len(self) / len(piece))

    def _each(self, make: Callable[[Tensor], Tensor]) -> Batch:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        made: dict[str, Any] = {k: make(v) for k, v in values.items() if torch.is_tensor(v)}
        return replace(self, **made)


def collated(samples: Sequence[dict[str, Any]]) -> Batch:
    """A batch of samples of `TrainDataset`; generic ones, which hold nothing else, stand beside."""
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
