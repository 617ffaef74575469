"""Measure one call of a model: operations, memory and rate."""

from __future__ import annotations

import ctypes
import os
import time
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

RATE_SECONDS = 0.1


class FlopCounter(TorchDispatchMode):
    """Count operations like PyTorch's counter, also in TorchScript modules.

    It counts matrix products, convolutions and attention, a multiply-add as two. PyTorch's counter
    imports the compiler first, which takes as long as importing torch itself.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Newer versions would import the compiler in order to exclude it here.
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run and count an operator; PyTorch calls this for each."""
        found = func(*args, **(kwargs or {}))
        if count := flop_registry.get(func._overloadpacket):
            self.total += count(*args, **(kwargs or {}), out_val=found)
        return found


def flops(module: torch.jit.ScriptModule, image_1CHW: torch.Tensor) -> int:
    """Return the operations of one call; 0 if the counter fails on an operator."""
    try:
        with FlopCounter() as counter:
            module(image_1CHW)
    except Exception:  # of the counter; the model itself works without it
        return 0
    return counter.total


class Memory:
    """Memory of this process; on the CPU from the kernel's counters.

    Create it before the process gives up file system access.
    """

    def __init__(self) -> None:
        self.clear_refs = _opened("/proc/self/clear_refs", os.O_WRONLY)
        self.status = _opened("/proc/self/status", os.O_RDONLY)

    def begin(self, device: torch.device) -> int:
        """Reset the peak, and return the bytes in use."""
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            return torch.cuda.memory_allocated(device)
        if self.clear_refs is not None:
            ctypes.CDLL(None).malloc_trim(0)  # freed memory must not hide new allocations
            os.write(self.clear_refs, b"5")
        return self.of("VmRSS")

    def end(self, device: torch.device) -> int:
        """Return the peak bytes since `begin`."""
        if device.type == "cuda":
            return torch.cuda.max_memory_allocated(device)
        return self.of("VmHWM")

    def of(self, name: str) -> int:
        """Return the bytes of a line of /proc/self/status; 0 if absent."""
        if self.status is None:
            return 0
        lines = os.pread(self.status, 2**16, 0).decode().splitlines()
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), 0)


def _opened(path: str, how: int) -> int | None:
    try:
        return os.open(path, how)
    except OSError:
        return None


def matmul_rate(device: torch.device) -> float:
    """Measure operations per second in a matrix product of a transformer's size."""
    a = torch.randn(256, 1024, device=device)
    b = torch.randn(1024, 1024, device=device)
    float((a @ b)[0, 0])
    began, turns = time.perf_counter(), 0
    while time.perf_counter() - began < RATE_SECONDS:
        float((a @ b)[0, 0])
        turns += 1
    return turns * 2 * 256 * 1024 * 1024 / (time.perf_counter() - began)
