"""Where a training step would wait for the device, counted on a CPU.

Some tensors are declared to be on the device, and with them all that is computed from them. An operator
that hands a value of theirs to Python, or whose result's size depends on their values, would wait.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ATEN = torch.ops.aten
WAITING = {
    *(ATEN._local_scalar_dense, ATEN.item, ATEN.is_nonzero, ATEN.equal, ATEN.nonzero),
    *(ATEN.masked_select, ATEN._unique2, ATEN.bincount, ATEN.allclose),
}
BY_MASK = {ATEN.index, ATEN.index_put, ATEN.index_put_, ATEN._index_put_impl_}


class Waits(TorchDispatchMode):
    """Context that records each wait, as `operator at file:line` of the package's innermost frame."""

    def __init__(self, on_device: Iterable[Tensor]):
        super().__init__()
        self.seen: list[str] = []
        self._storages: dict[int, StorageWeakRef] = {}  # weak: an address is not used again
        for tensor in on_device:
            self._put(tensor)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        given = [x for x in tree_leaves((args, kwargs or {})) if isinstance(x, Tensor)]
        moved = any(map(self._is_on_device, given))
        operator = func.overloadpacket
        if moved and (operator in WAITING or operator in BY_MASK and self._has_mask(args[1])):
            frames = [f for f in traceback.extract_stack() if "/guie/" in f.filename]
            where = [f"{f.filename.rpartition('/guie/')[2]}:{f.lineno}" for f in frames[-1:]]
            self.seen.append(f"{operator} at {''.join(where) or 'the backward pass'}")
        result = func(*args, **(kwargs or {}))
        if moved:
            changed = args[0] if func._schema.is_mutable else ()
            for value in tree_leaves((result, changed)):
                if isinstance(value, Tensor):
                    self._put(value)
        return result

    def _put(self, tensor: Tensor) -> None:
        held = StorageWeakRef(tensor.untyped_storage())
        self._storages[held.cdata] = held

    def _is_on_device(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._storages

    def _has_mask(self, indices: Iterable[Tensor | None]) -> bool:
        masks = [x for x in indices if x is not None and x.dtype in (torch.bool, torch.uint8)]
        return any(map(self._is_on_device, masks))
