"""Weight files of a run: its best or last weights, and a separate file for frozen weights."""

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

CLASS_WEIGHT = "weight_CkT"  # class weights of a run, k centres each
PATTERN = f"frozen-{'[0-9a-f]' * 16}.*"  # files of frozen weights
SHARED = "shared"  # key of a file's metadata: name -> the name under which its tensor is stored
BACKBONE = "backbone."  # prefix of its names in an embedder


@dataclass(frozen=True)
class ImageSize:
    """The image size that weights were trained for: the side, and the stride of overlapping patches."""

    size_px: int
    stride_px: int | None = None

    def set_in(self, config: ModelConfig) -> ModelConfig:
        """Return the model config with this image size."""
        image = config.image.model_copy(update={"size_px": self.size_px})
        backbone = config.backbone.model_copy(update={"stride_px": self.stride_px})
        return config.model_copy(update={"image": image, "backbone": backbone})


@dataclass(frozen=True)
class WeightsMetadata(ImageSize):
    """Metadata of a weights file: one JSON object under the key `guie`."""

    frozen: str | None = None  # name of the file in the same folder that holds the frozen weights


def save_model(
    embedder: Embedder,
    path: Path,
    pretrained: BackboneConfig | None = None,
    frozen_file: str | None = None,
) -> None:
    """Write the weights, with the backbone's image size and stride, atomically.

    Frozen weights go to a separate file in the same folder, by `keep_frozen`, unless that has run.
    """
    state, backbone = embedder.state_dict(), embedder.backbone
    size = ImageSize(backbone.size_px, backbone.stride_px)
    frozen = {name: state.pop(name) for name in frozen_names(embedder)}
    kept = frozen_file or keep_frozen(path.parent, frozen, pretrained, size)
    save_weights(state, path, WeightsMetadata(size.size_px, size.stride_px, kept))


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
    entries = {"guie": json.dumps(asdict(metadata))} if metadata else None
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
    return WeightsMetadata(known["size_px"], known["stride_px"], known["frozen"])


def frozen_names(embedder: Embedder) -> list[str]:
    """Return the names of frozen parameters in the embedder's state, in its order.

    Of a frozen backbone also its buffers: they do not change, but for those that `batch_norm` trains.
    FSDP gathers them one by one, so the order is the same in all processes.
    """
    names = {name for name, value in embedder.named_parameters() if not value.requires_grad}
    backbone = embedder.backbone
    if not any(value.requires_grad for value in backbone.tower.parameters()):
        names |= {f"{BACKBONE}{name}" for name, _ in backbone.named_buffers()}
        for layer, norm in backbone.trained_batch_norms().items():
            names -= {f"{BACKBONE}tower.{layer}.{name}" for name, _ in norm.named_buffers()}
    return [name for name in embedder.state_dict() if name in names]


def pretrained_state(
    config: BackboneConfig, size: ImageSize, names: Iterable[str]
) -> dict[str, Tensor]:
    """Return a pretrained backbone's weights by their names in an embedder; unknown names are left out."""
    config = config.model_copy(update={"stride_px": size.stride_px})
    with torch.random.fork_rng(devices=[]):  # the library draws weights before it reads them
        state = build_backbone(config, size.size_px).state_dict()
    own = {f"{BACKBONE}{name}": value for name, value in state.items()}
    return {name: own[name] for name in names if name in own}


def keep_frozen(
    folder: Path,
    state: Mapping[str, Tensor],
    pretrained: BackboneConfig | None = None,
    size: ImageSize | None = None,
) -> str | None:
    """Write frozen weights into a run's folder, unless they are there; return the file's name.

    If they are bit-identical to the pretrained backbone's at this size, only a reference to it is written.
    """
    if not state:
        return None
    state = {name: state[name].detach().cpu().contiguous() for name in sorted(state)}
    name = _name(state)
    reference = folder / Path(name).with_suffix(".json")
    if (folder / name).exists() or reference.exists():
        return name
    if pretrained and size and pretrained.pretrained:
        if _name(pretrained_state(pretrained, size, state)) == name:
            known: dict[str, Any] = {"backbone": pretrained.model_dump(mode="json")}
            known |= {"names": list(state), **asdict(size)}
            if pretrained.file:  # found from any working directory, or moved together
                known["beside"] = os.path.relpath(pretrained.file, folder)
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
    state = pretrained_state(
        config, ImageSize(known["size_px"], known["stride_px"]), known["names"]
    )
    if name != _name(state):
        raise UserError(
            f"{folder}: was trained from {config.file or config.tag} of {config.name}, whose"
            " weights have changed; restore the original file"
        )
    return state


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
