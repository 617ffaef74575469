"""Faults in the middle of a run: it ends within seconds, in one line, and can be resumed."""

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
from guie.rows.checks import find_unreadable
from guie.rows.store import Store
from guie.training.run_folder import read_metrics
from kills import is_gone, until
from tiny_runs import mix_with_val, tiny_run

pytestmark = pytest.mark.slow
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
    """A training without end, on images of its own."""

    words: list[str]
    folder: Path
    images: Path

    @property
    def log(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def saved(self) -> int:
        """The step of the newest checkpoint."""
        return max(int(path.name[5:13]) for path in self.folder.glob("checkpoints/step_*"))

    def take_images_away(self) -> None:
        self.images.rename(self.images.with_name("away"))


@pytest.fixture
def run(toy_manifest: Path, tmp_path: Path) -> Run:
    shutil.copytree(toy_manifest.parent, tmp_path / "toy")
    manifest = tmp_path / "toy" / toy_manifest.name
    path = kills.write_config(tmp_path, mix_with_val(manifest, manifest.with_name("mix.csv")))
    config = parsed(path.read_text()).plain
    config |= {"out": str(tmp_path), "checkpoint_every": "1000000 steps"}
    config["stages"] = [config["stages"][0] | {"epochs": 10**4}]
    path.write_text(to_yaml(config))
    return Run(["--config", str(path)], tmp_path / "run", tmp_path / "toy" / "images")


class Started:
    """A training in one process that has taken some steps."""

    def __init__(self, run: Run, workers: int):
        self.output = run.folder.with_suffix(".output")
        words = [*run.words, "--set", f"data.workers={workers}"]
        self.process = FORK.Process(target=kills.train_in_child, args=(words, False, self.output))
        self.process.start()
        kills.Moment(lines=4).wait(run.log, self.process)
        self.family = [self.process.pid, *kills.children_of(self.process.pid)]
        assert len(self.family) == 1 + workers, self.output.read_text()

    def end(self) -> tuple[int, str]:
        """Exit code, and the last line printed, once it and its workers are gone."""
        self.process.join(120)
        assert until(lambda: all(map(is_gone, self.family)))
        return self.process.exitcode, self.output.read_text().splitlines()[-1]


@pytest.mark.parametrize("workers", [0, 2])
def test_images_that_vanish_end_the_run_at_its_last_good_step(
    run: Run, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "WAITS_S", (0.1, 0.2))
    started = Started(run, workers)
    run.take_images_away()
    code, last = started.end()
    assert code == 2 and last.startswith(f"error: {run.images}") and last.endswith("no such image")
    assert "Traceback" not in started.output.read_text()
    assert run.saved == read_metrics(run.log)[-1]["step"]


@pytest.mark.parametrize("victim", ["worker", "run"])
def test_loader_processes_and_their_run_end_together(run: Run, victim: str) -> None:
    started = Started(run, 2)
    os.kill(started.family[-1 if victim == "worker" else 0], signal.SIGKILL)
    code, last = started.end()
    if victim == "run":
        assert code == -signal.SIGKILL
        return
    assert code == 2 and "a process that loads images died" in last
    assert run.saved == kills.count_lines(run.log)


def two(script: Path, words: list[str]) -> subprocess.Popen:
    """A script in two processes, as a user starts it."""
    return subprocess.Popen(
        [*TORCHRUN, str(script), *words], env=environment(), stderr=subprocess.PIPE, text=True
    )


def faults_of(process: subprocess.Popen) -> list[str]:
    """The errors that two processes printed before they ended, soon."""
    try:
        _, printed = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode != 0
    return re.findall("error: .*", printed)  # a progress bar of the other may be on the line


@pytest.mark.parametrize("fault", ["no images", "killed", "in a step"])
def test_two_processes_end_together(run: Run, fault: str, tmp_path: Path) -> None:
    script = SRC / "train.py"
    if fault == "in a step":
        script = tmp_path / "midway.py"
        script.write_text(MIDWAY)
    process = two(script, [*run.words, "--set", "data.workers=2"])
    if fault != "in a step":
        assert until(lambda: kills.count_lines(run.log) >= 4 or process.poll() is not None)
    if fault == "no images":
        run.take_images_away()
        faults = faults_of(process)
        assert 1 <= len(faults) <= 2 and all("no such image" in one for one in faults)
        assert run.saved == kills.count_lines(run.log)
    elif fault == "killed":
        os.kill(kills.children_of(process.pid)[-1], signal.SIGKILL)
        faults = faults_of(process)
        assert len(faults) <= 1 and all(
            "another process of the run has exited" in f for f in faults
        )
    else:
        assert faults_of(process) == ["error: out of memory"]


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


@pytest.mark.parametrize("stop", [signal.SIGTERM, "fault"])
def test_embedding_resumes_where_it_was_stopped(
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


def test_an_image_that_breaks_after_the_check_ends_both_processes(job: Job) -> None:
    manifest = load_manifest(job.words[job.words.index("--manifest") + 1])
    find_unreadable(manifest.table, manifest.root, 1)
    victim = sorted(job.images.rglob("*.jpg"))[100]
    state, content = victim.stat(), victim.read_bytes()
    victim.write_bytes(bytes(32) + content[32:])
    os.utime(victim, ns=(state.st_atime_ns, state.st_mtime_ns))  # by which changes are found
    output = job.out.with_name("output")
    assert two_processes.end(two_processes.start("embed", job.words, output)) == [2, 2]
    assert output.read_text().count(f"error: {victim}: not a readable image") == 1
    assert not job.out.exists()
