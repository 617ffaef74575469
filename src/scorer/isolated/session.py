"""The process that has imported torch, and the sessions that it forks, one for each load of a model.

python -m scorer.isolated.session DESCRIPTOR

The first process never opens a submission, so its report of how a session ended can be trusted.

Shape legend: B images of one size, H height, W width, D dimension of an embedding.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from scorer import wire
from scorer.errors import Violation, one_line
from scorer.isolated.limits import Binding
from scorer.isolated.measuring import Memory, attribute_names, fingerprint, flops, matmul_rate
from scorer.isolated.runtime import check_runtime, code_of, refuse_file_access

# Types of NumPy, with which the host reads the numbers.
SENT = (torch.float16, torch.float32, torch.float64)


def main(descriptor: int) -> None:
    """Serve until the scorer ends and thereby closes the socket.

    A parent death signal does not work here: Linux sends it when the starting thread ends.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=descriptor)
    while True:
        words, lines, _, _ = socket.recv_fds(control, wire.MAX_JSON_BYTES, 2)
        if not words:
            return
        request = json.loads(words)
        if "end" in request:
            _, status, usage = os.wait4(request["end"], 0)
            message = {"code": os.waitstatus_to_exitcode(status), "peak_kib": usage.ru_maxrss}
            control.sendall(json.dumps(message).encode())
            continue
        child = os.fork()
        if not child:
            control.close()
            run(socket.socket(fileno=lines[0]), lines[1], request)
        for line in lines:
            os.close(line)
        control.sendall(json.dumps({"pid": child}).encode())


def run(line: socket.socket, errors: int, request: dict[str, Any]) -> None:
    """Restrict this process, then answer the scorer; never returns."""
    code = 1
    try:
        os.chdir(request["scratch"])
        nothing = os.open(os.devnull, os.O_RDWR)  # what it prints is discarded
        for target, source in enumerate((nothing, nothing, errors)):
            os.dup2(source, target)
        model = Path(request["model"])
        binding = Binding(model, request["memory_bytes"], request["threads"])
        binding.enter()
        Session(line, model, binding).serve()
    except wire.Broken:
        code = 0  # the scorer closed the socket
    finally:
        os._exit(code)


class Session:
    """Answer requests of `scorer.process.ModelProcess`, each by a method `do_...`."""

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
        on_gpu = self.device.type == "cuda"
        if on_gpu:
            torch.zeros(1, device=self.device)  # opens the driver before file access is closed
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
            try:
                rows = [torch.flatten(output[i]).cpu() for i in range(count)]
            except (IndexError, KeyError, TypeError):
                is_tensor = isinstance(output, torch.Tensor)
                shape = f"a tensor of shape {tuple(output.shape)}" if is_tensor else ""
                raise Violation(
                    f"the model returned {shape or type(output).__name__}; it must return a float"
                    f" tensor ({count}, D)"
                ) from None
        seconds = time.perf_counter() - began
        lengths = [row.numel() for row in rows]
        on_gpu = self.device.type == "cuda"
        peak = torch.cuda.max_memory_reserved(self.device) if on_gpu else self.memory.of("VmHWM")
        message = {"type": str(rows[0].dtype), "numbers": lengths, "seconds": seconds}
        message["peak_bytes"] = peak
        if rows[0].dtype not in SENT or max(lengths) > wire.MAX_NUMBERS:
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


def load(path: Path, device: torch.device) -> torch.jit.ScriptModule:
    """Load the TorchScript module as the host does: `torch.jit.load`, then `eval()`.

    Raises:
        Violation: PyTorch cannot load it.
        MemoryError: it exceeds this process's memory limit.
    """
    try:
        with warnings.catch_warnings():
            # TorchScript is deprecated, but the challenge demands it.
            warnings.filterwarnings("ignore", message=".*torch.jit.*")
            return torch.jit.load(str(path), map_location=device).eval()
    except Exception as error:  # PyTorch raises many types here; each means "does not load"
        if lacks_memory(error):
            raise MemoryError(one_line(error)) from error
        raise Violation(one_line(error)) from error


def lacks_memory(error: Exception) -> bool:
    """Return whether a PyTorch error means out of memory."""
    said = str(error).lower()
    signs = ("not enough memory", "out of memory", "can't allocate memory", "bad_alloc")
    return isinstance(error, MemoryError) or any(sign in said for sign in signs)


if __name__ == "__main__":
    with suppress(BrokenPipeError, ConnectionResetError):  # the scorer ended during a request
        main(int(sys.argv[1]))
