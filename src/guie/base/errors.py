"""Errors that the user can fix, printed as one line instead of a traceback."""

import errno
import os
import signal
import stat
import sys
import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from tqdm import tqdm

# Messages and remedies for writes that fail for lack of space.
DISK_FULL = {
    errno.ENOSPC: "the disk is full; free some space or write elsewhere",
    errno.EDQUOT: "the disk quota is used up; free some space or write elsewhere",
    errno.EFBIG: "larger than the file system or `ulimit -f` allows; raise it or write elsewhere",
}


URL = r"[A-Za-z][\w+.-]+:/"  # how one begins


class UserError(Exception):
    """A fault in the input (config key, manifest row, file); the message names it and the remedy."""


def optional_module(name: str, user: str, extra: str) -> Any:
    """Import a module of an extra of this package.

    Args:
        user: the option or command that needs it, for the message.
        extra: name of the extra, which is a file in `requirements/` too.

    Raises UserError if it is not installed.
    """
    try:
        return import_module(name)
    except ImportError:
        raise UserError(
            f"no module {name}, which {user} needs: run `pip install -r requirements/{extra}.txt`"
        ) from None


def why_unreadable(path: str | Path, what: str = "file") -> str | None:
    """Return the line that says why a path cannot be read; None if it can.

    Args:
        what: what is looked for, for the message. A name that ends in `or folder` accepts both, one that
            ends in `folder` only a folder, any other only a regular file.
    """
    path, mode = Path(path), 0
    folder, either = what.endswith("folder"), what.endswith("or folder")
    for place in (*reversed(path.parents), path):
        try:
            mode = os.stat(place).st_mode
        except FileNotFoundError:
            link = f"{'' if place == path else f'{place} is '}a link that points nowhere"
            return f"{path}: {link if place.is_symlink() else f'no such {what}'}"
        except OSError as error:
            return f"{path}: {os.strerror(error.errno or 0)}"
        if not stat.S_ISDIR(mode) and (place != path or (folder and not either)):
            return f"{path}: {place} is a file, not a folder"
    if stat.S_ISDIR(mode) and not folder:
        return f"{path}: is a folder, not a file"
    if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
        return f"{path}: not a regular file"
    needed = os.R_OK | os.X_OK if stat.S_ISDIR(mode) else os.R_OK
    return None if os.access(path, needed) else f"{path}: {os.strerror(errno.EACCES)}"


def run(main: Callable[[Sequence[str] | None], object]) -> None:
    """Run a script's `main` as a command: on a user error, print one line and exit with code 2.

    A full disk, and any system error that names a file, counts as a user error.
    """
    threading.excepthook = _report_thread
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name may not be UTF-8
    try:
        main(None)
    except UserError as error:
        if not _is_echo():
            _say(f"error: {error}")
        sys.exit(2)
    except KeyboardInterrupt:
        # The next one ends the exit without a traceback
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        _say("interrupted")
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output, such as `| head`, has exited
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except UnicodeEncodeError as error:
        if error.reason != "surrogates not allowed":
            raise
        _say(f"error: {error.object!a}: a name that is not UTF-8; rename it")
        sys.exit(2)
    except OSError as error:
        message = _describe(error)
        if message is None:
            raise
        _say(f"error: {message}")
        sys.exit(2)


def _is_echo() -> bool:
    """Return whether another process of this machine reports the same error.

    Until the processes of a run are connected they all do the same: they read the config.
    """
    distributed = sys.modules.get("torch.distributed")
    connected = distributed is not None and distributed.is_initialized()
    return not connected and os.environ.get("LOCAL_RANK", "0") != "0"


def _say(line: str) -> None:
    # On its own line despite progress bars, and unbroken by other threads.
    tqdm.write(f"{line}\n", file=sys.stderr, end="")


def _report_thread(failed: threading.ExceptHookArgs) -> None:
    """Report an error of a thread: TensorBoard writes in one, and the disk may be full."""
    message = _describe(failed.exc_value) if isinstance(failed.exc_value, OSError) else None
    if message is None:
        threading.__excepthook__(failed)
    else:
        sys.stderr.write(f"error: {message}\n")  # one write, as the main thread may exit


def _describe(error: OSError) -> str | None:
    """Return the line for a system error; None if it may be a bug of this package."""
    names_a_file = isinstance(error.filename, str | bytes | os.PathLike)
    if error.errno in DISK_FULL:
        name = os.fsdecode(error.filename) if names_a_file else "a write failed"
        return f"{name}: {DISK_FULL[error.errno]}"
    if error.errno and names_a_file:
        name = os.fsdecode(error.filename)
        absent = why_unreadable(name, "file or folder") if error.errno == errno.ENOENT else None
        return absent or f"{name}: {os.strerror(error.errno)}"
    return None
