"""The same short runs by two commits: does the same come out, to the bit?

python tests/guard.py [--against COMMIT] [--jobs 2] [--only NAME ...] [--list]

For changes that move code and must not change results. The working tree and COMMIT (default: the
merge base with main; on main HEAD, or the one before where nothing is changed) draw, curate, train,
embed, score and export, by the scripts of src/ alone, in one thread, from the same images. Prints a
table, and exits with 1 where anything differs or fails, with 2 where nothing could be compared. No
hash is kept: it would hold for one kind of processor and one version of torch. What is made of a
run that differs differs too: mend the first. A run for which a tree has no script is left out.
"""

from __future__ import annotations

import argparse
import os
import re
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
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import yaml
from tqdm import tqdm

from guard_files import content, difference

REPOSITORY = Path(__file__).parents[1]
PLAN = yaml.safe_load(Path(__file__).with_name("guard.yaml").read_text(encoding="utf-8"))
QUIET = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
QUIET |= {"CUDA_VISIBLE_DEVICES": ""}
EQUAL, LEFT_OUT = "equal", "left out: "

Row = tuple[str, str, str]  # run, file, verdict


class Fault(Exception):
    """Nothing can be compared; why, in one line."""


@dataclass
class Side:
    """One of the two trees, the folder that its runs work in, and why some of them gave nothing."""

    name: str
    tree: Path
    folder: Path
    failed: dict[str, str] = field(default_factory=dict)

    def call(self, *command: str) -> str | None:
        """Run Python on a script of this tree; why it failed, if it did."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("ACCELERATE_")}
        done = subprocess.run(
            [sys.executable, *command],
            cwd=self.folder,
            env=inherited | QUIET | {"PYTHONPATH": str(self.tree / "src")},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        return reason(done.stderr or done.stdout) if done.returncode else None

    def draw(self) -> None:
        """Draw the images. Raises Fault where this tree would run other code, or draws nothing."""
        found = self.call("-c", "import guie, sys; sys.exit(guie.__file__)")
        if not (found or "").startswith(str(self.tree)):
            raise Fault(f"{self.name}: Python imports guie from elsewhere: {found}")
        module = "toydomains" if (self.tree / "src/toydomains").is_dir() else "guie.toy"
        for name, words in PLAN["images"].items():
            drawn = ("--out", f"drawn/{name}", "--workers", "1", *words.split())
            if said := self.call("-m", module, *drawn):
                raise Fault(f"{self.name}: python -m {module} fails: {said}")

    def do(self, name: str) -> None:
        """A run of the plan; `failed` tells where it gives nothing."""
        run = PLAN["runs"][name]
        words = [self.path(word.format(tree=self.tree)) for word in run["do"].split()]
        lacks = [w for w in words if w.startswith(str(self.tree)) and not Path(w).is_file()]
        lacks += [needed for needed in run.get("needs", "").split() if needed in self.failed]
        if lacks:
            self.failed[name] = f"{LEFT_OUT}no {Path(lacks[0]).name} in {self.name}"
            return
        if config := run.get("config"):
            values = {**PLAN["common"], "name": name, **config} if "stages" in config else config
            (self.folder / f"{name}.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
        if said := self.call(*words):
            self.failed[name] = f"fails in {self.name}: {said}"

    def path(self, word: str) -> str:
        """A config of configs/smoke by the name it had until 2026-11-25, in a tree that old."""
        folder, name = self.tree / "configs/smoke", Path(word).stem
        if folder.is_dir() or Path(word).parent != folder:
            return word
        return str(self.tree / f"configs/{'smoke' if name == 'train' else f'{name}_smoke'}.yaml")


def reason(said: str) -> str:
    """The line of a script's output that tells why it failed."""
    lines = [line.strip() for line in re.split(r"[\r\n]+", said) if line.strip()] or ["no word"]
    return next((line for line in lines if line.startswith("error:")), lines[-1])


def compared(run: str, then: Side, now: Side, patterns: Iterable[str]) -> list[Row]:
    """A row for each file of a run; the files are those that the patterns find on either side."""
    gone = [side.failed[run] for side in (then, now) if run in side.failed]
    if gone:  # what fails is told first
        gone = sorted(dict.fromkeys(gone), key=lambda why: why.startswith(LEFT_OUT))
        return [(run, "-", "; ".join(gone))]
    found = {
        str(file.relative_to(side.folder))
        for side in (then, now)
        for pattern in patterns
        for file in side.folder.glob(pattern)
    }
    return [(run, name, verdict(name, then, now)) for name in sorted(found)] or [
        (run, "-", "leaves none of the files that it should")
    ]


def verdict(name: str, then: Side, now: Side) -> str:
    """Of one file."""
    there = [side for side in (then, now) if (side.folder / name).exists()]
    if len(there) == 1:
        return f"only in {there[0].name}"
    try:
        contents = [content(side.folder / name) for side in (then, now)]
    except (OSError, ValueError, KeyError, RuntimeError, zipfile.BadZipFile) as error:
        return f"cannot be read: {type(error).__name__}: {reason(str(error))}"
    return difference(*contents, names=(then.name, now.name)) or EQUAL


def give_images(then: Side, now: Side) -> None:
    """Both sides work on the images of one. With a folder of some, where copies are planted."""
    for side in (then, now):
        shutil.copytree(then.folder / "drawn", side.folder / "input")
        plant(side.folder / "input", side.folder / "input/planted")


def plant(drawn: Path, folder: Path) -> None:
    """Classes of images with copies: equal, nearly, of another label, of test; and half a file."""
    classes = drawn.glob("toy_pretrain_smoke/images/*/*")
    chosen = sorted(path for path in classes if len(list(path.iterdir())) > 3)[:6]
    for number, path in enumerate(chosen):
        shutil.copytree(path, folder / f"class{number}")
    first, *others = sorted((folder / "class0").iterdir())
    data = bytearray(first.read_bytes())
    data[data.index(b"\xff\xdb") + 15] += 1  # a JPEG's divisor of one frequency
    (folder / "class0/near.jpg").write_bytes(data)
    (folder / "class0/cut.jpg").write_bytes(data[: len(data) // 2])
    shutil.copy2(others[0], folder / "class0/again.jpg")
    shutil.copy2(others[1], folder / "class1/other.jpg")
    table = pd.read_csv(drawn / "toy_smoke/manifest.csv")
    tested = drawn / "toy_smoke" / table.loc[table["split"] == "test", "image_path"].iloc[0]
    shutil.copy2(tested, folder / "class2/leak.jpg")


def git(*words: str) -> str:
    """What git says. Raises Fault where it fails."""
    done = subprocess.run(["git", "-C", REPOSITORY, *words], capture_output=True, text=True)
    if done.returncode:
        raise Fault(f"git {' '.join(words)}: {reason(done.stderr)}; give --against COMMIT")
    return done.stdout.strip()


def default_commit() -> str:
    """The merge base with main; on main HEAD, or the one before where the tree is HEAD's."""
    base = git("merge-base", "HEAD", "main")
    if base != git("rev-parse", "HEAD"):
        return base
    return "HEAD" if git("status", "--porcelain", "--", "src", "configs") else "HEAD~1"


@contextmanager
def both_sides(commit: str) -> Iterator[tuple[Side, Side]]:
    """COMMIT, and a copy of the working tree as it is now, so that it may be edited meanwhile."""
    name = git("rev-parse", "--short", "--verify", f"{commit}^{{commit}}")
    with tempfile.TemporaryDirectory(prefix="guard-") as scratch:
        roots = Path(scratch).resolve() / "then", Path(scratch).resolve() / "now"
        then, now = (root / "tree" for root in roots)
        for part in ("src", "configs"):
            hidden = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(REPOSITORY / part, now / part, ignore=hidden)
        git("worktree", "add", "--quiet", "--detach", str(then), name)
        try:
            yield Side(name, then, roots[0]), Side("the working tree", now, roots[1])
        finally:
            git("worktree", "remove", "--force", str(then))


def with_needs(names: Iterable[str]) -> set[str]:
    """Runs, and those whose results they take. Raises Fault for one that there is not."""
    wanted = set()
    for name in names:
        if name not in PLAN["runs"]:
            raise Fault(f"--only {name}: no such run; --list shows them")
        wanted |= {name} | with_needs(PLAN["runs"][name].get("needs", "").split())
    return wanted


def guard(commit: str, names: Iterable[str], jobs: int) -> list[Row]:
    """All rows of the table."""
    wanted = with_needs(names)
    plan = {name: run for name, run in PLAN["runs"].items() if name in wanted}
    with both_sides(commit) as (then, now), ThreadPoolExecutor(jobs) as pool:
        list(pool.map(Side.draw, (then, now)))
        rows = [("drawing", name, verdict(f"drawn/{name}", then, now)) for name in PLAN["images"]]
        give_images(then, now)
        bar = tqdm(plan.items(), desc=f"{now.name} against {then.name}")
        for name, run in bar:
            bar.set_postfix_str(name)
            list(pool.map(lambda side, name=name: side.do(name), (then, now)))
            rows += compared(name, then, now, files_of(name, run))
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
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these runs, and what they need")
    parser.add_argument("--list", action="store_true", help="the names of the runs")
    args = parser.parse_args(argv)
    if args.list:
        print("\n".join(PLAN["runs"]))
        return 0
    began = time.monotonic()
    torch.set_num_threads(1)
    rows = guard(args.against or default_commit(), args.only or PLAN["runs"], args.jobs)
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    for run, file, found in rows:
        print(f"{run:{widths[0]}}  {file:{widths[1]}}  {found}")
    unlike = [row for row in rows if row[2] != EQUAL and not row[2].startswith(LEFT_OUT)]
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
