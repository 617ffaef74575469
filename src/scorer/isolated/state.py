"""Fingerprint a TorchScript module: parameters, buffers and all other attributes."""

from __future__ import annotations

import ast
import zlib
from collections.abc import Iterator
from enum import Enum
from typing import Any

import torch

_PLAIN = (type(None), bool, int, float, complex, str, Enum, torch.device, torch.dtype)


def attribute_names(code: list[ast.Module]) -> list[str]:
    """Return all attribute names of all classes in a TorchScript archive, from its source text."""
    return sorted({name for source in code for name in _declared(source)})


def _declared(source: ast.Module) -> Iterator[str]:
    for scope in ast.walk(source):
        for line in scope.body if isinstance(scope, ast.ClassDef) else ():
            match line:
                case ast.AnnAssign(target=ast.Name(id=name)):
                    yield name
                # Modules of a list are named 0, 1, ...: `__annotations__["0"] = ...`
                case ast.Assign(targets=[ast.Subscript(slice=ast.Constant(value=str(name)))]):
                    yield name


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
