"""The Accelerator, with all of the machine's cores where it trains on the CPU."""

from __future__ import annotations

import os
from typing import Any

import torch
from accelerate import Accelerator


def make_accelerator(**settings: Any) -> Accelerator:
    """An Accelerator as configured.

    `accelerate launch` starts CPU processes with OMP_NUM_THREADS=1, which halves the speed of a
    machine of two cores and does worse to a larger one. And without a GPU, accelerate must be told
    that several processes are meant, or each trains on its own without a word.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not torch.cuda.is_available():
        settings["cpu"] = True
    accelerator = Accelerator(**settings)
    launched = "ACCELERATE_MIXED_PRECISION" in os.environ
    if accelerator.device.type == "cpu" and launched and os.environ.get("OMP_NUM_THREADS") == "1":
        processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // processes))
    return accelerator
