"""What a model's process may use. Each limit tells whether the system holds it, and by what."""

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
# A file may grow to this where the system does not forbid to write; errors go into one such.
FILE_BYTES = 2**20
SPARE_THREADS = 32  # beside those that compute
# What PyTorch looks at beside its libraries: processors, the loader's list, the driver's facts.
SYSTEM = ("/sys", "/proc/cpuinfo", "/proc/meminfo", "/proc/driver/nvidia", "/etc/ld.so.cache")
MODULES = ("stdlib", "platstdlib", "purelib", "platlib")  # by sysconfig
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")


@dataclass(frozen=True)
class Limit:
    """One limit: is it held, at what, by what; or why the system refused."""

    held: bool
    how: str


class Binding:
    """The limits of this process, in the order in which they must be taken on."""

    def __init__(self, model: Path, memory_bytes: int, threads: int) -> None:
        self.model, self.memory_bytes, self.threads = model, memory_bytes, threads
        self.is_root = os.getuid() == 0  # in a namespace of its own it no longer knows
        self.taken: dict[str, Limit] = {}

    def enter(self) -> None:
        """Leave the network, before there is a second thread; end with the parent."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the scorer hears it, and ends this process
        self._try("network", self._leave_network)
        follow_parent()  # after the namespace: a change of credentials clears it
        _prefer_to_die()

    def close(self, on_card: bool) -> None:
        """Bind memory, threads and files, once libraries and drivers are mapped."""
        if on_card:
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
        """For score.json."""
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
        # Addresses, of which the libraries of PyTorch take gigabytes before a model is there.
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        _bind(resource.RLIMIT_AS, mapped + self.memory_bytes)
        return f"{self.memory_bytes / 2**30:.1f} GiB beside PyTorch itself (RLIMIT_AS)"

    def _bind_files(self) -> str:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        _bind(resource.RLIMIT_FSIZE, FILE_BYTES)
        _bind(resource.RLIMIT_CORE, 0)
        return f"{FILE_BYTES / 2**20:.0f} MiB each (RLIMIT_FSIZE)"

    def _bind_threads(self) -> str:
        if self.is_root:
            raise OSError("it counts no process of root's")
        if not self.taken["network"].held:
            raise OSError("without a namespace, all of the user's processes would count")
        _bind(resource.RLIMIT_NPROC, self.threads + SPARE_THREADS)
        return f"{self.threads} to compute, {SPARE_THREADS} beside them (RLIMIT_NPROC)"

    def _bind_paths(self) -> str:
        devices = [*map(Path, DEVICES), *Path("/dev").glob("nvidia*")]
        landlock.restrict([self.model, *_libraries(), *map(Path, SYSTEM)], devices)
        return f"the model and libraries alone (Landlock {landlock.version()})"


def _libraries() -> Iterator[Path]:
    """Folders of Python's modules and of all that is mapped by now; what is loaded later lies there too."""
    yield Path(scorer.__file__).parent
    yield from (Path(sysconfig.get_path(name)) for name in MODULES)
    lines = Path("/proc/self/maps").read_text().splitlines()
    yield from {Path(line[line.index("/") :]).parent for line in lines if ".so" in line}


def follow_parent() -> None:
    """Let the system end this process with its parent."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _bind(kind: int, most: int) -> None:
    hard = resource.getrlimit(kind)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, most))


def _prefer_to_die() -> None:
    """Where memory runs out all the same, the system ends this process and not the scorer."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
