"""Weight files of a run: its best or last weights, and a separate file for frozen weights."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from guie.base.errors import UserError, why_unreadable
from guie.base.files import replacing, write_json
from guie.config.model import BackboneConfig, ModelConfig
from guie.models.backbones import build_backbone
from guie.models.embedder import Embedder
from guie.models.pretrained import state_hash


@dataclass(frozen=True)
class ImageSize:
    """The image size that weights were trained for."""

    size_px: int  # the side
    stride_px: int | None = None  # of patches; None if they do not overlap

    def set_in(self, config: ModelConfig) -> ModelConfig:
        """Return the model config with this image size."""
        image = config.image.model_copy(update={"size_px": self.size_px})
        backbone = config.backbone.model_copy(update={"stride_px": self.stride_px})
        return config.model_copy(update={"image": image, "backbone": backbone})


@dataclass(frozen=True)
class WeightsMetadata:
    """Metadata of a weights file: one JSON object under the key `guie`."""

    size: ImageSize
    frozen: str | None = None  # name of the file in the same folder that holds the frozen weights

    def as_text(self) -> str:
        return json.dumps(asdict(self.size) | {"frozen": self.frozen})


def save_model(
    embedder: Embedder,
    path: Path,
    size_px: int | None = None,
    pretrained: BackboneConfig | None = None,
    frozen_file: str | None = None,
) -> None:
    """Write the weights, with their image size and stride, atomically.

    Frozen weights go to a separate file in the same folder (see `keep_frozen`).

    Args:
        size_px: side of the images; None: the backbone's.
        pretrained: config of the pretrained backbone, whose unchanged weights need not be written again.
        frozen_file: the result of `keep_frozen` for the same frozen weights; None: call it.
    """
    backbone, state = embedder.backbone, embedder.state_dict()
    frozen = {name: state.pop(name) for name in frozen_names(embedder)}
    size = ImageSize(size_px or backbone.size_px, backbone.stride_px)
    base = PretrainedBase(pretrained, size.size_px, size.stride_px) if pretrained else None
    kept = frozen_file or keep_frozen(path.parent, frozen, base)
    save_weights(state, path, WeightsMetadata(size, kept))


def save_weights(
    state: Mapping[str, Tensor], path: Path, metadata: WeightsMetadata | None = None
) -> None:
    """Write weights and metadata atomically; tensors that members share are written once."""
    state = {k: v.detach().cpu().contiguous() for k, v in state.items()}
    first: dict[tuple[int, torch.Size], str] = {}
    shared = {
        name: of
        for name, value in state.items()
        if value.numel() and (of := first.setdefault((value.data_ptr(), value.shape), name)) != name
    }
    # One entry: several would be written in random order, so equal runs would give different files.
    entries = {"guie": metadata.as_text()} if metadata else None
    if shared:
        assert not metadata  # only single models have it, and these share nothing
        entries = {SHARED: json.dumps(shared)}
    with replacing(path) as temporary:
        save_file({k: v for k, v in state.items() if k not in shared}, temporary, metadata=entries)


def read_metadata(path: Path) -> WeightsMetadata | None:
    """Read the metadata of a weights file; None if `save_model` did not write it.

    Raises UserError if the file is damaged.
    """
    if why := why_unreadable(path):  # safetensors calls one that is not ours to read missing
        raise UserError(why)
    try:
        with safe_open(path, framework="pt") as file:
            entries = file.metadata() or {}
    except SafetensorError as error:
        raise UserError(f"{path}: incomplete ({error}); copy it again, or train again") from None
    if "guie" not in entries:
        return None
    known = json.loads(entries["guie"])
    return WeightsMetadata(ImageSize(known["size_px"], known["stride_px"]), known["frozen"])


CLASS_WEIGHT = "weight_CkT"  # class weights of a run, k centres each
PATTERN = f"frozen-{'[0-9a-f]' * 16}.*"
SHARED = "shared"  # key of a file's metadata: name -> the name under which its tensor is stored
BACKBONE = "backbone."  # prefix of its names in an embedder


def frozen_names(embedder: Embedder) -> list[str]:
    """Return the names of frozen parameters in the embedder's state, in its order.

    Of a frozen backbone also its buffers: they do not change, but for those that `batch_norm` trains.
    FSDP gathers them one by one, so the order is the same in all processes.
    """
    names = {name for name, value in embedder.named_parameters() if not value.requires_grad}
    backbone = embedder.backbone
    if not any(value.requires_grad for value in backbone.tower.parameters()):
        moving = {
            f"tower.{layer}.{name}"
            for layer, norm in backbone.trained_batch_norms().items()
            for name, _ in norm.named_buffers()
        }
        still = {name for name, _ in backbone.named_buffers()} - moving
        names |= {f"{BACKBONE}{name}" for name in still}
    return [name for name in embedder.state_dict() if name in names]


@dataclass(frozen=True)
class PretrainedBase:
    """The pretrained backbone that a run started from, at an image size.

    Attributes: `size_px` and `stride_px` as in `Backbone`.
    """

    config: BackboneConfig
    size_px: int
    stride_px: int | None

    def state(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Return its weights by their names in an embedder; unknown names are left out."""
        config = self.config.model_copy(update={"stride_px": self.stride_px})
        with torch.random.fork_rng(devices=[]):  # the library draws weights before it reads them
            state = build_backbone(config, self.size_px).state_dict()
        wanted = {name: state.get(name.removeprefix(BACKBONE)) for name in names}
        return {name: value for name, value in wanted.items() if value is not None}


def keep_frozen(
    folder: Path, state: Mapping[str, Tensor], base: PretrainedBase | None = None
) -> str | None:
    """Write frozen weights into a run's folder, unless they are there; return the file's name.

    Args:
        base: if the weights are bit-identical to this backbone's, only a reference to it is written.
    """
    if not state:
        return None
    state = {name: state[name].detach().cpu().contiguous() for name in sorted(state)}
    name = _name(state)
    reference = folder / Path(name).with_suffix(".json")
    if (folder / name).exists() or reference.exists():
        return name
    if base and base.config.pretrained and _name(base.state(state)) == name:
        known: dict[str, Any] = {"backbone": base.config.model_dump(mode="json")}
        known |= {"names": list(state), "size_px": base.size_px, "stride_px": base.stride_px}
        if pretrained := base.config.file:  # found from any working directory, or moved together
            known["beside"] = os.path.relpath(pretrained, folder)
        write_json(reference, known)
        return name
    with replacing(folder / name) as temporary:
        save_file(state, temporary)
    return name


def read_frozen(folder: Path, name: str | None) -> dict[str, Tensor]:
    """Read what `keep_frozen` wrote: from its file, or from the pretrained weights it refers to.

    Raises UserError if they are missing, damaged, or changed.
    """
    if name is None:
        return {}
    file, reference = folder / name, folder / Path(name).with_suffix(".json")
    if file.is_file():
        state = read_tensors(file)
        if name != _name(state):
            raise UserError(
                f"{file}: damaged, its content does not match its hash; --overwrite the run"
            )
        return state
    if not reference.is_file():
        raise UserError(f"{file}: missing; the weights in this folder need it: copy or move both")
    known = json.loads(reference.read_text(encoding="utf-8"))
    config = BackboneConfig.model_validate(known["backbone"])
    if "beside" in known and not Path(config.file or "").is_file():
        beside = folder / known["beside"]
        config = config.with_file(str(beside)) if beside.is_file() else config
    state = PretrainedBase(config, known["size_px"], known["stride_px"]).state(known["names"])
    if name != _name(state):
        raise UserError(
            f"{folder}: was trained from {config.file or config.tag} of {config.name}, whose"
            " weights have changed; restore the original file"
        )
    return state


def remove_unused(folder: Path, used: Iterable[str | None]) -> None:
    """Remove frozen weights that no file of the run needs any more."""
    kept = {name and Path(name).stem for name in used}
    for file in folder.glob(PATTERN):
        if file.stem not in kept:
            file.unlink()


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Read all tensors of a safetensors file; shared names refer to one tensor."""
    if why := why_unreadable(file):
        raise UserError(why)
    with safe_open(file, framework="pt") as stored:
        state = {name: stored.get_tensor(name) for name in sorted(stored.keys())}
        shared = json.loads((stored.metadata() or {}).get(SHARED, "{}"))
    return state | {name: state[of] for name, of in shared.items()}


def _name(state: Mapping[str, Tensor]) -> str:
    return f"frozen-{state_hash(state)[:16]}.safetensors"
