"""Landlock by system calls: a process irrevocably gives up most file system access.

Documentation/userspace-api/landlock.rst of the Linux kernel; numbers from include/uapi/linux/landlock.h.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Iterable
from pathlib import Path

_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446  # the same on every architecture but alpha
_VERSION_FLAG, _PATH_BENEATH = 1, 1
_PR_SET_NO_NEW_PRIVS = 38
# Start a program; write to a file; remove, and create anything from folders to devices. From versions
# 2 and 3: move to another folder, truncate.
_EXECUTE, _READ_FILE, _READ_FOLDER = 1 << 0, 1 << 2, 1 << 3
_WRITE, _REMOVE_AND_MAKE, _REFER, _TRUNCATE = 1 << 1, 0b1_1111_1111 << 4, 1 << 13, 1 << 14
_TCP = 0b11  # bind, connect; from version 4
_SCOPED = 0b11  # abstract sockets, signals; from version 6


def version() -> int:
    """Return the kernel's Landlock version; 0 if it is missing or disabled."""
    if sys.platform != "linux":
        return 0
    found = _syscall(_CREATE, None, 0, _VERSION_FLAG)
    return max(found, 0)


def restrict(readable: Iterable[Path], devices: Iterable[Path]) -> None:
    """Restrict this thread and its future children to read `readable` and use `devices`.

    They cannot write elsewhere or start programs. If the kernel's version supports it, TCP and signals
    to outside processes are blocked too.

    Args:
        readable: files and folders; missing ones are ignored, as for devices.
        devices: may be read and written.

    Raises:
        OSError: the system rejects it.
    """
    known = version()
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
