"""A run's file of weights, and what it says of itself: the image size that they are for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from guie.base.errors import UserError
from guie.base.files import replacing
from guie.config.model import BackboneConfig, ModelConfig
from guie.model.embedder import Embedder
from guie.model.frozen_weights import SHARED, Base, frozen_names, keep_frozen


@dataclass(frozen=True)
class ImageSize:
    """The images that weights are for.

    Attributes: `size_px`, their side; `stride_px`, from one patch to the next, None where patches
    lie side by side.
    """

    size_px: int
    stride_px: int | None = None

    @classmethod
    def from_text(cls, text: str) -> ImageSize:
        """Read `64` or `64/4` (size and stride), as files had it until 2026-11."""
        size_px, _, stride_px = text.partition("/")
        return cls(int(size_px), int(stride_px) if stride_px else None)

    def set_in(self, config: ModelConfig) -> ModelConfig:
        """The config of a model for images of this size."""
        image = config.image.model_copy(update={"size_px": self.size_px})
        backbone = config.backbone.model_copy(update={"stride_px": self.stride_px})
        return config.model_copy(update={"image": image, "backbone": backbone})


@dataclass(frozen=True)
class WeightsMetadata:
    """What stands in a file beside its weights, under the key `guie`, as one JSON object.

    Attributes: `size`, that the weights are for; `frozen`, name of the file in the same folder with
    the weights that did not train.
    """

    size: ImageSize
    frozen: str | None = None

    def as_text(self) -> str:
        return json.dumps(asdict(self.size) | {"frozen": self.frozen})

    @classmethod
    def from_text(cls, text: str) -> WeightsMetadata:
        known = json.loads(text)
        return cls(ImageSize(known["size_px"], known["stride_px"]), known["frozen"])


def save_model(
    embedder: Embedder,
    path: Path,
    size_px: int | None = None,
    pretrained: BackboneConfig | None = None,
) -> None:
    """Write the weights, and the image size and stride they are for, atomically.

    What does not train lies in a file beside it (see `guie.model.frozen_weights`).

    Args:
        size_px: None: the backbone's.
        pretrained: what the backbone began as, which need not be written again.
    """
    backbone, state = embedder.backbone, embedder.state_dict()
    frozen = {name: state.pop(name) for name in frozen_names(embedder)}
    size = ImageSize(size_px or backbone.size_px, backbone.stride_px)
    base = Base(pretrained, size.size_px, size.stride_px) if pretrained else None
    save_weights(state, path, WeightsMetadata(size, keep_frozen(path.parent, frozen, base)))


def save_weights(
    state: Mapping[str, Tensor], path: Path, metadata: WeightsMetadata | None = None
) -> None:
    """Write weights atomically, and what is known of them; what members share is written once."""
    state = {k: v.detach().cpu().contiguous() for k, v in state.items()}
    first: dict[tuple[int, torch.Size], str] = {}
    shared = {
        name: of
        for name, value in state.items()
        if value.numel() and (of := first.setdefault((value.data_ptr(), value.shape), name)) != name
    }
    # One entry: several are written in any order, and the same run would not give the same file.
    entries = {"guie": metadata.as_text()} if metadata else None
    if shared:
        assert not metadata  # of one model, which shares nothing
        entries = {SHARED: json.dumps(shared)}
    with replacing(path) as temporary:
        save_file({k: v for k, v in state.items() if k not in shared}, temporary, metadata=entries)


def read_metadata(path: Path) -> WeightsMetadata | None:
    """What a file of weights says of itself; None where `save_model` did not write it.

    Raises UserError where it is damaged.
    """
    try:
        with safe_open(path, framework="pt") as file:
            entries = file.metadata() or {}
    except SafetensorError as error:
        raise UserError(f"{path}: not whole ({error}); copy it again, or train again") from None
    if "guie" in entries:
        return WeightsMetadata.from_text(entries["guie"])
    if "size_px" in entries:  # written until 2026-11
        return WeightsMetadata(ImageSize.from_text(entries["size_px"]))
    return None
