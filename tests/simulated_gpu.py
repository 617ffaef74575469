"""A GPU that is simulated: its tensors are in the CPU's memory and say that they are on `cuda:0`.

    with simulated_gpu() as gpu:    # torch and accelerate see one GPU
        ...                         # mixed devices in one operation raise RuntimeError
        gpu.known = ()
        ...                         # an operation in which the CPU would wait for the GPU raises Wait

Mixed devices fail as on CUDA: a CPU tensor among a GPU's must have no dimensions; copies may mix. Waits
are those that `torch.cuda.set_sync_debug_mode("error")` refuses: reading a number, results whose size
depends on values, a number written by indices, and copies between devices that are not `non_blocking`.
Numbers are the CPU's. Not simulated: kernels, streams, memory, `torch.compile`, threads and other processes.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from accelerate.state import AcceleratorState
from torch import Tensor
from torch.nn import functional
from torch.optim import Optimizer, optimizer
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")
SOURCE = str(Path(__file__).parents[1] / "src" / "guie")
# Their sizes, or what they raise, depend on values.
SYNCHRONOUS = {
    *("_local_scalar_dense", "item", "is_nonzero", "nonzero", "nonzero_numpy", "argwhere", "equal"),
    *("_unique", "_unique2", "unique_dim", "unique_consecutive", "bincount", "multinomial"),
    *("masked_select", "allclose"),
    *("_linalg_check_errors", "_linalg_svd", "_linalg_eigh", "linalg_eig", "linalg_lstsq"),
}
MAY_MIX = {"_has_compatible_shallow_copy_type"}
COPIES = {"_to_copy", "copy_", "_foreach_copy_"}
INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_"}
# A CPU tensor without dimensions is no number to them.
STRICT = {
    "cat",
    "stack",
    "gather",
    "scatter",
    "scatter_add",
    "index_select",
    "index_add",
    "embedding",
}

PINNED = "is_in_page_locked_memory"
GROUPED = "_group_tensors_by_device_and_dtype"  # by the devices in C++
CAPTURED = "_accelerator_graph_capture_health_check"  # asks CUDA for its stream

GROUP, ONE_HOT = getattr(torch._C, GROUPED), functional.one_hot


class Wait(AssertionError):
    """The CPU would wait for the GPU where the test allows none."""


class OnGPU(Tensor):
    """A tensor of the simulated GPU."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return SimulatedGPU.now().dispatched(func, args, kwargs or {})

    def get_device(self) -> int:
        return 0

    def cpu(self, **how: Any) -> Tensor:
        return self.to(CPU, **how)

    def cuda(self, *_: Any, **__: Any) -> Tensor:
        return self

    def new_tensor(self, data: Any, **how: Any) -> Tensor:
        return torch.tensor(data, **{"device": CUDA, "dtype": self.dtype, **how})

    def tolist(self) -> Any:
        SimulatedGPU.now().wait("tolist")
        return in_memory(self).tolist()

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy; call Tensor.cpu() first")

    __array__ = numpy

    def __repr__(self) -> str:
        return f"{in_memory(self)!r} on {CUDA}"

    def __reduce_ex__(self, protocol: int) -> Any:
        return in_memory(self).__reduce_ex__(protocol)  # loaded on the CPU, as by map_location


class SimulatedGPU(TorchDispatchMode):
    """Operations that name the GPU, or have one of its tensors.

    Attributes: `waits`, where the CPU waited and for what; `known`, of these the only ones that are
    allowed; None: all are.
    """

    running: list[SimulatedGPU] = []

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []
        self.known: Collection[str] | None = None

    @classmethod
    def now(cls) -> SimulatedGPU:
        """Return the one that is simulated now."""
        return cls.running[-1] if cls.running else cls()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self.dispatched(func, args, kwargs or {})

    def dispatched(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Run an operation on the CPU; its result is on the GPU if its arguments say so."""
        name = func._schema.name.partition("::")[2]
        tensors = list(_tensors((args, kwargs)))
        on_gpu = any(isinstance(tensor, OnGPU) for tensor in tensors)
        if kwargs.get("device") is not None and _in_formula():
            # It names the device that tensors have in C++, which is the CPU.
            kwargs = {**kwargs, "device": CUDA if on_gpu or not tensors else CPU}
        if name.endswith("pin_memory") and on_gpu:
            raise RuntimeError(f"cannot pin a tensor of {CUDA}, only those of the CPU")
        if name == "is_pinned":
            return getattr(args[0], PINNED, False)
        if name in COPIES:
            self._check_copy(name, args, kwargs)
        elif on_gpu and name not in MAY_MIX:
            self._check(name, func, args, kwargs, tensors)
        if kwargs.get("device") is not None:
            on_gpu = torch.device(kwargs["device"]).type == "cuda"
            kwargs = {**kwargs, "device": CPU}
        pins = name.endswith("pin_memory") or kwargs.get("pin_memory")
        with torch._C._DisableTorchDispatch():
            if name.endswith("pin_memory"):
                made = args[0].clone()
            else:
                made = func(*args, **kwargs | ({"pin_memory": False} if pins else {}))
            if pins:
                setattr(made, PINNED, True)
            return _pytree.tree_map_only(Tensor, _moved, made) if on_gpu else made

    def wait(self, what: str) -> None:
        """Count a wait. Raises Wait if it is not allowed."""
        file, line, function = _place()
        self.waits.append(f"{file} {function}: {what}")
        if self.known is not None and self.waits[-1] not in self.known:
            raise Wait(f"{self.waits[-1]} (line {line}) waits for the GPU")

    def synchronize(self, *_: Any) -> None:
        """Wait for the GPU, as streams and events do; a thread beside the training may."""
        if threading.current_thread() is threading.main_thread():
            self.wait("synchronize")

    def record_event(self, *_: Any) -> SimulatedGPU:
        """Return an event of the one stream, which is this object too."""
        return self

    def _check_copy(self, name: str, args: tuple, kwargs: dict[str, Any]) -> None:
        if name == "_to_copy":
            ends = [_device(args[0]), torch.device(kwargs.get("device") or _device(args[0]))]
        else:
            ends = [_device(next(_tensors(one))) for one in args[:2]]
        blocking = not (kwargs.get("non_blocking") or (name != "_to_copy" and args[2:] == (True,)))
        if ends[0].type != ends[1].type and blocking:
            self.wait(f"{name} from {ends[name == 'copy_'].type} that blocks")

    def _check(
        self, name: str, func: Any, args: tuple, kwargs: dict[str, Any], tensors: list[Tensor]
    ) -> None:
        mutates = func._schema.is_mutable and isinstance(args[0], Tensor)
        if name in INDEXED:
            indices = [index for index in args[1] if index is not None]
            tensors = [tensor for tensor in tensors if not any(tensor is one for one in indices)]
            fills = len(args) > 2 and args[2].numel() == 1 and not any(args[3:4])
            masks = any(index.dtype in (torch.bool, torch.uint8) for index in indices)
            if not isinstance(args[0], OnGPU):
                raise _mixed(name)
            if not all(isinstance(index, OnGPU) for index in indices):
                self.wait(f"{name} by indices on the CPU")
            elif masks and not fills:
                self.wait(f"{name} by a mask")
            elif len(args) > 2 and not masks and not isinstance(args[2], OnGPU):
                self.wait(f"{name} of a number, which is copied from the CPU")
        elif name in SYNCHRONOUS or (
            name == "repeat_interleave" and kwargs.get("output_size") is None
        ):
            self.wait(name)
        strict = name.removesuffix("_") in STRICT
        on_cpu = [one for one in tensors if not isinstance(one, OnGPU) and (one.ndim or strict)]
        if on_cpu or (mutates and not isinstance(args[0], OnGPU)):
            raise _mixed(name)


@contextmanager
def simulated_gpu() -> Iterator[SimulatedGPU]:
    """Context in which there is one GPU, and `Accelerator` takes it."""
    gpu = SimulatedGPU()
    with ExitStack() as held:
        replace = {
            **{
                "is_available": lambda: True,
                "device_count": lambda: 1,
                "current_device": lambda: 0,
            },
            **{
                "_lazy_init": lambda: None,
                "set_device": lambda _: None,
                "empty_cache": lambda: None,
            },
            **{"synchronize": gpu.synchronize, "device": nullcontext},
            **{"current_stream": lambda *_: gpu},
            **{"get_device_name": lambda *_: "simulated", "is_bf16_supported": lambda *_: True},
            **{"get_device_capability": lambda *_: (9, 0), "max_memory_allocated": lambda *_: 0},
            **{"get_rng_state": lambda *_: torch.get_rng_state(), "set_rng_state": lambda *_: None},
        }
        for name, value in replace.items():
            held.enter_context(patch.object(torch.cuda, name, value))
        held.enter_context(patch.object(Tensor, "to", _to(Tensor.to)))
        held.enter_context(patch.object(Tensor, "cuda", lambda tensor, *_: tensor.to(CUDA)))
        held.enter_context(patch.object(torch.autocast, "__init__", _cpus(torch.autocast.__init__)))
        types = [*optimizer._foreach_supported_types, OnGPU]
        held.enter_context(patch.object(optimizer, "_foreach_supported_types", types))
        held.enter_context(patch.object(Optimizer, CAPTURED, lambda _: None))
        held.enter_context(_set(torch.__future__.set_swap_module_params_on_conversion, False))
        held.enter_context(patch.object(functional, "one_hot", _one_hot))
        held.enter_context(patch.object(torch._C, GROUPED, _grouped))
        for name in ("tensor", "as_tensor"):
            held.enter_context(patch.object(torch, name, _made_there(getattr(torch, name))))
        AcceleratorState._reset_state(reset_partial_state=True)
        held.callback(AcceleratorState._reset_state, reset_partial_state=True)
        SimulatedGPU.running.append(gpu)
        held.callback(SimulatedGPU.running.pop)
        with gpu:
            yield gpu


def in_memory(tensor: Tensor) -> Tensor:
    """Return the same memory as a tensor of the CPU."""
    with torch._C._DisableTorchDispatch():
        return Tensor._make_subclass(Tensor, tensor)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _tensors(part)


def _moved(tensor: Tensor) -> Tensor:
    return tensor if isinstance(tensor, OnGPU) else Tensor._make_subclass(OnGPU, tensor)


def _device(tensor: Tensor) -> torch.device:
    return CUDA if isinstance(tensor, OnGPU) else tensor.device


def _in_formula() -> bool:
    """Return whether autograd computes the gradient of an operation of PyTorch's own."""
    node = torch._C._current_autograd_node()
    return node is not None and not isinstance(node, torch.autograd.function.BackwardCFunction)


def _mixed(name: str) -> RuntimeError:
    file, line, function = _place()
    return RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
        f" ({name} in {file}:{line} {function})"
    )


def _place() -> tuple[str, int, str]:
    """Return file, line and function of src/guie that run, else of the first outside of torch."""
    frame, other = sys._getframe(1), None
    while frame:
        code = frame.f_code
        if code.co_filename.startswith(SOURCE):
            return str(Path(code.co_filename).relative_to(SOURCE)), frame.f_lineno, code.co_name
        if other is None and code.co_filename != __file__ and "/torch/" not in code.co_filename:
            other = Path(code.co_filename).name, frame.f_lineno, code.co_name
        frame = frame.f_back
    return other or ("", 0, "")


def _to(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return `Tensor.to` by what the tensors say of their devices."""

    def to(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        how, rest = dict(kwargs), list(args)
        if rest and isinstance(rest[0], Tensor):
            how |= {"device": rest[0].device, "dtype": rest.pop(0).dtype}
        for key, kinds in (("device", (torch.device, str, int)), ("dtype", torch.dtype)):
            given = rest[:1] != [] and not isinstance(rest[0], bool)
            if given and (rest[0] is None or isinstance(rest[0], kinds)):
                how[key] = rest.pop(0)
        how |= dict(zip(("non_blocking", "copy"), rest, strict=False))
        device = how.pop("device", None)
        moves = device is not None and torch.device(device).type != self.device.type
        if not moves:
            return original(self, **how) if how else self
        copy = {key: value for key, value in how.items() if key != "copy" and value is not None}
        return torch.ops.aten._to_copy(self, device=torch.device(device), **copy)

    return to


def _made_there(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return `torch.tensor` that makes its tensor on the CPU and copies it, as CUDA does."""

    def made(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> Tensor:
        tensor = original(data, *args, **kwargs)
        return tensor if device is None else tensor.to(device)

    return made


def _one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """Return `functional.one_hot`, which compares with a range made in C++."""
    if num_classes < 0 and isinstance(tensor, OnGPU):
        SimulatedGPU.now().wait("one_hot")
    made = ONE_HOT(in_memory(tensor), num_classes)
    return _moved(made) if isinstance(tensor, OnGPU) else made


def _grouped(*args: Any) -> dict[tuple[torch.device, torch.dtype], Any]:
    """Return tensors by what they say of their device, and by type."""
    found = GROUP(*args).items()
    return {(groups[0][0][0].device, dtype): groups for (_, dtype), groups in found}


def _cpus(original: Callable[..., None]) -> Callable[..., None]:
    """Return autocast's constructor for the CPU, whose kernels these are."""

    def init(self: torch.autocast, device_type: str, *args: Any, **kwargs: Any) -> None:
        original(self, "cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    return init


@contextmanager
def _set(switch: Callable[[bool], None], before: bool) -> Iterator[None]:
    switch(True)
    try:
        yield
    finally:
        switch(before)
