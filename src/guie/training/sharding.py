"""Fully sharded training (FSDP): shard the task, and gather its state."""

import copy
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from guie.base.errors import UserError
from guie.config.training import RunConfig
from guie.models.backbones.base import Backbone
from guie.training.checkpoint import map_tensors
from guie.training.tasks.base import Task


def is_sharded(accelerator: Accelerator) -> bool:
    """Whether the run was started with `--use_fsdp`."""
    return accelerator.distributed_type == DistributedType.FSDP


def refuse_unshardable(accelerator: Accelerator, config: RunConfig) -> None:
    """Raise UserError for settings that these processes, or the shards of FSDP, do not support."""
    modes = {mode for stage in config.stages for mode in stage.batch_norm_modes}
    several = accelerator.num_processes > 1
    if "synced" in modes and several and accelerator.device.type == "cpu":
        fault = "batch_norm: synced: torch.nn.SyncBatchNorm needs GPUs"
        raise UserError(f"{fault}; set it to train, or use one process")
    if not is_sharded(accelerator):
        return
    if config.channels_last:
        raise UserError("channels_last: FSDP shards contiguous weights only; set it to false")
    if any(stage.clip_grad_value for stage in config.stages):
        raise UserError("clip_grad_value: not supported under FSDP; use clip_grad_norm")
    if "train" in modes:
        raise UserError(
            "batch_norm: train: processes under FSDP would keep different statistics; set it to synced,"
            " or train without --use_fsdp"
        )
    if config.retention and config.retention.weights:
        raise UserError(
            "retention.weights: needs unsharded weights, which no process has under FSDP; set it to 0,"
            " or train without --use_fsdp"
        )


class Shards:
    """Shard and gather the task and its weight average; without FSDP it does nothing.

    The given task is unsharded. Raises UserError if it has parameters that cannot be sharded.
    """

    def __init__(self, accelerator: Accelerator, task: Task):
        self.accelerator, self.frame = accelerator, None
        if not is_sharded(accelerator):
            return
        named = dict(task.named_parameters())
        if scalars := [name for name, parameter in named.items() if not parameter.dim()]:
            raise UserError(
                f"FSDP cannot shard scalar parameters: {', '.join(scalars)}; train without --use_fsdp"
            )
        # A copy of the task whose parameters are on the meta device and use no memory
        hollow = {id(p): nn.Parameter(p.to("meta"), p.requires_grad) for p in named.values()}
        self.frame = copy.deepcopy(task, hollow)

    def prepare(self, task: Task, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """Return the task as wrapped by accelerate, here sharded in place, and its optimiser."""
        if self.frame is None:
            return self.accelerator.prepare(task, optimizer)
        names = {parameter: name for name, parameter in task.named_parameters()}
        groups = [[names[p] for p in group["params"]] for group in optimizer.param_groups]
        self.shard(task)
        _set_parameters(optimizer, task, groups)
        model, optimizer = self.accelerator.prepare(task, optimizer)
        # accelerate finds them by address, which empty shards have in common
        _set_parameters(optimizer, task, groups)
        return model, optimizer

    def shard(self, module: Task) -> None:
        """Shard a task in place: class weights for good, blocks and the rest until a pass needs them.

        With bf16 the weights of the backbone's blocks are sent as bf16: half as much. There autocast
        casts matrices to bf16 anyway. Inputs, the gradients' sums, and weights outside of blocks stay fp32.
        """
        if self.frame is None:
            return
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        plugin = self.accelerator.state.fsdp_plugin
        mesh = init_device_mesh(self.accelerator.device.type, (self.accelerator.num_processes,))
        of_blocks = plugin.mixed_precision_policy
        if self.accelerator.mixed_precision == "bf16":
            of_blocks = MixedPrecisionPolicy(
                torch.bfloat16, torch.float32, cast_forward_inputs=False
            )
        settings = {"mesh": mesh, "offload_policy": plugin.cpu_offload}
        rows = [criterion.split(mesh) for criterion in module.split_criteria()]
        for block in _blocks(module):
            again = plugin.reshard_after_forward
            fully_shard(block, mp_policy=of_blocks, reshard_after_forward=again, **settings)
        policy = plugin.mixed_precision_policy
        fully_shard(module, mp_policy=policy, ignored_params=set().union(*rows), **settings)

    def whole(self, module: Task) -> Task:
        """Return the unsharded task with the module's weights, on this device; all processes call it.

        Forward passes of shards wait for each other; those of the unsharded task do not.
        """
        if self.frame is None:
            return module
        task = copy.deepcopy(self.frame)
        state = map_tensors(lambda t: _full(t, self.accelerator.device), module.state_dict())
        task.load_state_dict(state, assign=True)
        return task.train(module.training)


def gathered(accelerator: Accelerator, state: Any) -> Any:
    """Gather a nested sharded state on the CPU of the main process; all processes call it.

    A state that is not sharded is returned as it is.

    The other processes return it without tensors, so they never hold the whole state for long.
    """
    if not is_sharded(accelerator):
        return state

    def take(tensor: Tensor) -> Tensor | None:
        full = _full(tensor, torch.device("cpu"))
        return full if accelerator.is_main_process else None

    return map_tensors(take, state)


def load_optimizer(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Load an unsharded state dict; each process takes its own shard.

    The kernel stays that of this device, if the state is from another.
    """
    owners = [p for group in optimizer.param_groups for p in group["params"]]
    shards = {n: _sharded(owners[n], values) for n, values in state["state"].items()}
    pairs = zip(state["param_groups"], optimizer.param_groups, strict=True)
    groups = [{**saved, "fused": own.get("fused")} for saved, own in pairs]
    optimizer.load_state_dict({**state, "state": shards, "param_groups": groups})


def optimizer_state(optimizer: Optimizer, task: nn.Module) -> dict[str, dict[str, Any]]:
    """Return the unsharded state of each parameter by its name; all processes call it."""
    states = ((name, optimizer.state.get(p)) for name, p in task.named_parameters())
    state = {name: values for name, values in states if values}
    return map_tensors(lambda tensor: _full(tensor, tensor.device), state)


def continue_optimizer(
    optimizer: Optimizer, task: nn.Module, state: dict[str, dict[str, Any]]
) -> None:
    """Load what `optimizer_state` returned for a task with these parameters; rates and decays stay."""
    names = {parameter: name for name, parameter in task.named_parameters()}
    owners = [names[p] for group in optimizer.param_groups for p in group["params"]]
    known = {number: state[name] for number, name in enumerate(owners) if name in state}
    load_optimizer(optimizer, {**optimizer.state_dict(), "state": known})


@torch.no_grad()
def _full(tensor: Tensor, device: torch.device) -> Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).to(device)


def _sharded(owner: Tensor, values: dict[str, Any]) -> dict[str, Any]:
    """Shard an optimiser's state of one parameter; tensors of its shape are sharded as it is."""
    if not isinstance(owner, DTensor):
        return values

    def shard(value: Tensor) -> Tensor:
        if value.shape != owner.shape:
            return value  # a counter
        mesh, placements = owner.device_mesh, owner.placements
        # Every process has read the file, so nothing needs to be sent.
        return distribute_tensor(value.to(owner.device), mesh, placements, src_data_rank=None)

    return map_tensors(shard, values)


def _blocks(module: nn.Module) -> list[nn.Module]:
    """Return the blocks of all backbones; a stage after its blocks, as FSDP wants it."""
    kinds = {type(child) for child in module.modules() if isinstance(child, Backbone)}
    named = reversed(list(module.named_modules()))
    return [child for name, child in named if any(kind.is_block(name) for kind in kinds)]


def _set_parameters(optimizer: Optimizer, task: nn.Module, groups: list[list[str]]) -> None:
    """Let an optimiser have the parameters that the task has by these names now."""
    named = dict(task.named_parameters())
    for group, names in zip(optimizer.param_groups, groups, strict=True):
        group["params"] = [named[name] for name in names]
