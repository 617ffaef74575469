"""Errors that are the user's to mend, told in one line instead of a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence


class UserError(Exception):
    """A fault in the input: a config key, a manifest row, a file. The message names it and the remedy."""


def run(main: Callable[[Sequence[str] | None], object]) -> None:
    """Run a script's `main` as a command: exit code 2 and one clear line where the user is at fault."""
    try:
        main(None)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output, `| head` say, has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
