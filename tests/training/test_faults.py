"""Runs that meet what no check could see before: they end within seconds, in one line, and go on."""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from test_processes import SRC, TORCHRUN, environment

import embed
import kills
import two_processes
from guie.base.errors import UserError
from guie.config.loading import parsed, to_yaml
from guie.data import images
from guie.data.manifest import load_manifest
from guie.rows.readable import find_unreadable
from guie.rows.store import Store
from guie.training.run_folder import read_metrics
from kills import is_gone, until
from tiny_runs import tiny_run

FORK = multiprocessing.get_context("fork")  # children of whom it is known
MIDWAY = """
import sys, train
from guie.base import errors
from guie.training import loop
gradients, done = loop.gradients_within_memory, []

def failing(accelerator, *args):
    done.append(1)
    if len(done) == 4 and accelerator.process_index == 1:
        raise errors.UserError("out of memory")
    return gradients(accelerator, *args)

loop.gradients_within_memory = failing
errors.run(lambda _: train.main(sys.argv[1:]))
"""


class Run(NamedTuple):
    """A training that goes on and on, on images of its own."""

    words: list[str]
    folder: Path
    images: Path

    @property
    def steps(self) -> int:
        """How many have been logged."""
        return kills.count_lines(self.folder / "metrics.jsonl")

    @property
    def saved(self) -> int:
        """The step of the newest checkpoint."""
        return max(int(path.name[5:13]) for path in self.folder.glob("checkpoints/step_*"))


@pytest.fixture
def run(toy_manifest: Path, tmp_path: Path) -> Run:
    shutil.copytree(toy_manifest.parent, tmp_path / "toy")
    manifest = kills.with_validation(tmp_path / "toy" / toy_manifest.name)
    path = kills.write_config(tmp_path, manifest)
    config = parsed(path.read_text()).plain | {
        "out": str(tmp_path),
        "checkpoint_every": "1000000 steps",
    }
    config["stages"] = [config["stages"][0] | {"epochs": 10**4}]
    path.write_text(to_yaml(config))
    return Run(["--config", str(path)], tmp_path / "run", tmp_path / "toy" / "images")


class Started:
    """A training in one process that has taken some steps."""

    def __init__(self, run: Run, workers: int):
        self.said = run.folder.with_suffix(".said")
        words = [*run.words, "--set", f"data.workers={workers}"]
        self.process = FORK.Process(target=kills.train_in_child, args=(words, False, self.said))
        self.process.start()
        kills.Moment(lines=4).wait(run.folder / "metrics.jsonl", self.process)
        self.family = [self.process.pid, *kills.children_of(self.process.pid)]
        assert len(self.family) == 1 + workers, self.said.read_text()

    def end(self) -> tuple[int, str]:
        """Exit code, and the last line said, once it and its workers are gone."""
        self.process.join(120)
        assert until(lambda: all(map(is_gone, self.family)))
        return self.process.exitcode, self.said.read_text().splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_images_that_vanish_end_the_run_at_its_last_good_step(
    run: Run, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "WAITS_S", (0.1, 0.2))
    started = Started(run, workers)
    run.images.rename(run.images.with_name("away"))
    code, last = started.end()
    assert code == 2 and last.startswith(f"error: {run.images}") and last.endswith("no such image")
    assert "Traceback" not in started.said.read_text()
    assert run.saved == read_metrics(run.folder / "metrics.jsonl")[-1]["step"]


@pytest.mark.slow
def test_a_worker_that_is_killed_ends_the_run_at_its_last_good_step(run: Run) -> None:
    started = Started(run, 2)
    os.kill(started.family[-1], signal.SIGKILL)
    code, last = started.end()
    assert code == 2 and "a process that loads images died" in last
    assert run.saved == run.steps


@pytest.mark.slow
def test_workers_do_not_outlive_a_run_that_is_killed(run: Run) -> None:
    started = Started(run, 2)
    os.kill(started.process.pid, signal.SIGKILL)
    assert started.end()[0] == -signal.SIGKILL


def two(script: Path, words: list[str]) -> subprocess.Popen:
    """A script in two processes, as a user starts it."""
    return subprocess.Popen(
        [*TORCHRUN, str(script), *words], env=environment(), stderr=subprocess.PIPE, text=True
    )


def describe(process: subprocess.Popen) -> list[str]:
    """The lines of faults that two processes have said before they went, soon."""
    try:
        _, said = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode != 0
    return re.findall("error: .*", said)  # a progress bar of the other may stand before it


@pytest.mark.slow
def test_two_processes_stop_at_one_step_where_images_vanish(run: Run) -> None:
    process = two(SRC / "train.py", [*run.words, "--set", "data.workers=2"])
    kills.Moment(lines=4).wait(run.folder / "metrics.jsonl", _Like(process))
    run.images.rename(run.images.with_name("away"))
    faults = describe(process)
    assert 1 <= len(faults) <= 2 and all("no such image" in fault for fault in faults)
    assert run.saved == run.steps


@pytest.mark.slow
def test_one_of_two_processes_is_killed(run: Run) -> None:
    process = two(SRC / "train.py", run.words)
    kills.Moment(lines=4).wait(run.folder / "metrics.jsonl", _Like(process))
    os.kill(kills.children_of(process.pid)[-1], signal.SIGKILL)
    faults = describe(process)
    assert len(faults) <= 1 and all("another process of the run has exited" in f for f in faults)


@pytest.mark.slow
def test_one_of_two_processes_fails_in_the_middle_of_a_step(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "midway.py"
    script.write_text(MIDWAY)
    assert describe(two(script, run.words)) == ["error: out of memory"]


class _Like:
    """A `Popen` with the verbs of a `multiprocessing.Process`."""

    def __init__(self, process: subprocess.Popen):
        self.process = process

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def join(self, seconds: float) -> None:
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass


class Job(NamedTuple):
    """Embedding a toy benchmark with a tiny model."""

    words: list[str]
    out: Path
    images: Path


@pytest.fixture
def job(toy_manifest: Path, tmp_path: Path) -> Job:
    shutil.copytree(toy_manifest.parent, tmp_path / "toy")
    words = ["--model", str(tiny_run(tmp_path / "tiny")), "--batch-size", "16"]
    words += ["--manifest", str(tmp_path / "toy" / toy_manifest.name), "--workers", "0"]
    return Job([*words, "--out", str(tmp_path / "E.npz")], tmp_path / "E.npz", tmp_path / "toy")


def test_images_that_cannot_be_decoded_are_all_listed(job: Job, capsys) -> None:
    manifest = Path(job.words[job.words.index("--manifest") + 1])
    rows = manifest.read_text().splitlines(keepends=True)
    manifest.write_text("".join(rows[:61]))
    first, second = sorted(
        job.images / path for path in load_manifest(manifest).table["image_path"][:2]
    )
    for file in (first, second):
        file.write_bytes(file.read_bytes()[:99])
    with pytest.raises(UserError) as caught:
        embed.main(job.words)
    for file in (first, second):
        assert str(file.relative_to(job.images)) in str(caught.value)
    assert not job.out.exists()
    embed.main([*job.words, "--drop-bad"])
    known = np.load(job.out)["image_path"]
    assert str(first.relative_to(job.images)) not in known and len(known) == 58
    assert len((job.out.with_name("E.npz.dropped.csv")).read_text().splitlines()) == 3


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGTERM, "fault"])
def test_embedding_goes_on_where_it_was_stopped(
    job: Job, stop: signal.Signals | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    embed.main(job.words)
    whole = job.out.read_bytes()
    # The last to be read: batches are read ahead
    victim = job.images / str(np.load(job.out)["image_path"][-1])
    shutil.rmtree(job.out.with_name("E.npz.rows"))
    job.out.unlink()
    add, kept, done = Store.add, [], 0
    content = victim.read_bytes()

    def stopping(store, states, rows):
        add(store, states, rows)
        kept.extend([len(rows)] if store.dtype else [])  # not the checks of images
        if len(kept) == 2 and not done and stop == "fault":
            victim.write_bytes(content[:99])
        elif len(kept) == 2 and not done:
            os.kill(os.getpid(), stop)

    monkeypatch.setattr(Store, "add", stopping)
    code = "not a readable image" if stop == "fault" else str(128 + stop)
    with pytest.raises((SystemExit, UserError), match=code):
        embed.main(job.words)
    assert kept[:2] == [16, 16] and not job.out.exists()
    done = sum(kept)
    kept.clear()
    if stop == "fault":  # a file that is written again would be embedded again
        victim.write_bytes(content)
    embed.main(job.words)
    assert job.out.read_bytes() == whole
    assert sum(kept) == len(np.load(job.out)["image_path"]) - done


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "workers"), [(1, "2"), (2, "0")])
def test_an_image_that_breaks_after_the_look_ends_embedding(
    job: Job, workers: str, processes: int
) -> None:
    manifest = load_manifest(job.words[job.words.index("--manifest") + 1])
    find_unreadable(manifest.table, manifest.root, 1)
    victim = sorted(job.images.rglob("*.jpg"))[100]
    state, content = victim.stat(), victim.read_bytes()
    victim.write_bytes(bytes(32) + content[32:])
    os.utime(victim, ns=(state.st_atime_ns, state.st_mtime_ns))  # what tells a changed file
    words = [*job.words, "--workers", workers]
    if processes == 1:
        with pytest.raises(UserError, match=f"{victim}: not a readable image"):
            embed.main(words)
    else:
        said = job.out.with_name("said")
        assert two_processes.end(two_processes.start("embed", words, said)) == [2, 2]
        assert said.read_text().count(f"error: {victim}: not a readable image") == 1
    assert not job.out.exists()
