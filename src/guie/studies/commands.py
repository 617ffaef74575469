"""Scripts that a study runs as child processes: they are ended by its word, or with it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

SHOWN_CHARS = 300


class Failed(Exception):
    """A script ended with a fault.

    Attributes: `step`, which script; `error`, its last word, without the names of this machine's
    folders: it is committed.
    """

    def __init__(self, step: str, error: str):
        self.step, self.error = step, _without_places(error)[:SHOWN_CHARS]
        super().__init__(f"{step}: {self.error}")


class Halted(Exception):
    """The study was told to stop."""


class Children:
    """The scripts that run now; any thread may start one and wait for it.

    Args:
        lock: a file that they keep open, and with it the lock on it: where the study is killed, the
            next one waits until they have saved and left.
    """

    def __init__(self, lock: int | None = None):
        self._lock, self._running = lock, set[subprocess.Popen[bytes]]()
        self._change = threading.Lock()
        self.halted = False

    def run(
        self, script: Path, words: Sequence[object], log: Path, environment: Mapping[str, str]
    ) -> None:
        """Run it to its end, what it says added to the log. Raises Failed, Halted, or OSError."""
        child_of = [sys.executable, "-m", "guie.studies.child", str(os.getpid())]
        command = [*child_of, str(script), *map(str, words)]
        with log.open("ab") as file:
            begun = file.tell()
            with self._change:
                if self.halted:
                    raise Halted
                child = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    env=os.environ | dict(environment),
                    start_new_session=True,  # Ctrl-C is the study's to pass on
                    pass_fds=[] if self._lock is None else [self._lock],
                )
                self._running.add(child)
        try:
            code = child.wait()
        finally:
            with self._change:
                self._running.discard(child)
        if self.halted:
            raise Halted
        if code:
            raise Failed(script.name, _why(code, log, begun))

    def halt(self, at_once: bool = False) -> None:
        """Start no more, and tell those that run to save and leave; `at_once`: to leave."""
        with self._change:
            self.halted = True
            for child in self._running:
                child.send_signal(signal.SIGKILL if at_once else signal.SIGTERM)


def _why(code: int, log: Path, begun: int) -> str:
    """The line that tells why a script failed."""
    with log.open("rb") as file:
        file.seek(begun)
        said = file.read().decode(errors="replace")
    lines = [line.strip() for line in re.split(r"[\r\n]+", said) if line.strip()]
    told = [line for line in lines if line.startswith("error: ")] or lines or ["no word"]
    if code < 0:
        told = [f"ended by {signal.Signals(-code).name}; its last word: {told[-1]}"]
    return told[-1]


def _without_places(line: str) -> str:
    places = {f"{os.getcwd()}/": "", os.environ.get("GUIE_REAL") or "\0": "${GUIE_REAL}"}
    for place, instead in places.items():
        line = line.replace(place, instead)
    return line.replace(str(Path.home()), "~")
