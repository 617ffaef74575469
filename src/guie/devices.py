"""The Accelerator, with all of the machine's cores where it trains on the CPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs, broadcast_object_list

from guie.errors import UserError

T = TypeVar("T")
# The others wait while the main process opens every image of a new data set.
PATIENCE = timedelta(hours=3)


def make_accelerator(**settings: Any) -> Accelerator:
    """An Accelerator as configured.

    `accelerate launch` starts CPU processes with OMP_NUM_THREADS=1, which halves the speed of a
    machine of two cores and does worse to a larger one. And without a GPU, accelerate must be told
    that several processes are meant, or each trains on its own without a word.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not torch.cuda.is_available():
        settings["cpu"] = True
    patient = InitProcessGroupKwargs(timeout=PATIENCE)
    accelerator = Accelerator(kwargs_handlers=[patient], **settings)
    launched = "ACCELERATE_MIXED_PRECISION" in os.environ
    if accelerator.device.type == "cpu" and launched and os.environ.get("OMP_NUM_THREADS") == "1":
        processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // processes))
    return accelerator


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
    made, error = broadcast_object_list(result)
    if error:
        raise error if accelerator.is_main_process else SystemExit(2)
    return made
