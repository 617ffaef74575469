"""Run a script in a process that ends with its parent, even if the parent is killed.

python -m guie.base.child PARENT SCRIPT [WORD ...]

`prctl` is called here and not between fork and exec. In a process with many threads, code at that point can
deadlock on a lock that another thread held.
"""

import ctypes
import os
import runpy
import signal
import sys

from guie.base.processes import PR_SET_PDEATHSIG


def main(parent: int, script: str, words: list[str]) -> None:
    """Run the script as Python does; it gets SIGTERM when the parent process ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # the parent ended before `prctl`
        sys.exit(128 + signal.SIGTERM)
    sys.argv = [script, *words]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
