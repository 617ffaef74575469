"""Weights that a stage leaves as they are: in one file of the run's folder, for all that need them.

A frozen ViT-H is 2.5 GB, and stands in the best model, the last, and every checkpoint alike. So it
is written once, as `frozen-<hash>.safetensors`, and the others name that file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from guie.base.errors import UserError
from guie.base.files import replacing
from guie.model.embedder import Embedder
from guie.model.weights import state_hash

PATTERN = "frozen-*.safetensors"


def frozen_names(embedder: Embedder) -> set[str]:
    """Names in the embedder's state: parameters that do not train; with all of a backbone's, its buffers.

    A backbone that does not train at all is in eval mode (`train_mode`), so its statistics stand.
    """
    names = {name for name, value in embedder.named_parameters() if not value.requires_grad}
    if not any(value.requires_grad for value in embedder.backbone.tower.parameters()):
        saved_names = set(embedder.state_dict())
        names |= saved_names & {f"backbone.{name}" for name, _ in embedder.backbone.named_buffers()}
    return names


def keep_frozen(folder: Path, state: Mapping[str, Tensor]) -> str | None:
    """Write frozen weights into a run's folder, unless they are there; returns the file's name."""
    if not state:
        return None
    state = {name: state[name].detach().cpu().contiguous() for name in sorted(state)}
    name = _name(state)
    if not (folder / name).exists():
        with replacing(folder / name) as temporary:
            save_file(state, temporary)
    return name


def read_frozen(folder: Path, name: str | None) -> dict[str, Tensor]:
    """What `keep_frozen` wrote. Raises UserError where it is gone or damaged."""
    if name is None:
        return {}
    file = folder / name
    if not file.is_file():
        raise UserError(f"{file}: is missing; weights beside it need it, so copy or move both")
    state = read_tensors(file)
    if name != _name(state):
        raise UserError(
            f"{file}: damaged, its content is not what was written; --overwrite the run"
        )
    return state


def remove_unused(folder: Path, used: Iterable[str | None]) -> None:
    """Remove the frozen weights that no file of a run needs any more."""
    for file in folder.glob(PATTERN):
        if file.name not in set(used):
            file.unlink()


def read_tensors(file: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file."""
    with safe_open(file, framework="pt") as stored:
        return {name: stored.get_tensor(name) for name in sorted(stored.keys())}


def _name(state: Mapping[str, Tensor]) -> str:
    return f"frozen-{state_hash(state)[:16]}.safetensors"
