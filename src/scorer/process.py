"""Run the submitted model in processes of its own, each with limits of time and memory.

It keeps PyTorch out of the scorer's process, and turns a crash or a hang into a verdict. It does not
confine foreign code.

Shape legend: H height, W width, D dimension of an embedding.
"""

import multiprocessing
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

import numpy as np

from scorer.errors import UserError, Violation

# Time to read a file of 16 GB, or to import PyTorch on a busy machine.
LOAD_SECONDS = 900.0
# PyTorch is imported once, and each process is a fork of the one that did so. That one does not have the
# search path of a script, so it must not import the scorer, which may be installed from elsewhere.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["torch", "torch.utils.flop_counter"])


@dataclass
class Limits:
    """Limits of a submission; see `child.Model` for memory and threads."""

    memory_bytes: int = 16 * 2**30
    threads: int | None = None
    image_seconds: float = 120.0
    total_seconds: float = 24 * 3600.0

    def __post_init__(self) -> None:
        self.deadline = time.monotonic() + self.total_seconds


class ModelProcess:
    """A process for one load of a submitted model. Every failure of the model raises a `Violation`.

    As a context it ends after the block.

    Attributes: `device` (cpu or cuda), `device_name`, `torch` (its version), `memory` (its limit);
    `peak_bytes`, of memory since the first embedding.
    """

    def __init__(self, path: Path, limits: Limits) -> None:
        self.limits, self.peak_bytes = limits, 0
        self.line, theirs = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=_serve, args=(theirs, path, limits), daemon=True)
        self.process.start()
        theirs.close()  # else the end of the process would not close the pipe
        try:  # no model is loaded yet, so a failure is not its fault
            about = self._receive("about", (), LOAD_SECONDS)
        except Violation as fault:
            wrong = f"cannot start a process for the model: {fault}"
            raise UserError(f"{wrong}; free memory") from fault
        self.device, self.device_name, self.torch, self.memory = about

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *fault: object) -> None:
        self.end()

    @property
    def is_running(self) -> bool:
        """Whether the process can be called again."""
        return not self.line.closed

    def embed(self, pixels_HW3: np.ndarray) -> tuple[str, np.ndarray, float]:
        """Embed an image: the numbers' type, the numbers as float32, [D], and seconds."""
        seconds = self.limits.image_seconds
        kind, numbers_D, taken, peak_bytes = self.call("embed", pixels_HW3, seconds=seconds)
        self.peak_bytes = max(self.peak_bytes, peak_bytes)
        return kind, numbers_D, taken

    def call(self, name: str, *arguments: Any, seconds: float = LOAD_SECONDS) -> Any:
        """Call a method of `child.Model`. Raises Violation, also at the timeout."""
        left = self.limits.deadline - time.monotonic()
        if left <= 0:
            self.end()
            raise Violation(f"more than {self.limits.total_seconds:,.0f} s in total", "too_slow")
        return self._receive(name, arguments, min(left, seconds))

    def _receive(self, name: str, arguments: tuple[Any, ...], seconds: float) -> Any:
        try:
            self.line.send((name, arguments))
            if not self.line.poll(seconds):
                self.end()
                raise Violation(f"no answer within {seconds:,.0f} s", "hang")
            answer = self.line.recv()
        except (EOFError, OSError):
            self.process.join()
            code = self.process.exitcode or 0
            self.end()
            name = signal.Signals(-code).name if code < 0 else f"code {code}"
            # The system kills what takes too much memory.
            verdict = "out_of_memory" if code == -signal.SIGKILL else "crash"
            raise Violation(f"its process ended: {name}", verdict) from None
        if isinstance(answer, Violation):
            raise answer
        return answer

    def end(self) -> None:
        """Kill the process if it still runs."""
        self.line.close()
        self.process.kill()
        self.process.join()


def _serve(requests: Connection, path: Path, limits: Limits) -> None:
    """Answer requests in the new process until the scorer closes the pipe: a method and its arguments."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the scorer handles Ctrl-C, and ends this process
    from scorer import child  # imports PyTorch

    model = child.Model(path, limits.memory_bytes, limits.threads)
    with suppress(EOFError, BrokenPipeError):
        while True:
            requests.send(model.answer(*requests.recv()))
