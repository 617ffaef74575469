"""The scorer's side of the process that starts models, and the limits for models."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import scorer
from scorer.errors import UserError
from scorer.isolated import wire

SOURCE = Path(scorer.__file__).resolve().parents[1]
# Time to read a file of 16 GB, or to fork and apply limits.
LOAD_SECONDS = 900.0


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
        command = [sys.executable, "-m", "scorer.isolated.server", str(theirs.fileno())]
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
