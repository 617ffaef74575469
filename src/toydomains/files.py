"""Write files atomically: write a temporary file in the same folder, then rename it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to `path`; rename it into place if the block succeeds.

    Raises:
        OSError: the file cannot be written; it names `path`, whose old content is unchanged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # The suffix stays last, because it selects the format of a picture.
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
        with suppress(OSError):  # there may be no file to remove
            temporary.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    """Flush the file to disk; otherwise a renamed file may be empty after a power cut."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())
