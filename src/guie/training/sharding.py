"""Fully sharded training (FSDP): what is taken apart, and how a process gets the whole again.

Each process holds a part of every parameter, its gradient and its optimiser state. Files never
know: checkpoints and models are written whole, by the main process, and any number of processes,
sharded or not, goes on from them. Zhao et al., PyTorch FSDP, VLDB 2023; this is its second version,
which accelerate sets up.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, fsdp2_prepare_model
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from guie.base.errors import UserError
from guie.config.run import RunConfig

T = TypeVar("T", bound=nn.Module)

# A transformer's block, or a convolutional network's stage, by its name.
BLOCK = re.compile(r"(.*\.)?(blocks|resblocks|layers|stages)\.\d+")


def is_sharded(accelerator: Accelerator) -> bool:
    """Was the run started with `--use_fsdp`?"""
    return accelerator.distributed_type == DistributedType.FSDP


def refuse_unshardable(accelerator: Accelerator, config: RunConfig) -> None:
    """Raise UserError for what a sharded run cannot do."""
    if not is_sharded(accelerator):
        return
    if config.channels_last:
        raise UserError("channels_last: FSDP shards contiguous weights only; set it to false")
    if any(stage.clip_grad_value for stage in config.stages):
        raise UserError("clip_grad_value: accelerate has none under FSDP; take clip_grad_norm")
    if config.retention and config.retention.weights:
        raise UserError(
            "retention.weights: compares whole weights, and under FSDP no process holds them; set it"
            " to 0, or train without --use_fsdp"
        )


class Shards(Generic[T]):
    """Takes the task and its average apart and puts them together; without FSDP it does neither.

    Args:
        task: whole, not yet prepared.

    Raises UserError if it has what cannot be taken apart.
    """

    def __init__(self, accelerator: Accelerator, task: T):
        self.accelerator = accelerator
        self.frame = _without_weights(task) if is_sharded(accelerator) else None
        if self.frame is not None:
            _refuse_scalars(task)
            _name_blocks(task)

    def shard(self, module: nn.Module) -> None:
        """Take apart a module that is not trained, in place."""
        if self.frame is not None:
            _name_blocks(module)
            fsdp2_prepare_model(self.accelerator, module)

    def whole(self, module: T) -> T:
        """The task with the module's weights, on this process's device; all processes call it.

        Forward passes of the shards wait for one another; the whole is free to take other batches.
        """
        if self.frame is None:
            return module
        task = copy.deepcopy(self.frame)
        state = map_tensors(lambda t: _full(t, self.accelerator.device), module.state_dict())
        task.load_state_dict(state, assign=True)
        return task.train(module.training)


def gathered(accelerator: Accelerator, state: Any) -> Any:
    """A nested state on the CPU, whole in the main process; all processes call it.

    What the others return is of no use: they keep no tensor, so none holds the whole for long.
    """
    if not is_sharded(accelerator):
        return state
    keep = accelerator.is_main_process

    def take(tensor: Tensor) -> Tensor | None:
        full = _full(tensor, torch.device("cpu"))
        return full if keep else None

    return map_tensors(take, state)


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load a whole state dict, of which each process takes its part."""
    owners = [p for group in optimizer.param_groups for p in group["params"]]
    parts = {n: _parts(owners[n], values) for n, values in state["state"].items()}
    optimizer.load_state_dict({**state, "state": parts})


def map_tensors(make: Callable[[Tensor], Any], values: Any) -> Any:
    """Nested dicts and lists with `make(tensor)` in the place of every tensor."""
    if isinstance(values, Tensor):
        return make(values)
    if isinstance(values, dict):
        return type(values)((key, map_tensors(make, value)) for key, value in values.items())
    if isinstance(values, list):
        return [map_tensors(make, value) for value in values]
    return values


def local(tensor: Tensor) -> Tensor:
    """This process's part of a sharded tensor, in the same memory; any other as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def _full(tensor: Tensor, device: torch.device) -> Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).to(device)


def _parts(owner: Tensor, values: dict[str, Any]) -> dict[str, Any]:
    """An optimiser's state of one parameter; what has its shape is sharded as it is."""
    if not isinstance(owner, DTensor):
        return values

    def part(value: Tensor) -> Tensor:
        if value.shape != owner.shape:
            return value  # a counter
        mesh, placements = owner.device_mesh, owner.placements
        # Every process has read the file: no need to send anything.
        return distribute_tensor(value.to(owner.device), mesh, placements, src_data_rank=None)

    return map_tensors(part, values)


def _without_weights(task: T) -> T:
    """A copy that has all but the memory of the parameters."""
    hollow = {id(p): nn.Parameter(p.to("meta"), p.requires_grad) for p in task.parameters()}
    return copy.deepcopy(task, hollow)


def _refuse_scalars(task: nn.Module) -> None:
    scalars = [name for name, parameter in task.named_parameters() if not parameter.dim()]
    if scalars:
        raise UserError(
            f"FSDP cannot share out {', '.join(scalars)}, a single number; train without --use_fsdp"
        )


def _name_blocks(module: nn.Module) -> None:
    """Tell accelerate the names of the classes that it gathers one at a time."""
    found = {
        type(child).__name__ for name, child in module.named_modules() if BLOCK.fullmatch(name)
    }
    module._no_split_modules = sorted(found)  # type: ignore[assignment]  # stubs: tensors, modules
