"""The same short runs by two commits: does the same come out, to the bit?

python tests/guard.py [--against COMMIT] [--jobs 2] [--only NAME ...] [--list]

For changes that move code and must not change results. The working tree and COMMIT (default: the
merge base with main; on main HEAD, or the one before where nothing is changed) curate, train, embed,
score, export and search, by their scripts alone, in one thread, from the same images, which COMMIT
draws. Prints a table, and exits with 1 where anything differs or fails, with 2 where nothing could be
compared. No hash is kept: it would hold for one kind of processor and one version of torch. What is
made of a run that differs differs too: mend the first. A run for which a tree has no script is left out.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from guard_files import content, difference, pass_over
from guard_inputs import prepare
from guie.config.loading import parsed, to_yaml

REPOSITORY = Path(__file__).parents[1]
PLAN = parsed(Path(__file__).with_name("guard.yaml").read_text(encoding="utf-8")).plain
QUIET = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
QUIET |= {"CUDA_VISIBLE_DEVICES": ""}
EQUAL, LEFT_OUT = "equal", "left out: "
PASSED = f"{EQUAL}, but for what may differ"

Row = tuple[str, str, str]  # run, file, verdict
MayDiffer = dict[str, float | None]


class Fault(Exception):
    """Nothing can be compared; why, in one line."""


@dataclass
class Side:
    """One of the two trees, the folder that its runs work in, and why some of them gave nothing."""

    name: str
    tree: Path
    folder: Path
    older: bool = False
    failed: dict[str, str] = field(default_factory=dict)

    def call(self, *command: str) -> str | None:
        """Run Python on a script of this tree; why it failed, if it did."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("ACCELERATE_")}
        done = subprocess.run(
            [sys.executable, *command],
            cwd=self.folder,
            env=inherited | QUIET | {"PYTHONPATH": f"{self.tree}/src{os.pathsep}{self.tree}/input"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        return reason(done.stderr or done.stdout) if done.returncode else None

    def check_code(self) -> None:
        """Raises Fault where this tree would run other code."""
        found = self.call("-c", "import guie, sys; sys.exit(guie.__file__)")
        if not (found or "").startswith(str(self.tree)):
            raise Fault(f"{self.name}: Python imports guie from elsewhere: {found}")

    def draw(self) -> None:
        """Draw the images. Raises Fault where that fails."""
        for name, words in PLAN["images"].items():
            drawn = ("--out", f"drawn/{name}", "--workers", "1", *words.split())
            if error := self.call("-m", "toydomains", *drawn):
                raise Fault(f"{self.name}: python -m toydomains fails: {error}")

    def do(self, name: str) -> None:
        """A run of the plan; `failed` has those that give nothing."""
        run = PLAN["runs"][name]
        run = run | run.get("then", {}) if self.older else run
        lines = [run["do"]] if isinstance(run["do"], str) else run["do"]
        commands = [shlex.split(line.format(tree=self.tree)) for line in lines]
        words = [word for command in commands for word in command]
        lacks = [w for w in words if w.startswith(str(self.tree)) and not Path(w).is_file()]
        lacks += [needed for needed in run.get("needs", "").split() if needed in self.failed]
        if lacks:
            stale = "remove `then`: " if self.older and "then" in run else LEFT_OUT
            self.failed[name] = f"{stale}no {Path(lacks[0]).name} in {self.name}"
            return
        if config := run.get("config"):
            values = {**PLAN["common"], "name": name, **config} if "stages" in config else config
            (self.folder / f"{name}.yaml").write_text(to_yaml(values), encoding="utf-8")
        for command in commands:
            if error := self.call(*command):
                self.failed[name] = f"fails in {self.name}: {error}"
                return


def reason(output: str) -> str:
    """The line of a script's output with the reason of its failure."""
    lines = [line.strip() for line in re.split(r"[\r\n]+", output) if line.strip()] or ["no word"]
    return next((line for line in lines if line.startswith("error:")), lines[-1])


def compared(
    run: str, then: Side, now: Side, patterns: Iterable[str], may_differ: MayDiffer | None = None
) -> list[Row]:
    """A row for each file of a run, found by the patterns on either side, and each needless `may_differ`."""
    gone = [side.failed[run] for side in (then, now) if run in side.failed]
    if gone:  # failures come first
        gone = sorted(dict.fromkeys(gone), key=lambda why: why.startswith(LEFT_OUT))
        return [(run, "-", "; ".join(gone))]
    found = {
        str(file.relative_to(side.folder))
        for side in (then, now)
        for pattern in patterns
        for file in side.folder.glob(pattern)
    }
    if not found:
        return [(run, "-", "leaves none of the files that it should")]
    unused = dict(may_differ or {})
    rows = [
        (run, name, verdict(name, then, now, may_differ or {}, unused)) for name in sorted(found)
    ]
    return rows + [(run, pattern, "may differ and does not; remove it") for pattern in unused]


def verdict(name: str, then: Side, now: Side, may_differ: MayDiffer, unused: MayDiffer) -> str:
    """Of one file; what may differ and does is taken out of `unused`."""
    there = [side for side in (then, now) if (side.folder / name).exists()]
    if len(there) == 1:
        passed = [pattern for pattern in may_differ if fnmatchcase(name, pattern)]
        for pattern in passed:
            unused.pop(pattern, None)
        return PASSED if passed else f"only in {there[0].name}"
    try:
        contents = [content(side.folder / name) for side in (then, now)]
    except (OSError, ValueError, KeyError, RuntimeError, zipfile.BadZipFile) as error:
        return f"cannot be read: {type(error).__name__}: {reason(str(error))}"
    passed = set(pass_over(name, *contents, may_differ))
    for pattern in passed:
        unused.pop(pattern, None)
    equal = PASSED if passed else EQUAL
    return difference(*contents, names=(then.name, now.name)) or equal


def git(*words: str) -> str:
    """The output of git. Raises Fault where it fails."""
    done = subprocess.run(["git", "-C", REPOSITORY, *words], capture_output=True, text=True)
    if done.returncode:
        raise Fault(f"git {' '.join(words)}: {reason(done.stderr)}; give --against COMMIT")
    return done.stdout.strip()


def default_commit() -> str:
    """The merge base with main; on main HEAD, or the one before where the tree is HEAD's."""
    base = git("merge-base", "HEAD", "main")
    if base != git("rev-parse", "HEAD"):
        return base
    return "HEAD" if git("status", "--porcelain", "--", "src", "configs", "input") else "HEAD~1"


def copy_tree(folder: Path, *within: str) -> None:
    """Copy the files of the working tree that git does not ignore."""
    names = git("ls-files", "-z", "--cached", "--others", "--exclude-standard", *within)
    for name in filter(lambda name: (REPOSITORY / name).is_file(), names.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(REPOSITORY / name, folder / name, follow_symlinks=False)


@contextmanager
def both_sides(commit: str) -> Iterator[tuple[Side, Side]]:
    """COMMIT, and a copy of the working tree as it is now, so that it may be edited meanwhile."""
    name = git("rev-parse", "--short", "--verify", f"{commit}^{{commit}}")
    with tempfile.TemporaryDirectory(prefix="guard-") as scratch:
        roots = Path(scratch).resolve() / "then", Path(scratch).resolve() / "now"
        then, now = (root / "tree" for root in roots)
        copy_tree(now, "src", "configs", "input")
        git("worktree", "add", "--quiet", "--detach", str(then), name)
        try:
            yield Side(name, then, roots[0], older=True), Side("the working tree", now, roots[1])
        finally:
            git("worktree", "remove", "--force", str(then))


def with_needs(names: Iterable[str]) -> set[str]:
    """Runs, also by groups, and those whose results they take. Raises Fault for one that there is not."""
    wanted = set()
    for name in [run for given in names for run in PLAN["groups"].get(given, given).split()]:
        if name not in PLAN["runs"]:
            raise Fault(f"--only {name}: no such run or group; --list shows them")
        wanted |= {name} | with_needs(PLAN["runs"][name].get("needs", "").split())
    return wanted


def guard(commit: str, names: Iterable[str], jobs: int) -> list[Row]:
    """All rows of the table."""
    wanted = with_needs(names)
    plan = {name: run for name, run in PLAN["runs"].items() if name in wanted}
    with both_sides(commit) as (then, now), ThreadPoolExecutor(jobs) as pool:
        list(pool.map(Side.check_code, (then, now)))
        then.draw()
        prepare(then.folder / "drawn")
        for side in (then, now):
            shutil.copytree(then.folder / "drawn", side.folder / "input")
        rows: list[Row] = []
        bar = tqdm(plan.items(), desc=f"{now.name} against {then.name}")
        for name, run in bar:
            bar.set_postfix_str(name)
            list(pool.map(lambda side, name=name: side.do(name), (then, now)))
            rows += compared(name, then, now, files_of(name, run), run.get("may_differ"))
    return rows


def files_of(name: str, run: dict[str, Any]) -> list[str]:
    """Patterns of the files to compare: those of the run, else those of a run folder."""
    named = run.get("files", f"runs/{name}/ *.jsonl *.safetensors classes.txt summary.json").split()
    folder = named.pop(0) if named[0].endswith("/") else ""
    return [folder + pattern for pattern in named]


def main(argv: list[str] | None = None) -> int:
    """Exit code: 0 where all is equal."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--against", metavar="COMMIT", help="default: the merge base with main")
    parser.add_argument("--jobs", type=int, default=2, choices=(1, 2), help="trees at a time")
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="these runs or groups, and what they need"
    )
    parser.add_argument("--list", action="store_true", help="the names of the runs, by group")
    args = parser.parse_args(argv)
    if args.list:
        print("\n".join(f"{group}: {runs}" for group, runs in PLAN["groups"].items()))
        return 0
    began = time.monotonic()
    torch.set_num_threads(1)
    rows = guard(args.against or default_commit(), args.only or PLAN["runs"], args.jobs)
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    for run, file, found in rows:
        print(f"{run:{widths[0]}}  {file:{widths[1]}}  {found}")
    unlike = [row for row in rows if not row[2].startswith((EQUAL, LEFT_OUT))]
    left_out = sum(row[2].startswith(LEFT_OUT) for row in rows)
    print(
        f"{len(rows) - len(unlike) - left_out} equal, {len(unlike)} not, {left_out} runs left out,"
        f" in {time.monotonic() - began:.0f} s"
    )
    return 1 if unlike else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Fault as fault:
        print(f"error: {fault}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
