"""One process at a time: a lock that goes with the process, however it ends."""

from __future__ import annotations

import fcntl
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from guie.base.errors import UserError

WAIT_S = 0.5
HOLDER = re.compile(r"(process \d+ on [^\s]+)?")  # what a lock says
HOLDER_CHARS = 300


@contextmanager
def held(path: Path, said: str, remedy: str, wait_s: float = WAIT_S) -> Iterator[TextIO]:
    """Hold the lock of a file, which is made if need be; yields it.

    Child processes that have the file open hold the lock too, and may outlive a killed parent by a
    moment. Raises UserError of `said`, who holds it and `remedy` if that is so for `wait_s` seconds, and
    where the file is another one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        file.seek(0)
        if not _taken(file, wait_s):
            raise UserError(f"{said} ({file.read()}); {remedy}")
        file.seek(0)
        if not HOLDER.fullmatch(file.read(HOLDER_CHARS)):
            raise UserError(f"{path}: would be the lock, and is a file of somebody's; move it")
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield file


def _taken(file: TextIO, wait_s: float) -> bool:
    """Lock the file; False where another holds it, and is not about to end."""
    until = time.monotonic() + wait_s
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
