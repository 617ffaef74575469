"""Limits of a model's process. Each records whether and how the system enforces it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import scorer
from scorer.isolated import landlock

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_PR_SET_PDEATHSIG = 1
# Maximum file size if the system cannot forbid writing; stderr goes to such a file.
FILE_BYTES = 2**20
SPARE_THREADS = 32  # in addition to compute threads
# PyTorch reads these too: CPU and memory facts, driver facts, the loader's cache.
SYSTEM = ("/sys", "/proc/cpuinfo", "/proc/meminfo", "/proc/driver/nvidia", "/etc/ld.so.cache")
MODULES = ("stdlib", "platstdlib", "purelib", "platlib")  # by sysconfig
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")


@dataclass(frozen=True)
class Limit:
    """One limit: whether it is enforced, its value and mechanism; or why not."""

    held: bool
    how: str


class Binding:
    """The limits of this process, applied in the required order."""

    def __init__(self, model: Path, memory_bytes: int, threads: int) -> None:
        self.model, self.memory_bytes, self.threads = model, memory_bytes, threads
        self.is_root = os.getuid() == 0  # unknown once in its own namespace
        self.taken: dict[str, Limit] = {}

    def enter(self) -> None:
        """Leave the network, before a second thread exists; end with the parent."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the scorer handles it, and ends this process
        self._try("network", self._leave_network)
        follow_parent()  # after the namespace: a change of credentials clears it
        _prefer_to_die()

    def close(self, on_gpu: bool) -> None:
        """Limit memory, threads and files, after libraries and drivers are mapped."""
        if on_gpu:
            self.taken["memory"] = Limit(False, "CUDA maps more addresses than it uses memory")
        else:
            self._try("memory", self._bind_memory)
        self._try("files", self._bind_files)
        self._try("threads", self._bind_threads)
        self._try("reads", self._bind_paths)
        self.taken["writes"] = self.taken["reads"]
        if self.taken["reads"].held:
            self.taken["writes"] = Limit(True, f"none (Landlock {landlock.version()})")
        if not self.taken["network"].held and landlock.version() >= 4:
            self.taken["network"] = Limit(self.taken["writes"].held, "no TCP (Landlock)")

    def described(self) -> dict[str, dict[str, object]]:
        """Return all limits for score.json."""
        return {name: asdict(limit) for name, limit in self.taken.items()}

    def _try(self, name: str, take: Callable[[], str]) -> None:
        try:
            self.taken[name] = Limit(True, take())
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            self.taken[name] = Limit(False, f"refused by the system: {reason}")

    def _leave_network(self) -> str:
        if sys.platform != "linux":
            raise OSError("only Linux has namespaces")
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return "none (a namespace without one)"

    def _bind_memory(self) -> str:
        # Limits addresses; PyTorch's libraries map gigabytes of them before a model is loaded.
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        _bind(resource.RLIMIT_AS, mapped + self.memory_bytes)
        return f"{self.memory_bytes / 2**30:.1f} GiB in addition to PyTorch itself (RLIMIT_AS)"

    def _bind_files(self) -> str:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        _bind(resource.RLIMIT_FSIZE, FILE_BYTES)
        _bind(resource.RLIMIT_CORE, 0)
        return f"{FILE_BYTES / 2**20:.0f} MiB each (RLIMIT_FSIZE)"

    def _bind_threads(self) -> str:
        if self.is_root:
            raise OSError("RLIMIT_NPROC does not apply to root")
        if not self.taken["network"].held:
            raise OSError("without a namespace, all of the user's processes count")
        _bind(resource.RLIMIT_NPROC, self.threads + SPARE_THREADS)
        return f"{self.threads} to compute, {SPARE_THREADS} others (RLIMIT_NPROC)"

    def _bind_paths(self) -> str:
        devices = [*map(Path, DEVICES), *Path("/dev").glob("nvidia*")]
        landlock.restrict([self.model, *_libraries(), *map(Path, SYSTEM)], devices)
        return f"the model and libraries alone (Landlock {landlock.version()})"


def _libraries() -> Iterator[Path]:
    """Yield the folders of Python's modules and of mapped libraries, which also hold later loads."""
    yield Path(scorer.__file__).parent
    yield from (Path(sysconfig.get_path(name)) for name in MODULES)
    lines = Path("/proc/self/maps").read_text().splitlines()
    yield from {Path(line[line.index("/") :]).parent for line in lines if ".so" in line}


def follow_parent() -> None:
    """Make the system kill this process when its parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _bind(kind: int, most: int) -> None:
    hard = resource.getrlimit(kind)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, most))


def _prefer_to_die() -> None:
    """If memory runs out anyway, make the system kill this process, not the scorer."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
