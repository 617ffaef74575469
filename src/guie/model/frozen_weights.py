"""Weights that a stage leaves as they are: in one file of the run's folder, for all that need them.

A frozen ViT-H is 2.5 GB, and stands in the best model, the last, and every checkpoint alike. So it
is kept once, as `frozen-<hash>.safetensors`, and the others name that file; and where it is what the
pretrained weights are, to the bit, `frozen-<hash>.json` says so in its place.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from guie.base.errors import UserError
from guie.base.files import replacing, write_json
from guie.config.model import BackboneConfig
from guie.model.backbone import build_backbone
from guie.model.embedder import Embedder
from guie.model.weights import is_file, state_hash

PATTERN = f"frozen-{'[0-9a-f]' * 16}.*"
SHARED = "shared"  # key of a file's metadata: name -> the name under which its tensor stands
BACKBONE = "backbone."  # what its names begin with in an embedder


def frozen_names(embedder: Embedder) -> set[str]:
    """Names in the embedder's state: parameters that do not train; with all of a backbone's, its buffers.

    A backbone that does not train at all is in eval mode (`train_mode`), so its statistics stand.
    """
    names = {name for name, value in embedder.named_parameters() if not value.requires_grad}
    if not any(value.requires_grad for value in embedder.backbone.tower.parameters()):
        saved_names = set(embedder.state_dict())
        names |= saved_names & {f"backbone.{name}" for name, _ in embedder.backbone.named_buffers()}
    return names


@dataclass(frozen=True)
class Base:
    """The pretrained backbone that a run began with, for images of a size.

    Attributes: `size_px` and `stride_px` as of `Backbone`.
    """

    config: BackboneConfig
    size_px: int
    stride_px: int | None

    def state(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Its weights by their names in an embedder; those that it has not are left out."""
        config = self.config.model_copy(update={"stride_px": self.stride_px})
        with torch.random.fork_rng(devices=[]):  # a library draws weights before it reads them
            state = build_backbone(config, self.size_px).state_dict()
        wanted = {name: state.get(name.removeprefix(BACKBONE)) for name in names}
        return {name: value for name, value in wanted.items() if value is not None}


def keep_frozen(folder: Path, state: Mapping[str, Tensor], base: Base | None = None) -> str | None:
    """Keep frozen weights in a run's folder, unless they are there; returns the file's name.

    Args:
        base: where they are this one's to the bit, the folder is only told so (see `read_frozen`).
    """
    if not state:
        return None
    state = {name: state[name].detach().cpu().contiguous() for name in sorted(state)}
    name = _name(state)
    if (folder / name).exists() or _told(folder, name).exists():
        return name
    if base and base.config.pretrained and _name(base.state(state)) == name:
        write_json(_told(folder, name), _as_told(base, list(state), folder))
        return name
    with replacing(folder / name) as temporary:
        save_file(state, temporary)
    return name


def read_frozen(folder: Path, name: str | None) -> dict[str, Tensor]:
    """What `keep_frozen` kept: from its file, or from the pretrained weights that it is told of.

    Raises UserError where they are gone, damaged, or no longer what they were.
    """
    if name is None:
        return {}
    file, told = folder / name, _told(folder, name)
    if file.is_file():
        state = read_tensors(file)
        if name != _name(state):
            raise UserError(
                f"{file}: damaged, its content is not what was written; --overwrite the run"
            )
        return state
    if not told.is_file():
        raise UserError(f"{file}: is missing; weights beside it need it, so copy or move both")
    base, names = _of_told(told)
    state = base.state(names)
    if name != _name(state):
        raise UserError(
            f"{folder}: was trained on top of {base.config.pretrained} of {base.config.name}, which"
            " gives other weights now; bring the file back that it was begun with"
        )
    return state


def remove_unused(folder: Path, used: Iterable[str | None]) -> None:
    """Remove the frozen weights that no file of a run needs any more."""
    kept = {name and Path(name).stem for name in used}
    for file in folder.glob(PATTERN):
        if file.stem not in kept:
            file.unlink()


def read_tensors(file: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file; names that share one have it in common."""
    with safe_open(file, framework="pt") as stored:
        state = {name: stored.get_tensor(name) for name in sorted(stored.keys())}
        shared = json.loads((stored.metadata() or {}).get(SHARED, "{}"))
    return state | {name: state[of] for name, of in shared.items()}


def _as_told(base: Base, names: list[str], folder: Path) -> dict[str, Any]:
    told: dict[str, Any] = {"backbone": base.config.model_dump(mode="json"), "names": names}
    told |= {"size_px": base.size_px, "stride_px": base.stride_px}
    pretrained = base.config.pretrained
    if pretrained and is_file(pretrained):  # found from any working directory, or moved together
        told["beside"] = os.path.relpath(pretrained, folder)
    return told


def _of_told(file: Path) -> tuple[Base, list[str]]:
    """The base that a file tells of, and the names of its weights that a run has left as they are."""
    told = json.loads(file.read_text(encoding="utf-8"))
    config = BackboneConfig.model_validate(told["backbone"])
    if "beside" in told and not Path(config.pretrained or "").is_file():
        beside = file.parent / told["beside"]
        if beside.is_file():
            config = config.model_copy(update={"pretrained": str(beside)})
    return Base(config, told["size_px"], told["stride_px"]), told["names"]


def _told(folder: Path, name: str) -> Path:
    return folder / f"{Path(name).stem}.json"


def _name(state: Mapping[str, Tensor]) -> str:
    return f"frozen-{state_hash(state)[:16]}.safetensors"
