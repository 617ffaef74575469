"""Limits of a model's process. Each records whether and how the system enforces it.

File access ends by Landlock, in system calls: Documentation/userspace-api/landlock.rst of the Linux
kernel; the numbers are from include/uapi/linux/landlock.h.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import struct
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import scorer

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_PR_SET_PDEATHSIG = 1
# Maximum file size if the system cannot forbid writing; stderr goes to such a file.
FILE_BYTES = 2**20
SPARE_THREADS = 32  # in addition to compute threads
# PyTorch reads these too: CPU and memory facts, driver facts, the loader's cache.
SYSTEM = ("/sys", "/proc/cpuinfo", "/proc/meminfo", "/proc/driver/nvidia", "/etc/ld.so.cache")
MODULES = ("stdlib", "platstdlib", "purelib", "platlib")  # by sysconfig
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")

_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446  # the same on every architecture but alpha
_VERSION_FLAG, _PATH_BENEATH = 1, 1
_PR_SET_NO_NEW_PRIVS = 38
# Start a program; write to a file; remove, and create anything from folders to devices. From versions
# 2 and 3: move to another folder, truncate.
_EXECUTE, _READ_FILE, _READ_FOLDER = 1 << 0, 1 << 2, 1 << 3
_WRITE, _REMOVE_AND_MAKE, _REFER, _TRUNCATE = 1 << 1, 0b1_1111_1111 << 4, 1 << 13, 1 << 14
_TCP = 0b11  # bind, connect; from version 4
_SCOPED = 0b11  # abstract sockets, signals; from version 6


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
        if sys.platform == "linux":
            # End with the parent. After the namespace: a change of credentials clears it.
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        with contextlib.suppress(OSError):
            # If memory runs out anyway, the system kills this process, not the scorer.
            Path("/proc/self/oom_score_adj").write_text("1000")

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
            self.taken["writes"] = Limit(True, f"none (Landlock {landlock_version()})")
        if not self.taken["network"].held and landlock_version() >= 4:
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
        restrict_paths([self.model, *_libraries(), *map(Path, SYSTEM)], devices)
        return f"the model and libraries alone (Landlock {landlock_version()})"


def _libraries() -> Iterator[Path]:
    """Yield the folders of Python's modules and of mapped libraries, which also hold later loads."""
    yield Path(scorer.__file__).parent
    yield from (Path(sysconfig.get_path(name)) for name in MODULES)
    lines = Path("/proc/self/maps").read_text().splitlines()
    yield from {Path(line[line.index("/") :]).parent for line in lines if ".so" in line}


def _bind(kind: int, most: int) -> None:
    hard = resource.getrlimit(kind)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, most))


def landlock_version() -> int:
    """Return the kernel's Landlock version; 0 if it is missing or disabled."""
    if sys.platform != "linux":
        return 0
    found = _syscall(_CREATE, None, 0, _VERSION_FLAG)
    return max(found, 0)


def restrict_paths(readable: Iterable[Path], devices: Iterable[Path]) -> None:
    """Restrict this thread and its future children to read `readable` and use `devices`.

    They cannot write elsewhere or start programs. If the kernel's version supports it, TCP and signals
    to outside processes are blocked too.

    Args:
        readable: files and folders; missing ones are ignored, as for devices.
        devices: may be read and written.

    Raises:
        OSError: the system rejects it.
    """
    known = landlock_version()
    if not known:
        raise OSError("the system has no Landlock")
    writing = _WRITE | _REMOVE_AND_MAKE
    writing |= (_REFER if known >= 2 else 0) | (_TRUNCATE if known >= 3 else 0)
    files = _EXECUTE | _READ_FILE | _READ_FOLDER | writing
    rules = struct.pack("<QQQ", files, _TCP if known >= 4 else 0, _SCOPED if known >= 6 else 0)
    size = 24 if known >= 6 else 16 if known >= 4 else 8
    ruleset = _checked(_CREATE, rules[:size], size, 0)
    for path in filter(Path.exists, readable):
        _allow(ruleset, path, _READ_FILE | (_READ_FOLDER if path.is_dir() else 0))
    for device in filter(Path.exists, devices):
        _allow(ruleset, device, _READ_FILE | writing & (_WRITE | _TRUNCATE))
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs is refused")
    _checked(_RESTRICT, ruleset, 0)
    os.close(ruleset)


def _allow(ruleset: int, path: Path, rights: int) -> None:
    place = os.open(path, getattr(os, "O_PATH", 0) | os.O_CLOEXEC)
    try:
        _checked(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("<Qi", rights, place), 0)
    finally:
        os.close(place)


def _checked(*words: int | bytes | None) -> int:
    found = _syscall(*words)
    if found < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found


def _syscall(*words: int | bytes | None) -> int:
    return ctypes.CDLL(None, use_errno=True).syscall(*words)
