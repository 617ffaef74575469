"""Create the Accelerator; CPU training uses all cores."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from typing import Any, TypeVar

import torch
from accelerate import Accelerator, PartialState
from accelerate.state import AcceleratorState, is_initialized
from accelerate.utils import (
    DistributedDataParallelKwargs,
    DistributedType,
    FullyShardedDataParallelPlugin,
    GradientAccumulationPlugin,
    InitProcessGroupKwargs,
    TorchDynamoPlugin,
    broadcast_object_list,
)
from torch import distributed

from guie.base.errors import UserError
from guie.base.processes import usable_cores

T = TypeVar("T")
# Other processes wait while the main process opens every image of a new data set.
PATIENCE = timedelta(hours=3)
OTHER_ENGINES = ("DEEPSPEED", "MEGATRON_LM", "PARALLELISM_CONFIG")
PRECISION = "ACCELERATE_MIXED_PRECISION"  # set by `accelerate launch`
# What accelerate would obey, and the values that ask for nothing
NOT_OBEYED = {
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": ("1",),
    "ACCELERATE_DYNAMO_BACKEND": ("no",),
}


def make_accelerator(**settings: Any) -> Accelerator:
    """Return an Accelerator with the given settings.

    `accelerate launch` starts CPU processes with OMP_NUM_THREADS=1, which halves the speed on two
    cores and costs more on larger machines; this is undone. Without a GPU, accelerate needs `cpu=True`
    for several processes, or each silently trains alone. The precision of an earlier Accelerator of
    this process, for example in curation, is reset. accelerate's variables for gradient accumulation and
    compilation are not obeyed, because the config decides them.

    Raises UserError if the environment demands an engine other than DDP and FSDP.
    """
    for name in (f"ACCELERATE_USE_{engine}" for engine in OTHER_ENGINES):
        if os.environ.get(name, "false").lower() in ("true", "1"):
            raise UserError(f"{name} is set, and only DDP and FSDP are supported; unset it")
    precision = settings.get("mixed_precision") or os.environ.get(PRECISION, "no")
    ignored = NOT_OBEYED | ({PRECISION: ("no", precision)} if "mixed_precision" in settings else {})
    if is_initialized() and AcceleratorState().mixed_precision != precision:
        AcceleratorState._reset_state()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not torch.cuda.is_available():
        settings["cpu"] = True
    sharding = _sharding()
    patient = InitProcessGroupKwargs(timeout=PATIENCE)
    # Without a second copy of the gradients
    views = DistributedDataParallelKwargs(gradient_as_bucket_view=True)
    accelerator = Accelerator(
        kwargs_handlers=[patient, views],
        fsdp_plugin=sharding,
        gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1),
        dynamo_plugin=TorchDynamoPlugin(backend="NO"),
        **settings,
    )
    for name, plain in ignored.items():
        if (value := os.environ.get(name, "").lower()) and value not in plain:
            accelerator.print(f"{name}={value} is not obeyed: the config decides", file=sys.stderr)
    if sharding and accelerator.distributed_type == DistributedType.MULTI_CPU:
        # By default accelerate shards on GPUs only, and silently replicates on CPUs.
        accelerator.state.fsdp_plugin = sharding
        for state in (PartialState(), accelerator.state):
            state.distributed_type = DistributedType.FSDP
    launched = PRECISION in os.environ
    if accelerator.device.type == "cpu" and launched and os.environ.get("OMP_NUM_THREADS") == "1":
        processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        torch.set_num_threads(max(1, usable_cores() // processes))
    return accelerator


@contextmanager
def deterministic_algorithms(precision: str) -> Iterator[None]:
    """Context in which CUDA computes the same bits each time, where its operators can.

    Enter it before anything runs on a GPU: cuBLAS reads its workspace's size as it starts.

    Args:
        precision: of autocast; with `no`, TensorFloat-32 is off too.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    algorithms = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    before = cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32
    torch.use_deterministic_algorithms(True, warn_only=True)
    cudnn.deterministic, cudnn.benchmark = True, False
    if precision == "no":
        cudnn.allow_tf32 = matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(algorithms, warn_only=warn_only)
        cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32 = before


def _sharding() -> FullyShardedDataParallelPlugin | None:
    """Return the FSDP plugin that `accelerate launch --use_fsdp` requests; None without it."""
    if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() != "true":
        return None
    if os.environ.get("FSDP_VERSION") != "2":
        raise UserError("FSDP: only version 2 is supported; add --fsdp_version 2")
    from torch.distributed.fsdp import MixedPrecisionPolicy  # takes a second, and is seldom needed

    return FullyShardedDataParallelPlugin(
        # Weights stay fp32 and autocast chooses per operation, as without sharding. By default
        # accelerate casts all weights, including class weights. `Shards` casts those of blocks.
        mixed_precision_policy=MixedPrecisionPolicy(),
        # The launcher's default is for transformers models only and fails with buffers.
        cpu_ram_efficient_loading=False,
    )


def cpu_group() -> distributed.ProcessGroup | None:
    """Return the group in which processes exchange tensors on the CPU; None: the default one can.

    It does not wait for queued work of the GPU. The first call creates it, in all processes together.
    """
    return _cpu_group(distributed.group.WORLD)


@lru_cache(maxsize=1)
def _cpu_group(default: distributed.ProcessGroup) -> distributed.ProcessGroup | None:
    if "gloo" in distributed.get_backend(default):
        return None
    group = distributed.new_group(backend="gloo")
    assert isinstance(group, distributed.ProcessGroup)  # every process is a member
    return group


def from_main(accelerator: Accelerator, make: Callable[[], T]) -> T:
    """Run `make` in the main process and return its result in every process.

    The main process raises its UserError; the others exit silently instead of waiting forever.
    """
    result: list[Any] = [None, None]
    if accelerator.is_main_process:
        try:
            result = [make(), None]
        except UserError as error:
            result = [None, error]
    made, fault = broadcast_object_list(result)
    if fault:
        raise fault if accelerator.is_main_process else SystemExit(2)
    return made
