"""One load of the submitted model in a separate process, which answers requests until closed.

Shape legend: B images of one size, H height, W width, D dimension of an embedding.
"""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

import torch

from scorer.errors import Violation, one_line
from scorer.isolated import wire
from scorer.isolated.counting import Memory, flops, matmul_rate
from scorer.isolated.limits import Binding
from scorer.isolated.runtime import check_runtime, code_of, refuse_file_access
from scorer.isolated.state import attribute_names, fingerprint
from scorer.loading import lacks_memory, load

MAX_NUMBERS = 64  # per returned row; of a longer row only the length is sent
# Types of NumPy, with which the host reads the numbers.
SENT = (torch.float16, torch.float32, torch.float64)


class Session:
    """Answer requests of `process.ModelProcess`, each by a method `do_...`."""

    def __init__(self, line: socket.socket, model: Path, binding: Binding) -> None:
        self.line, self.path, self.binding = line, model, binding
        self.memory = Memory()
        self.module: torch.jit.ScriptModule | None = None
        self.device = torch.device("cpu")  # until `do_begin` sets it

    def serve(self) -> None:
        """Answer until the scorer closes the socket."""
        while True:
            request, payload = wire.receive(self.line, most_bytes=wire.MAX_REQUEST_BYTES)
            try:
                answer, numbers = getattr(self, f"do_{request.pop('do')}")(payload, **request)
            except Violation as fault:
                answer, numbers = {"fault": str(fault)}, b""
            except Exception as error:  # anything that the submitted model raises
                answer, numbers = {"fault": one_line(error), "no_memory": lacks_memory(error)}, b""
            wire.send(self.line, answer, numbers)

    def do_begin(self, _: bytearray, threads: int, device: str) -> tuple[dict[str, Any], bytes]:
        torch.set_num_threads(threads)
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        if self.device.type == "cuda":
            torch.zeros(1, device=self.device)  # opens the driver before file access is closed
        on_gpu = self.device.type == "cuda"
        self.binding.close(on_gpu)
        name = torch.cuda.get_device_name(self.device) if on_gpu else "cpu"
        message = {"type": self.device.type, "name": name, "torch": str(torch.__version__)}
        return message | {"limits": self.binding.described()}, b""

    def do_inspect(self, _: bytearray, check: str) -> tuple[dict[str, Any], bytes]:
        {"file_access": refuse_file_access, "torch_1_11": check_runtime}[check](self.path)
        return {}, b""

    def do_load(self, _: bytearray) -> tuple[dict[str, Any], bytes]:
        self.module = None  # one copy of the weights at a time
        self.module = load(self.path, self.device)
        return {"weight_bytes": sum(t.nbytes for t in self.module.state_dict().values())}, b""

    def do_state(self, _: bytearray) -> tuple[dict[str, Any], bytes]:
        return {"state": fingerprint(self._loaded(), attribute_names(code_of(self.path)))}, b""

    def do_embed(
        self, pixels: bytearray, count: int, height: int, width: int
    ) -> tuple[dict[str, Any], bytes]:
        # Otherwise the generator's state would remember earlier images, and dropout look repeatable.
        torch.seed()
        began = time.perf_counter()
        with torch.no_grad():
            output = self._loaded()(self._batch(pixels, count, height, width))
            rows = [torch.flatten(output[i]) for i in range(count)]
            rows = [row.cpu() for row in rows]
        seconds = time.perf_counter() - began
        lengths = [row.numel() for row in rows]
        message: dict[str, Any] = {
            "type": str(rows[0].dtype),
            "numbers": lengths,
            "seconds": seconds,
        }
        message["peak_bytes"] = self._peak_bytes()
        if rows[0].dtype not in SENT or max(lengths) > MAX_NUMBERS:
            return message, b""
        return message, torch.cat(rows).float().numpy().tobytes()

    def do_measure(
        self, pixels: bytearray, height: int, width: int
    ) -> tuple[dict[str, Any], bytes]:
        """Measure one image: dispatched operations, and peak memory in addition to the weights."""
        image = self._batch(pixels, 1, height, width)
        with torch.no_grad():
            before = self.memory.begin(self.device)
            self._loaded()(image)
            used_bytes = self.memory.end(self.device) - before
            operations = flops(self._loaded(), image)
            began = time.perf_counter()
            self._loaded()(image)
            seconds = time.perf_counter() - began
        return {
            "flops": operations,
            "activation_bytes": max(0, used_bytes),
            "seconds": seconds,
            "machine_flops": matmul_rate(self.device),
        }, b""

    def _batch(self, pixels: bytearray, count: int, height: int, width: int) -> torch.Tensor:
        """Return the host's input: uint8, (B, 3, H, W), original size.

        Memory is in pixel order, as from torchvision's `PILToTensor`. A model that needs contiguous
        channels therefore fails here as on the host.
        """
        images_BHW3 = torch.frombuffer(pixels, dtype=torch.uint8).view(count, height, width, 3)
        return images_BHW3.permute(0, 3, 1, 2).to(self.device)

    def _loaded(self) -> torch.jit.ScriptModule:
        if self.module is None:
            raise RuntimeError("no model is loaded")
        return self.module

    def _peak_bytes(self) -> int:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_reserved(self.device)
        return self.memory.of("VmHWM")
