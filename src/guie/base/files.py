"""Write files atomically (temporary file, then rename), and lock them against other processes."""

import errno
import fcntl
import json
import os
import re
import secrets
import shlex
import shutil
import socket
import stat
import string
import time
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import ArrayLike

from guie.base.arguments import local_path
from guie.base.errors import DISK_FULL, UserError, why_unreadable

PLAIN = f"{string.ascii_letters}{string.digits} ./_-"  # needs no escape in $'...'
PROBE_BYTES = 2**16
BLOCK_BYTES = 512  # unit of stat's st_blocks on every file system

# Characters that break files with one label per line, and terminals. Not a raw string: pandas may pass it
# to Arrow, whose regular expressions do not know \u
CONTROL = "[\x00-\x1f\x7f-\x9f\u2028\u2029]"

STORE = "GUIE_STORE"  # folder of computed rows, on a disk or in a bucket

WAIT_S = 0.5  # for a lock


def cache_folder() -> Path:
    """Return the folder of what can be computed again: `GUIE_CACHE`, by default `runs/.cache`."""
    return local_path(os.environ.get("GUIE_CACHE") or "runs/.cache")


def rows_folder() -> Path:
    """Return the folder of the computed rows of images: `GUIE_STORE`, by default the cache."""
    return Path(os.environ.get(STORE) or cache_folder())


def refuse_special(path: str | Path) -> None:
    """Raise UserError for a folder, pipe or device: reading one may block or never end.

    Links are followed. A missing file passes; its reader reports it.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        raise UserError(f"{path}: not a regular file")


def refuse_missing(paths: Iterable[str | Path | None]) -> None:
    """Raise UserError for the first path that cannot be read, before work on the others; URLs pass."""
    for path in paths:
        if path and ":/" not in str(path) and (why := why_unreadable(path, "file or folder")):
            raise UserError(why)


def refuse_replacing(results: Iterable[Path | None], made_of: Iterable[str | Path | None]) -> None:
    """Raise UserError if a result would overwrite another or one of its inputs, or cannot be written."""
    taken = {os.path.realpath(path): path for path in made_of if path}
    for result in filter(None, results):
        place = os.path.realpath(local_path(result))
        if place in taken:
            raise UserError(f"{result}: would replace {taken[place]}; write it elsewhere")
        if os.path.isdir(place):
            raise UserError(f"{result}: is a folder; name a file")
        refuse_no_folder(Path(place).parent)
        taken[place] = result


def refuse_foreign_list(path: Path, columns: Sequence[str]) -> None:
    """Raise UserError if a list of ours would replace a file whose header is not that of these columns."""
    if os.path.lexists(path):
        refuse_special(path)
        with path.open(encoding="utf-8", errors="replace") as file:
            if file.readline(100).strip() != ",".join(columns):
                raise UserError(f"{path}: would be replaced, and has other columns; rename it")


def remove_own(folder: Path, patterns: Sequence[str]) -> None:
    """Delete the files in a folder that match a pattern, and the folder if it is empty then.

    Other files are a user's. A link to a folder is kept: its target is not ours.
    """
    if folder.is_symlink():
        return
    with suppress(OSError):  # no such folder, or other files are in it
        for path in folder.iterdir():
            if any(map(path.match, patterns)):
                path.unlink()
        folder.rmdir()


def refuse_no_folder(folder: Path) -> None:
    """Raise UserError if a folder does not exist and cannot be made, or if it cannot be written to."""
    nearest = next(
        place for place in (local_path(folder), *folder.absolute().parents) if place.exists()
    )
    if not nearest.is_dir():
        raise UserError(f"{nearest}: needed as a folder, but is a file; write elsewhere")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise UserError(f"{nearest}: cannot be written to; write elsewhere")


def read_json(path: Path, remedy: str) -> dict[str, Any]:
    """Read the object of a JSON file. Raises UserError with `remedy` if there is none."""
    if why := why_unreadable(path):
        raise UserError(f"{why}; {remedy}")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON: {error}; {remedy}") from None
    if not isinstance(value, dict):
        raise UserError(f"{path}: not a JSON object; {remedy}")
    return value


def shown(name: str) -> str:
    """Return a name with its control characters escaped, which a terminal would obey."""
    return re.sub(CONTROL, lambda found: ascii(found[0])[1:-1], name)


def quoted(path: str | Path) -> str:
    """Quote a path as one word of a printed shell command.

    Control characters, which a terminal would obey, are escaped as $'...' (bash, zsh).
    """
    text = str(path)
    if text.isprintable():
        return shlex.quote(text)
    letters = (chr(byte) for byte in os.fsencode(text))
    return "$'" + "".join(c if c in PLAIN else f"\\{ord(c):03o}" for c in letters) + "'"


@contextmanager
def replacing(path: str | Path, durable: bool = True) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path`; rename it to `path` if the block succeeds.

    A crash, a full disk or a power cut leaves the old file or the new one, complete. `durable=False`
    does not wait for the disk, for scratch files: then a power cut may damage the file. The file gets
    the mode of any new file, though safetensors writes files that only their owner can read.
    Raises UserError if the file cannot be written: full disk, missing permission.
    """
    path = Path(path)
    _make_folder(path)
    # Keep the suffix last: numpy, pandas and matplotlib choose the format by it.
    own = f"{os.getpid()}-{secrets.token_hex(4)}"  # containers with one disk may share the number
    temporary = path.with_name(f".{path.stem}.{own}.tmp{path.suffix}")
    try:
        mode = _mode_of_new(temporary)
        yield temporary
        if stat.S_IMODE(temporary.stat().st_mode) != mode:
            temporary.chmod(mode)
        if durable:
            _sync(temporary, os.O_RDWR)
        os.replace(temporary, path)
    except UserError:
        raise
    except Exception as error:  # libraries raise many types for one cause
        code = _cause(error, temporary)
        if code is None:
            raise
        # A writer may still hold the unfinished file open
        taken = temporary.stat().st_blocks * BLOCK_BYTES if temporary.exists() else 0
        raise UserError(_unwritten(path, code, taken)) from error
    finally:
        with suppress(OSError):  # nothing to remove if nothing was written
            temporary.unlink(missing_ok=True)
    if durable:
        with suppress(OSError):  # not all file systems support it; the file is complete
            _sync(path.parent, os.O_RDONLY)


def write_text(path: str | Path, text: str) -> None:
    """Write a UTF-8 text file atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | Path, value: Any) -> None:
    """Write indented JSON atomically. Raises ValueError for non-finite numbers, which JSON lacks."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def save_arrays(path: Path, **arrays: ArrayLike) -> None:
    """Write an .npz like `np.savez`, not atomically: use it within `replacing`.

    numpy before 2.2 leaves the archive open if a write fails, and prints a second error when it is
    garbage collected. Raises ValueError for Python objects.
    """
    with zipfile.ZipFile(path, "w") as archive:
        for name, values in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asarray(values), allow_pickle=False)


def append_text(path: str | Path, text: str) -> None:
    """Append UTF-8 text, all or nothing. Raises UserError if the disk is full."""
    path = Path(path)
    size_bytes = path.stat().st_size if path.exists() else 0
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        os.truncate(path, size_bytes)
        raise UserError(_unwritten(path, error.errno)) from error


def _make_folder(path: Path) -> None:
    try:
        local_path(path).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = f"{error.filename}: {error.strerror}{_other_cache(path)}"
        raise UserError(f"{path}: cannot be written: {why}") from None


def _other_cache(path: Path) -> str:
    """Return the remedy for a path in the cache, which the user never named; else nothing."""
    return "; set GUIE_CACHE to another folder" if cache_folder() in path.parents else ""


def _mode_of_new(path: Path) -> int:
    """Return the mode of a new file in a folder: of the umask, or of the folder's access list."""
    handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    try:
        return stat.S_IMODE(os.fstat(handle).st_mode)
    finally:
        os.close(handle)
        path.unlink()  # a writer that writes elsewhere must not leave an empty file


def _sync(path: Path, flags: int) -> None:
    """Flush to disk; otherwise a renamed file may be empty after a power cut."""
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _cause(error: BaseException | None, temporary: Path) -> int | None:
    """Return the errno of a failed write; None for any other error."""
    while error is not None:
        if isinstance(error, OSError) and error.errno is not None:
            ours = error.filename == str(temporary) and error.errno != errno.ENOENT
            code = error.errno if ours or error.errno in DISK_FULL else None
        elif rust := re.search(r"\b(?:os error|Os \{ code:) (\d+)", str(error)):
            code = int(rust[1])  # of safetensors, new and old
        else:  # numpy, torch, faiss and Arrow report that a write failed, not why
            code = _probe(temporary)
        if code is not None:
            return code
        error = error.__cause__ or error.__context__
    return None


def _probe(temporary: Path) -> int | None:
    """Continue a failed write to learn the system's error code."""
    try:
        with temporary.open("ab") as file:
            file.write(bytes(PROBE_BYTES))
            os.fsync(file.fileno())
    except OSError as error:
        return error.errno
    return None


def _unwritten(path: Path, code: int, held_bytes: int = 0) -> str:
    """Return the line for a failed write; `held_bytes`: disk space of its unfinished file."""
    state = "the old file is intact" if path.exists() else "no file is left"
    if code not in DISK_FULL:
        return f"{path}: cannot be written: {os.strerror(code)}; {state}{_other_cache(path)}"
    free = shutil.disk_usage(path.parent).free + held_bytes
    needed = f" (it needs more than the {free:,} bytes free)" if code == errno.ENOSPC else ""
    return f"{path}: {DISK_FULL[code]}, and run again{needed}; {state}{_other_cache(path)}"


@contextmanager
def held(path: Path, taken: str, remedy: str, wait_s: float = WAIT_S) -> Iterator[TextIO]:
    """Hold the lock of a file, created if absent, and yield the file.

    Child processes that have the file open hold the lock too, and may briefly outlive a killed parent.
    Raises UserError (`taken`, the holder, `remedy`) if another process holds it for `wait_s` seconds, and
    if the file system has no locks.
    """
    _make_folder(path)
    until = time.monotonic() + wait_s
    with path.open("a+", encoding="utf-8") as file:
        file.seek(0)
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise UserError(f"{taken} ({file.read()}); {remedy}") from None
                time.sleep(0.05)
            except OSError as error:
                why = f"{error.strerror}; use a folder on a disk that has locks"
                raise UserError(f"{path}: cannot be locked: {why}") from None
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield file
