"""What is read off a loaded module: its state as a fingerprint, operations, memory, and rate."""

from __future__ import annotations

import ast
import ctypes
import os
import time
import zlib
from contextlib import suppress
from enum import Enum
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

RATE_SECONDS = 0.1
_PLAIN = (type(None), bool, int, float, complex, str, Enum, torch.device, torch.dtype)


def attribute_names(code: list[ast.Module]) -> list[str]:
    """Return all attribute names of all classes in a TorchScript archive, from its source text."""
    found = set()
    scopes = [scope for source in code for scope in ast.walk(source)]
    for line in (
        line for scope in scopes if isinstance(scope, ast.ClassDef) for line in scope.body
    ):
        match line:
            case ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
            # Modules of a list are named 0, 1, ...: `__annotations__["0"] = ...`
            case ast.Assign(targets=[ast.Subscript(slice=ast.Constant(value=str(name)))]):
                found.add(name)
    return sorted(found)


def fingerprint(module: torch.jit.ScriptModule, names: list[str]) -> int:
    """Return the CRC-32 over the values of these attributes anywhere in the module."""
    return _of(module._c, names, 0)


def _of(value: Any, names: list[str], crc: int) -> int:
    if isinstance(value, torch.Tensor):
        return _of_tensor(value, crc)
    if hasattr(value, "hasattr"):  # a module, or an object of a class of the archive
        held = [name for name in names if value.hasattr(name)]
        for name in held:
            crc = _of(value.getattr(name), names, zlib.crc32(name.encode(), crc))
        return crc
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list | tuple):
        crc = zlib.crc32(b"%d" % len(value), crc)
        for part in value:
            crc = _of(part, names, crc)
        return crc
    if isinstance(value, _PLAIN):
        return zlib.crc32(repr(value).encode(), crc)
    # An object: its `repr` may contain an address, which changes.
    for name in (name for name in names if hasattr(value, name)):
        crc = _of(getattr(value, name), names, zlib.crc32(name.encode(), crc))
    return zlib.crc32(type(value).__name__.encode(), crc)


def _of_tensor(tensor: torch.Tensor, crc: int) -> int:
    crc = zlib.crc32(f"{tensor.dtype}{tuple(tensor.shape)}".encode(), crc)
    if tensor.is_quantized or tensor.layout != torch.strided:
        return zlib.crc32(repr(tensor).encode(), crc)
    plain = tensor.detach().cpu().contiguous().reshape(-1)
    return zlib.crc32(plain.view(torch.uint8).numpy().data, crc) if plain.numel() else crc


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
        self.clear_refs: int | None = None
        self.status: int | None = None
        with suppress(OSError):
            self.clear_refs = os.open("/proc/self/clear_refs", os.O_WRONLY)
        with suppress(OSError):
            self.status = os.open("/proc/self/status", os.O_RDONLY)

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
