"""The scorer's side of the process that starts models, and what it lets them use."""

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
# To read a file of 16 GB, or to fork and take on limits.
LOAD_SECONDS = 900.0


def _threads() -> int:
    """As many as the user asks of every program, else one for each core that is there for this one."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdecimal() and int(asked):
        return int(asked)
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


@dataclass(frozen=True)
class Allowance:
    """What a submission may use: memory beside PyTorch's own, threads, seconds, a device.

    `device`: `cpu`, `cuda:1`; empty: a GPU where there is one.
    """

    memory_bytes: int = 16 * 2**30
    threads: int = field(default_factory=_threads)
    image_seconds: float = 120.0
    total_seconds: float = 24 * 3600.0
    device: str = ""


class Server:
    """The process that forks one for each load of a model. Started at once, ready in seconds."""

    def __init__(self) -> None:
        self.control, theirs = socket.socketpair()
        command = [sys.executable, "-m", "scorer.isolated.server", str(theirs.fileno())]
        # Its libraries must not start threads before it forks: none of them would be there after.
        quiet = {name: "1" for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
        self.process = subprocess.Popen(
            command,
            cwd=SOURCE,
            env=os.environ | quiet,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C is the scorer's; this one ends with it
        )
        theirs.close()

    def fork(
        self, model: Path, scratch: Path, allowance: Allowance, errors: int
    ) -> tuple[int, socket.socket]:
        """Start a process that will load this file: its id, and a line to it.

        Args:
            errors: descriptor of a file for what it writes to stderr.
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
        """Kill a process that still runs; its exit code, negative for a signal."""
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
        raise UserError("the process that starts models ended, for want of memory as a rule")


@cache
def server() -> Server:
    """The one of this process; the first call starts it, and does not wait for it."""
    return Server()
