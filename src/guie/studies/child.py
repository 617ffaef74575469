"""A script of a study as a process that ends with the study, however that ends.

python -m guie.studies.child PARENT SCRIPT [WORD ...]

The system is asked here, not between fork and exec: code that runs there in a process of many threads
may wait for ever for a lock that another thread held.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys

from guie.base.processes import PR_SET_PDEATHSIG


def main(parent: int, script: str, words: list[str]) -> None:
    """Run the script as Python does, under a SIGTERM as soon as the parent is gone."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it went before the system was asked
        sys.exit(128 + signal.SIGTERM)
    sys.argv = [script, *words]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
