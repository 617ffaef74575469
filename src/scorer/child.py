"""What the process of a submitted model does with it: the only part that imports PyTorch.

Shape legend: H height, W width, C channels, D dimension of an embedding.
"""

import ctypes
import resource
import time
import warnings
import zlib
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from scorer.errors import Violation, one_line
from scorer.runtime import check_runtime, refuse_file_access

NO_MEMORY = ("not enough memory", "out of memory", "can't allocate memory", "bad_alloc")


class Model:
    """The submitted file, and the module once it is loaded.

    On a CPU, `memory_bytes` limits memory in addition to PyTorch's own. `threads` None: PyTorch's default.
    """

    def __init__(self, path: Path, memory_bytes: int, threads: int | None) -> None:
        if threads:
            torch.set_num_threads(threads)
        self.path = path
        self.check_runtime = partial(check_runtime, path)
        self.refuse_file_access = partial(refuse_file_access, path)
        self.module: Any = None
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.on_gpu = self.device.type == "cuda"
        self.limit: dict[str, Any] = {"held": False}
        if self.on_gpu:
            self.limit["how"] = "CUDA maps more addresses than it uses memory"
            return
        try:  # limit the addresses; PyTorch's libraries alone map gigabytes of them
            mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (mapped + memory_bytes,) * 2)
            about = f"{memory_bytes / 2**30:.1f} GiB in addition to PyTorch itself (RLIMIT_AS)"
            self.limit = {"held": True, "how": about}
        except (OSError, ValueError) as error:
            self.limit["how"] = f"refused by the system: {one_line(error)}"

    def answer(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """Call a method by name; return its value, or a `Violation` for whatever the model raises."""
        try:
            return getattr(self, name)(*arguments)
        except Violation as fault:
            return fault
        except Exception as error:  # PyTorch raises many types
            text = str(error).lower()
            lacks = isinstance(error, MemoryError) or any(sign in text for sign in NO_MEMORY)
            return Violation(one_line(error), "out_of_memory" if lacks else "")

    def about(self) -> tuple[str, str, str, dict[str, Any]]:
        """Return type and name of the device, PyTorch's version, and the limit of memory."""
        name = torch.cuda.get_device_name(self.device) if self.on_gpu else "cpu"
        return self.device.type, name, str(torch.__version__), self.limit

    def load(self) -> None:
        """Load the module as the host does: `torch.jit.load`, then `eval()`."""
        with warnings.catch_warnings():
            # TorchScript is deprecated, but the challenge demands it.
            warnings.filterwarnings("ignore", message=".*torch.jit.*")
            self.module = torch.jit.load(str(self.path), map_location=self.device).eval()

    def state(self) -> int:
        """Return the CRC-32 of all that the module would save: attributes, weights and constants."""
        checksum: Any = _Checksum()
        writer = torch._C.PyTorchFileWriter(checksum)
        serializer = torch._C.ScriptModuleSerializer(writer)
        serializer.serialize(self.module._c, 0)
        serializer.write_files()
        writer.write_end_of_file()
        return checksum.crc

    def embed(self, pixels_HW3: np.ndarray) -> tuple[str, np.ndarray, float, int]:
        """Embed an image: type of the numbers, the numbers as float32, [D], seconds, peak bytes."""
        # Otherwise the generator's state would remember earlier images, and dropout look repeatable.
        torch.seed()
        began = time.perf_counter()
        with torch.no_grad():
            output = self.module(self._input(pixels_HW3))
            try:
                numbers_D = torch.flatten(output[0]).cpu()
            except (IndexError, KeyError, TypeError):
                returned = type(output).__name__
                if isinstance(output, torch.Tensor):
                    returned = f"a tensor of shape {tuple(output.shape)}"
                demand = "it must return a float tensor (1, D)"
                raise Violation(f"the model returned {returned}; {demand}") from None
        seconds = time.perf_counter() - began
        peak_bytes = torch.cuda.max_memory_reserved() if self.on_gpu else _status_bytes("VmHWM")
        return str(numbers_D.dtype), numbers_D.float().numpy(), seconds, peak_bytes

    def measure(self, pixels_HW3: np.ndarray) -> tuple[int, int, int]:
        """Return operations of one call, bytes of the weights, and peak bytes in addition to them."""
        image_1CHW = self._input(pixels_HW3)
        with torch.no_grad():
            if self.on_gpu:
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
            else:
                with suppress(OSError):
                    ctypes.CDLL(None).malloc_trim(0)  # freed memory must not hide new allocations
                    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again
                before = _status_bytes("VmRSS")
            self.module(image_1CHW)
            peak = torch.cuda.max_memory_allocated() if self.on_gpu else _status_bytes("VmHWM")
            with FlopCounter() as counter:
                self.module(image_1CHW)
        weight_bytes = sum(tensor.nbytes for tensor in self.module.state_dict().values())
        return counter.total, weight_bytes, max(0, peak - before)

    def _input(self, pixels_HW3: np.ndarray) -> torch.Tensor:
        """Return the host's input: uint8, (1, 3, H, W), original size.

        Memory is in pixel order, as from torchvision's `PILToTensor`. A model that needs contiguous
        channels therefore fails here as on the host.
        """
        return torch.from_numpy(pixels_HW3[None]).permute(0, 3, 1, 2).to(self.device)


class _Checksum:
    """A file that keeps only the CRC-32 of what is written."""

    crc = 0

    def write(self, data: bytes) -> int:
        self.crc = zlib.crc32(data, self.crc)
        return len(data)


class FlopCounter(TorchDispatchMode):
    """Count operations like PyTorch's counter, also in TorchScript modules.

    It counts matrix products, convolutions and attention, a multiply-add as two. PyTorch's counter
    imports the compiler first, which takes as long as importing torch itself.
    """

    total = 0

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


def _status_bytes(name: str) -> int:
    """Return the bytes of a line of /proc/self/status, such as VmRSS; 0 where there is none."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    return 0
