"""Run the submitted model in separate processes: the scorer's side, which never imports torch.

A server process has imported torch, and forks a session for each load of a model. Requests have
timeouts, and a process that ends is a verdict.

Shape legend: B images of one size, H height, W width, D dimension of an embedding.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import scorer
from scorer import wire
from scorer.errors import UserError, Violation, printable

SOURCE = Path(scorer.__file__).resolve().parents[1]
# Time to read a file of 16 GB, or to fork and apply limits.
LOAD_SECONDS = 900.0
# Without bfloat16: the host reads the numbers with NumPy, which has no such type.
TYPES = ("torch.float16", "torch.float32", "torch.float64")
_NO_MEMORY = ("bad_alloc", "allocate memory", "out of memory")


def _threads() -> int:
    """Return OMP_NUM_THREADS if set, else the number of cores available to this process."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if wanted.isdecimal() and int(wanted):
        return int(wanted)
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


@dataclass(frozen=True)
class Allowance:
    """Limits of a submission: memory in addition to PyTorch's own, threads, seconds, device.

    `device`: `cpu`, `cuda:1`; empty: a GPU if there is one.
    """

    memory_bytes: int = 16 * 2**30
    threads: int = field(default_factory=_threads)
    image_seconds: float = 120.0
    total_seconds: float = 24 * 3600.0
    device: str = ""


class Server:
    """The process that forks another for each model load. Starting does not block; ready in seconds."""

    def __init__(self) -> None:
        self.control, theirs = socket.socketpair()
        command = [sys.executable, "-m", "scorer.isolated.session", str(theirs.fileno())]
        # Its libraries must not start threads before it forks, as threads do not survive a fork.
        quiet = {name: "1" for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
        self.process = subprocess.Popen(
            command,
            cwd=SOURCE,
            env=os.environ | quiet,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # only the scorer gets Ctrl-C; this process ends with it
        )
        theirs.close()

    def fork(
        self, model: Path, scratch: Path, allowance: Allowance, errors: int
    ) -> tuple[int, socket.socket]:
        """Start a process to load this file; return its id and a socket to it.

        Args:
            errors: descriptor of a file for its stderr.
        """
        ours, theirs = socket.socketpair()
        request = {
            "model": str(model.resolve()),
            "scratch": str(scratch.resolve()),
            "memory_bytes": allowance.memory_bytes,
            "threads": allowance.threads,
        }
        with theirs:
            return self._ask(request, [theirs.fileno(), errors])["pid"], ours

    def end(self, pid: int) -> int:
        """Kill a process if it still runs; return its exit code, negative for a signal."""
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return self._ask({"end": pid}, [])["code"]

    def _ask(self, request: dict[str, Any], lines: list[int]) -> dict[str, Any]:
        try:
            socket.send_fds(self.control, [json.dumps(request).encode()], lines)
            self.control.settimeout(LOAD_SECONDS)
            if words := self.control.recv(wire.MAX_JSON_BYTES):
                return json.loads(words)
        except OSError:
            pass
        server.cache_clear()
        raise UserError(
            "the process that starts models ended, usually for lack of memory; free memory and retry"
        )


@cache
def server() -> Server:
    """Return this process's server; the first call starts it without waiting."""
    return Server()


@dataclass(frozen=True)
class Answer:
    """A model's answer to one image: dtype, count of numbers, and valid numbers."""

    type: str
    count: int
    numbers_D: np.ndarray | None  # float32; None: wrong type or too many
    seconds: float


@dataclass(frozen=True)
class Device:
    """Where a model runs: `cpu` or `cuda`, and its name."""

    type: str
    name: str


class ModelProcess:
    """One load of a submitted model. Every failure of the model raises a `Violation`."""

    def __init__(self, model: Path, scratch: Path, allowance: Allowance, deadline: float) -> None:
        self.allowance, self.deadline = allowance, max(deadline, time.monotonic() + LOAD_SECONDS)
        self.server = server()
        # Not in the scratch folder, where the process could replace the file by a pipe.
        self.stderr = tempfile.TemporaryFile()
        self.pid, self.line = self.server.fork(model, scratch, allowance, self.stderr.fileno())
        self.is_running, self.peak_bytes = True, 0  # of memory, since the first embedding
        try:  # no model is loaded yet, so a failure is not its fault
            words = {"threads": allowance.threads, "device": allowance.device}
            message, _ = self.ask("begin", LOAD_SECONDS, **words)
        except Violation as fault:
            self.end()
            remedy = "; raise --memory-gb" if fault.verdict == "out_of_memory" else ""
            raise UserError(f"cannot start a process for the model: {fault}{remedy}") from fault
        self.device = Device("cuda" if message["type"] == "cuda" else "cpu", str(message["name"]))
        self.deadline = deadline
        self.torch = str(message["torch"])
        times = {"time_per_image": f"{allowance.image_seconds:g} s"}
        times["time"] = f"{allowance.total_seconds / 3600:g} h in total"
        own = {name: {"held": True, "how": how} for name, how in times.items()}
        self.limits: dict[str, Any] = dict(message["limits"]) | own

    def inspect(self, check: str) -> None:
        """Run a static check of the file's code: `file_access` or `torch_1_11`. Raises Violation."""
        self.ask("inspect", LOAD_SECONDS, check=check)

    def load(self) -> None:
        """Load the model as the host does: `torch.jit.load`, then `eval()`."""
        self.weight_bytes = int(_number(self.ask("load", LOAD_SECONDS)[0], "weight_bytes"))

    def state(self) -> int:
        """Return a fingerprint of the model's state."""
        return _number(self.ask("state", LOAD_SECONDS)[0], "state")

    def measure(self, pixels_HW3: np.ndarray) -> dict[str, float]:
        """Return operations, activation bytes, seconds of an image; this machine's operations per second."""
        height, width, _ = pixels_HW3.shape
        seconds = 10 * self.allowance.image_seconds
        message, _ = self.ask("measure", seconds, pixels_HW3, height=height, width=width)
        keys = ("flops", "activation_bytes", "seconds", "machine_flops")
        return {key: _number(message, key) for key in keys}

    def embed(self, pixels_BHW3: np.ndarray) -> list[Answer]:
        """Embed images of one size as one batch; return an answer per image."""
        count, height, width, _ = pixels_BHW3.shape
        size = {"count": count, "height": height, "width": width}
        began = time.perf_counter()
        limit = self.allowance.image_seconds * count
        message, payload = self.ask("embed", limit, pixels_BHW3, **size)
        lengths = message.get("numbers")
        if not isinstance(lengths, list) or len(lengths) != count:
            raise self._garbled()
        kind = printable(str(message.get("type")))
        lengths = [_number({"n": n}, "n") for n in lengths]
        fit = kind in TYPES and 0 < max(lengths) <= wire.MAX_NUMBERS
        rows: list[np.ndarray | None] = [None] * count
        if fit or payload:
            if len(payload) != 4 * sum(lengths) or max(lengths) > wire.MAX_NUMBERS:
                raise self._garbled()
            rows[:] = np.split(np.frombuffer(bytes(payload), "<f4"), np.cumsum(lengths)[:-1])
        self.peak_bytes = max(self.peak_bytes, _number(message, "peak_bytes"))
        # The process's own time, without the transfer, but at most the elapsed time.
        seconds = min(float(_number(message, "seconds")), time.perf_counter() - began) / count
        return [Answer(kind, n, row, seconds) for n, row in zip(lengths, rows, strict=True)]

    def ask(
        self, what: str, seconds: float, payload: Any = b"", **words: Any
    ) -> tuple[dict[str, Any], bytearray]:
        """Send a request and wait for its answer. Raises Violation, also at the timeout."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            self.end()
            raise Violation(f"more than {self.allowance.total_seconds:,.0f} s in total", "too_slow")
        wait = min(left, seconds)
        try:
            wire.send(self.line, {"do": what, **words}, payload, wait)
            answer, numbers = wire.receive(self.line, wait)
        except TimeoutError:
            self.end()
            raise Violation(f"no answer within {wait:,.0f} s", "hang") from None
        except wire.Broken as fault:
            raise self._ended(str(fault)) from None
        if "fault" in answer:
            kind = "out_of_memory" if answer.get("no_memory") is True else ""
            raise Violation(printable(str(answer["fault"])), kind)
        return answer, numbers

    def _garbled(self) -> Violation:
        self.end()
        return Violation("its process sent an invalid answer", "crash")

    def _ended(self, how: str) -> Violation:
        code = self.end()
        self.stderr.seek(max(0, os.fstat(self.stderr.fileno()).st_size - 2000))
        lines = self.stderr.read(2000).decode(errors="replace").split("\n")
        said = next((printable(line, 200) for line in map(str.strip, reversed(lines)) if line), "")
        name = signal.Signals(-code).name if code < 0 else f"code {code}"
        message = f"its process {how}: {name}" + (f" ({said})" if said else "")
        for_memory = code == -signal.SIGKILL or any(word in said for word in _NO_MEMORY)
        return Violation(message, "out_of_memory" if for_memory else "crash")

    def end(self) -> int:
        """Kill the process if it still runs; return its exit code, else 0."""
        if not self.is_running:
            return 0
        self.is_running = False
        with self.line:  # closed last: a process that sees it closed ends by itself, with code 0
            return self.server.end(self.pid)


class SandboxedModel:
    """An unpacked submission; its processes share one allowance and one deadline."""

    def __init__(self, model: Path, allowance: Allowance) -> None:
        self.model, self.allowance = model, allowance
        self.deadline = time.monotonic() + allowance.total_seconds

    @contextmanager
    def process(self) -> Iterator[ModelProcess]:
        """Yield a fresh process in an empty folder; both are removed after the block."""
        with tempfile.TemporaryDirectory(prefix="scratch-", dir=self.model.parent) as scratch:
            process = ModelProcess(self.model, Path(scratch), self.allowance, self.deadline)
            try:
                yield process
            finally:
                process.end()


def _number(message: dict[str, Any], key: str) -> Any:
    """Return a non-negative number of an untrusted answer, which fits a float; 0 if it is none."""
    value = message.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    return value if 0 <= value < 2**53 else 0
