"""Which code a result is of: git's tree of `src/` as it stands there, committed or not."""

from __future__ import annotations

import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

SRC = Path(__file__).parents[2]
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Code:
    """The tree of `src/`, and the commit that is checked out; `dirty`: their trees differ.

    A commit that leaves `src/` alone changes no tree, and changes that are committed later keep theirs.
    """

    src: str
    commit: str
    dirty: bool

    @property
    def told(self) -> str:
        """`1a2b3c4`, or `1a2b3c4 and changes`."""
        return self.commit[:7] + " and changes" * self.dirty


def code_of(src: Path = SRC) -> Code:
    """Outside a repository, or without git, all of it is unknown."""
    try:
        commit, tree = _git(src, "rev-parse", "HEAD", "HEAD:./").split()
        # Past the repository's own index and store, which are the user's
        with tempfile.TemporaryDirectory() as folder:
            store = _git(src, "rev-parse", "--path-format=absolute", "--git-path", "objects")
            apart = {
                "GIT_INDEX_FILE": f"{folder}/index",
                "GIT_OBJECT_DIRECTORY": folder,
                "GIT_ALTERNATE_OBJECT_DIRECTORIES": store,
            }
            _git(src, "read-tree", "HEAD", **apart)
            _git(src, "add", "--all", ".", **apart)
            prefix = _git(src, "rev-parse", "--show-prefix")
            now = _git(src, "write-tree", f"--prefix={prefix}", **apart)
    except (OSError, subprocess.CalledProcessError):
        return Code(UNKNOWN, UNKNOWN, dirty=False)
    return Code(now, commit, dirty=now != tree)


def _git(folder: Path, *words: str, **environment: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *words],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | environment,
    )
    return done.stdout.strip()
