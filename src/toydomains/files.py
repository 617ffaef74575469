"""Files that are either whole or absent: write beside, then rename."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it into place if the block succeeds.

    Raises:
        OSError: the file cannot be written; it names `path`, of which the old state is left.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # The suffix stays last: pictures are written in the format that it names.
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.tmp{path.suffix}")
    try:
        yield temporary
        _sync(temporary)
        os.replace(temporary, path)
    except OSError as error:
        if error.errno is None or error.filename not in (None, str(temporary)):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        with suppress(OSError):  # where nothing could be written, there is nothing to remove
            temporary.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    """Wait until the disk holds it: a renamed file may else be empty after a power cut."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())
