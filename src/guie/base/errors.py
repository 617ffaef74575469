"""Errors that are the user's to mend, told in one line instead of a traceback."""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Callable, Sequence
from io import TextIOWrapper

from tqdm import tqdm

# What a write meets when there is no room for it, in words with a remedy.
DISK_FULL = {
    errno.ENOSPC: "the disk is full; free some space or write elsewhere",
    errno.EDQUOT: "the disk quota is used up; free some space or write elsewhere",
    errno.EFBIG: "larger than the file system or `ulimit -f` allows; raise it or write elsewhere",
}


class UserError(Exception):
    """A fault in the input: a config key, a manifest row, a file. The message names it and the remedy."""


def run(main: Callable[[Sequence[str] | None], object]) -> None:
    """Run a script's `main` as a command: exit code 2 and one clear line where the user is at fault.

    A full disk, and any fault of the system that names a file, counts as the user's to mend.
    """
    threading.excepthook = _tell_of_thread
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name may not be in UTF-8
    try:
        main(None)
    except UserError as error:
        _say(f"error: {error}")
        sys.exit(2)
    except KeyboardInterrupt:
        _say("interrupted")
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output, `| head` say, has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except UnicodeEncodeError as error:
        if error.reason != "surrogates not allowed":
            raise
        _say(f"error: {error.object!a}: a name that is not in UTF-8; rename it")
        sys.exit(2)
    except OSError as error:
        message = _describe(error)
        if message is None:
            raise
        _say(f"error: {message}")
        sys.exit(2)


def _say(line: str) -> None:
    # On a line of its own, though a progress bar may stand there; whole, though a thread writes too.
    tqdm.write(f"{line}\n", file=sys.stderr, end="")


def _tell_of_thread(failed: threading.ExceptHookArgs) -> None:
    """TensorBoard writes in a thread: a full disk there is told like anywhere."""
    message = _describe(failed.exc_value) if isinstance(failed.exc_value, OSError) else None
    if message is None:
        threading.__excepthook__(failed)
    else:
        sys.stderr.write(f"error: {message}\n")  # whole, though the main thread may leave meanwhile


def _describe(error: OSError) -> str | None:
    """The one line for a fault of the system; None where it could be a fault of ours."""
    names_a_file = isinstance(error.filename, str | bytes | os.PathLike)
    if error.errno in DISK_FULL:
        name = os.fsdecode(error.filename) if names_a_file else "a write failed"
        return f"{name}: {DISK_FULL[error.errno]}"
    if error.errno and names_a_file:
        return f"{os.fsdecode(error.filename)}: {os.strerror(error.errno)}"
    return None
