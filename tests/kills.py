"""Kill a training run with SIGKILL, again and again, and see whether it ends at the same bits.

python tests/kills.py [--kills 20] [--seed 0]

A chain is one run, killed at random moments and resumed until it ends; its weights, optimiser
state and metrics log must be those of a run that nobody touched. A moment is a step of the run and
some milliseconds: where the step is past already, the kill falls into the start. Chains alternate
between 0 and 2 loader workers; one kill in five cuts a checkpoint in half. With workers one of them
is killed in place of the run, which then ends by itself. In every chain all images vanish once, and
come back after two seconds: the run goes on. Draws its own images.
"""

import argparse
import io
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch

from guie.config.loading import to_yaml

# The server imports the script once; each run is a fork of it, and starts in milliseconds.
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["train"])
AWAY_S = 2.0
SAME = ("model.safetensors", "last.safetensors", "metrics.jsonl", "classes.txt")


@dataclass(frozen=True)
class Moment:
    """What to do, and when: so long after the metrics log has so many lines; or while saving."""

    lines: int = 0
    after_s: float = 0.0
    in_save: bool = False
    of: str = "run"  # killed; or a "worker" of it; or the "images" go away for AWAY_S

    def __str__(self) -> str:
        if self.in_save:
            return "in the middle of writing a checkpoint"
        return f"{self.of}, {self.after_s * 1000:.0f} ms after line {self.lines} of the log"

    def wait(self, log: Path, process: multiprocessing.Process, before: int | None = None) -> None:
        """Return when the moment has come, or the process has ended.

        Args:
            before: `inode` of the log as the process began; what is not the run waits for its steps.
        """
        while process.is_alive() and count_lines(log) < self.lines:
            process.join(0.002)
        while process.is_alive() and self.of != "run" and inode(log) == before:
            process.join(0.002)  # a run writes its log anew when its steps begin
        process.join(self.after_s)

    def act(self, process: multiprocessing.Process, images: Path) -> None:
        """Do it."""
        if self.of == "run":
            process.kill()
        elif self.of == "worker":
            while process.is_alive() and not kill_a_worker(process.pid):
                process.join(0.002)
        else:
            away = images.rename(images.with_name("away"))
            process.join(AWAY_S)
            away.rename(images)


def kill_a_worker(pid: int) -> bool:
    """Kill the last loader process; is there any?"""
    workers = [child for child in children_of(pid) if command(child) == command(pid)]  # not git
    if workers:
        with suppress(ProcessLookupError):
            os.kill(workers[-1], signal.SIGKILL)
    return bool(workers)


def command(pid: int) -> bytes | None:
    """A process's command line, which its forks share."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return None


def children_of(pid: int) -> list[int]:
    """Processes that a process began and that still run."""
    with suppress(OSError):
        return [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def until(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    ends = time.monotonic() + seconds
    while not condition() and time.monotonic() < ends:
        time.sleep(0.02)
    return condition()


def is_gone(pid: int) -> bool:
    """Ended, though nobody may have asked for its exit code yet."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def inode(file: Path) -> int | None:
    """Which file it is; None: there is none."""
    return file.stat().st_ino if file.exists() else None


def count_lines(log: Path) -> int:
    """Lines of the log, 0 before there is one."""
    return log.read_bytes().count(b"\n") if log.exists() else 0


def write_config(folder: Path, manifest: Path) -> Path:
    """Two stages, round robin, batch statistics, dropout, early stopping, EMA: all that has state."""
    rates = {"head": 1e-3, "classes": 1e-2}
    config = {
        "name": "run",
        "log_every": "1 step",
        "checkpoint_every": "2 steps",
        "data": {"manifest": str(manifest)},
        "model": {
            "backbone": {"library": "open_clip", "name": "guie-tiny"},
            "image": {"size_px": 32},
            "head": {"norm": "bn", "dropout": 0.2},
        },
        "train": {"batch_size": 16, "augment": {"color": 0.2, "flip": 0.5}},
        "stages": [
            {"name": "head", "epochs": 0.7, "lr": rates},
            {
                "name": "full",
                "epochs": 2,
                "lr": {"backbone": 1e-4, **rates},
                "sampler": "round_robin",
                "validate_every": "3 steps",
                "patience": 4,
                "ema_decay": 0.9,
            },
        ],
    }
    path = folder / "kills.yaml"
    path.write_text(to_yaml(config))
    return path


def train_in_child(words: list[str], in_save: bool = False, said: str = os.devnull) -> None:
    """The child's work: `train.py` with these words; what it says goes to a file."""
    import train
    from guie.base import errors

    say_into(said)
    torch.set_num_threads(1)
    multiprocessing.set_start_method("fork", force=True)  # else its workers were the server's
    if in_save:
        torch.save = _dying_save
    errors.run(lambda _: train.main(words))


def say_into(file: str | Path) -> None:
    """Let this process, until it ends, say all into a file."""
    sys.stdout = sys.stderr = open(file, "a", buffering=1)
    for number in (1, 2):
        os.dup2(sys.stdout.fileno(), number)


def _dying_save(value: object, file: IO[bytes]) -> None:
    """Half of a checkpoint; training takes some steps before the end."""
    buffer = io.BytesIO()
    _SAVE(value, buffer)
    file.write(buffer.getvalue()[: len(buffer.getvalue()) // 2])
    file.flush()
    time.sleep(random.random() / 20)
    os.kill(os.getpid(), signal.SIGKILL)


_SAVE = torch.save


def run(
    words: list[str], folder: Path, kill: Moment | None = None, images: Path | None = None
) -> int:
    """Train into `folder` in a process of its own; kill it. Returns its exit code."""
    in_save = kill is not None and kill.in_save
    # The log of a hundred runs helps nobody; a failure shows in the exit code.
    process = SERVER.Process(target=train_in_child, args=(words, in_save))
    log = folder / "metrics.jsonl"
    before = inode(log)
    process.start()
    if kill and not in_save:
        kill.wait(log, process, before)
        kill.act(process, images)
    process.join()
    return process.exitcode


def chain(
    words: list[str], folder: Path, moments: Iterable[Moment], images: Path | None = None
) -> list[str]:
    """Train, kill, resume ... until the run ends or the moments do.

    Returns what each kill left as the newest checkpoint.
    """
    left = []
    for moment in moments:
        code = run([*words, "--resume"], folder, moment, images)
        if code == 0:
            return left
        expected = 2 if moment.of == "worker" else -signal.SIGKILL
        assert code == expected, f"{moment}: the run ended with code {code}"
        found = sorted(path.name for path in (folder / "checkpoints").glob("step_*"))
        left.append(found[-1] if found else "no checkpoint")
        print(f"  killed {moment}: {left[-1]} is left", flush=True)
    assert run([*words, "--resume"], folder) == 0
    return left


def differences(one: Path, other: Path) -> list[str]:
    """What is not bit-identical in two finished runs: files, and the newest checkpoints' values."""
    files = [name for name in SAME if (one / name).read_bytes() != (other / name).read_bytes()]
    saved = [
        torch.load(max((run / "checkpoints").glob("step_*")), weights_only=True)
        for run in (one, other)
    ]
    return files + [key for key in saved[0] if not _equal(saved[0][key], saved[1][key])]


def _equal(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(_equal, a, b))
    return a == b


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    import toydomains
    from tiny_runs import mix_with_val

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        manifest = toydomains.draw(folder / "toy", images=200, seed=1, workers=1)
        mix = mix_with_val(manifest, manifest.with_name("mix.csv"))
        config = write_config(folder, mix)
        words = ["--config", str(config), "--set", f"out={folder / 'whole'}"]
        whole = folder / "whole" / "run"
        assert run(words, whole) == 0
        print(f"uninterrupted: {count_lines(whole / 'metrics.jsonl')} lines of log")
        study(words, whole, args.kills, random.Random(args.seed), folder / "toy" / "images")


def study(words: list[str], whole: Path, wanted: int, draw: random.Random, images: Path) -> None:
    """Chains until so many kills have happened; exits with code 1 at the first difference."""
    lines, done, number = count_lines(whole / "metrics.jsonl"), 0, 0
    while done < wanted:
        out, workers = whole.parents[1] / f"chain{number}", 2 * (number % 2)
        # The last runs on to the end, without its images for a while.
        kinds = ["run", "worker" if workers else "run", "run", "run", "images"]
        steps = sorted(draw.sample(range(lines), len(kinds)))
        moments = [
            Moment(step, draw.uniform(0.0, 0.3), of=kind)
            for step, kind in zip(steps, kinds, strict=True)
        ]
        moments.insert(draw.randrange(5), Moment(in_save=True))
        again = ["--set", f"out={out}", "--set", f"data.workers={workers}"]
        done += len(chain([*words, *again], out / "run", moments, images))
        wrong = differences(whole, out / "run")
        if wrong:
            raise SystemExit(f"chain {number}: differs in {', '.join(wrong)}")
        print(f"chain {number}: {workers} workers, {done} kills so far, identical to the bit")
        number += 1
    print(f"{done} kills survived, {number} runs identical to the uninterrupted one")


if __name__ == "__main__":
    main()
