"""The Accelerator, with all of the machine's cores where it trains on the CPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
from accelerate import Accelerator, PartialState
from accelerate.state import AcceleratorState, is_initialized
from accelerate.utils import (
    DistributedType,
    FullyShardedDataParallelPlugin,
    InitProcessGroupKwargs,
    broadcast_object_list,
)
from torch.distributed.fsdp import MixedPrecisionPolicy

from guie.base.errors import UserError

T = TypeVar("T")
# The others wait while the main process opens every image of a new data set.
PATIENCE = timedelta(hours=3)
PRECISION = "ACCELERATE_MIXED_PRECISION"  # which `accelerate launch` sets


def make_accelerator(**settings: Any) -> Accelerator:
    """An Accelerator as configured.

    `accelerate launch` starts CPU processes with OMP_NUM_THREADS=1, which halves the speed of a
    machine of two cores and does worse to a larger one. And without a GPU, accelerate must be told
    that several processes are meant, or each trains on its own without a word. And one that this
    process made before, for a curation say, must not decide the precision of this one.
    """
    precision = settings.get("mixed_precision") or os.environ.get(PRECISION, "no")
    if is_initialized() and AcceleratorState().mixed_precision != precision:
        AcceleratorState._reset_state()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not torch.cuda.is_available():
        settings["cpu"] = True
    sharding = _sharding()
    patient = InitProcessGroupKwargs(timeout=PATIENCE)
    accelerator = Accelerator(kwargs_handlers=[patient], fsdp_plugin=sharding, **settings)
    if sharding and accelerator.distributed_type == DistributedType.MULTI_CPU:
        # Of itself accelerate shards on GPUs alone, and replicates on CPUs without a word.
        accelerator.state.fsdp_plugin = sharding
        for state in (PartialState(), accelerator.state):
            state.distributed_type = DistributedType.FSDP
    launched = PRECISION in os.environ
    if accelerator.device.type == "cpu" and launched and os.environ.get("OMP_NUM_THREADS") == "1":
        processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // processes))
    return accelerator


def _sharding() -> FullyShardedDataParallelPlugin | None:
    """What `accelerate launch --use_fsdp` asks for, in the environment; None where it does not."""
    if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() != "true":
        return None
    if os.environ.get("FSDP_VERSION") != "2":
        raise UserError("FSDP: of its versions only the second is supported; add --fsdp_version 2")
    return FullyShardedDataParallelPlugin(
        # Weights stay fp32 and autocast chooses by the operation, as without sharding; of itself
        # accelerate casts them all, class weights and norms included.
        mixed_precision_policy=MixedPrecisionPolicy(),
        # The launcher's default, which is for transformers' models alone: buffers break it.
        cpu_ram_efficient_loading=False,
    )


def from_main(accelerator: Accelerator, make: Callable[[], T]) -> T:
    """What `make` returns in the main process, in every process.

    Raises the main process's UserError there, and leaves quietly in the others: they would wait
    for it for ever.
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
