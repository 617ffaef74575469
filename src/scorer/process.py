"""Run the submitted model in processes of its own, each with limits of time and memory.

It keeps PyTorch out of the scorer's process, and turns a crash or a hang into a verdict. It does not
confine foreign code.

Shape legend: B images of one size, H height, W width, D dimension of an embedding.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from scorer.errors import UserError, Violation

# Time to read a file of 16 GB, or to import PyTorch on a busy machine.
LOAD_SECONDS = 900.0
# Without bfloat16: the host reads the numbers with NumPy, which has no such type.
TYPES = ("torch.float16", "torch.float32", "torch.float64")
# PyTorch is imported once, and each process is a fork of the one that did so.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["torch", "scorer.child"])


def _threads() -> int:
    """Return OMP_NUM_THREADS if set, else the number of cores available to this process."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if wanted.isdecimal() and int(wanted):
        return int(wanted)
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


@dataclass(frozen=True)
class Allowance:
    """Limits of a submission: memory in addition to PyTorch's own, threads, seconds."""

    memory_bytes: int = 16 * 2**30
    threads: int = field(default_factory=_threads)
    image_seconds: float = 120.0
    total_seconds: float = 24 * 3600.0


@dataclass(frozen=True)
class Answer:
    """A model's answer to one image: dtype, count of numbers, and numbers of a valid type."""

    type: str
    count: int
    numbers_D: np.ndarray | None  # float32; None: of another type than `TYPES`
    seconds: float


class ModelProcess:
    """A process for one load of a submitted model. Every failure of the model raises a `Violation`.

    Attributes: `device` (cpu or cuda), `device_name`, `torch` (its version), `memory` (its limit);
    `peak_bytes`, of memory since the first embedding.
    """

    def __init__(self, path: Path, allowance: Allowance, deadline: float) -> None:
        self.allowance, self.deadline, self.peak_bytes = allowance, deadline, 0
        self.line, theirs = CONTEXT.Pipe()
        arguments = (theirs, path, allowance.memory_bytes, allowance.threads)
        self.process = CONTEXT.Process(target=_serve, args=arguments, daemon=True)
        self.process.start()
        theirs.close()  # else the end of the process would not close the pipe
        try:  # no model is loaded yet, so a failure is not its fault
            self.device, self.device_name, self.torch, self.memory = self._receive(LOAD_SECONDS)
        except Violation as fault:
            raise UserError(
                f"cannot start a process for the model: {fault}; free memory"
            ) from fault

    @property
    def is_running(self) -> bool:
        """Whether the process can be asked again."""
        return not self.line.closed

    def embed(self, images_BHW3: np.ndarray) -> list[Answer]:
        """Embed images of one size as one batch; return an answer per image."""
        seconds = self.allowance.image_seconds * len(images_BHW3)
        kind, rows, taken, peak_bytes = self.ask("embed", images_BHW3, seconds=seconds)
        self.peak_bytes = max(self.peak_bytes, peak_bytes)
        return [
            Answer(kind, len(row), row if kind in TYPES else None, taken / len(rows))
            for row in rows
        ]

    def ask(self, what: str, *arguments: Any, seconds: float = LOAD_SECONDS) -> Any:
        """Call a method of `child.Model`. Raises Violation, also at the timeout."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            self.end()
            raise Violation(f"more than {self.allowance.total_seconds:,.0f} s in total", "too_slow")
        try:
            self.line.send((what, arguments))
        except OSError:
            raise self._ended() from None
        return self._receive(min(left, seconds))

    def _receive(self, seconds: float) -> Any:
        try:
            if not self.line.poll(seconds):
                self.end()
                raise Violation(f"no answer within {seconds:,.0f} s", "hang")
            answer = self.line.recv()
        except (EOFError, OSError):
            raise self._ended() from None
        if isinstance(answer, Violation):
            raise answer
        return answer

    def _ended(self) -> Violation:
        self.process.join()
        code = self.process.exitcode or 0
        self.end()
        name = signal.Signals(-code).name if code < 0 else f"code {code}"
        # The system kills what takes too much memory.
        verdict = "out_of_memory" if code == -signal.SIGKILL else "crash"
        return Violation(f"its process ended: {name}", verdict)

    def end(self) -> None:
        """Kill the process if it still runs."""
        self.line.close()
        self.process.kill()
        self.process.join()


def _serve(requests: Any, path: Path, memory_bytes: int, threads: int) -> None:
    """Run in the new process: import PyTorch only there."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the scorer handles Ctrl-C, and ends this process
    from scorer.child import serve

    serve(requests, path, memory_bytes, threads)


class UnpackedModel:
    """An unpacked submission; its processes share one allowance and one deadline."""

    def __init__(self, path: Path, allowance: Allowance) -> None:
        self.path, self.allowance = path, allowance
        self.deadline = time.monotonic() + allowance.total_seconds

    @contextmanager
    def process(self) -> Iterator[ModelProcess]:
        """Yield a fresh process, which ends after the block."""
        process = ModelProcess(self.path, self.allowance, self.deadline)
        try:
            yield process
        finally:
            process.end()
