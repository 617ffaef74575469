"""A run that is killed, told to end, or meant twice. `make kill` kills more often."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

import kills
import train
from guie.base.errors import UserError
from guie.training import step
from guie.training.checkpoint import Checkpoints, load_checkpoint
from guie.training.run_folder import read_metrics
from guie.training.stage_data import StageData

pytestmark = pytest.mark.slow


class Whole(NamedTuple):
    """The run that nobody touched."""

    words: list[str]
    folder: Path
    lines: int


@pytest.fixture(scope="module")
def whole(toy_manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder = tmp_path_factory.mktemp("kills")
    words = ["--config", str(kills.write_config(folder, kills.with_validation(toy_manifest)))]
    words += ["--set", "data.workers=0", "--set", "stages.1.epochs=1"]
    assert kills.run([*words, "--set", f"out={folder}"], folder / "run") == 0
    return Whole(words, folder / "run", kills.count_lines(folder / "run" / "metrics.jsonl"))


@pytest.mark.parametrize(("workers", "share"), [(0, 0.7), (2, 0.4)])
def test_killed_and_resumed_to_the_same_bits(
    whole: Whole, workers: int, share: float, tmp_path: Path
) -> None:
    """With 0 workers also one in the middle of writing the first checkpoint."""
    words = [*whole.words, "--set", f"data.workers={workers}", "--set", f"out={tmp_path}"]
    moments = [kills.Moment(int(share * whole.lines), random.random() / 20)]
    if workers == 0:
        moments.insert(0, kills.Moment(in_save=True))
    left = kills.chain(words, tmp_path / "run", moments)
    assert len(left) == len(moments)
    if workers == 0:
        assert left[0] == "no checkpoint"  # half of one is none
    assert kills.differences(whole.folder, tmp_path / "run") == []


def test_sigterm_saves_and_a_second_run_is_refused(whole: Whole, tmp_path: Path) -> None:
    words = [*whole.words, "--set", f"out={tmp_path}", "--set", "checkpoint_every=1000 steps"]
    child = kills.SERVER.Process(target=kills.train_in_child, args=(words,))
    child.start()
    kills.Moment(lines=1).wait(tmp_path / "run" / "metrics.jsonl", child)
    # The refusal takes a while: by then it would be stages ahead.
    os.kill(child.pid, signal.SIGSTOP)
    with pytest.raises(UserError, match=rf"another process trains there \(process {child.pid} on "):
        train.main([*words, "--overwrite"])
    os.kill(child.pid, signal.SIGTERM)
    os.kill(child.pid, signal.SIGCONT)
    child.join()
    assert child.exitcode == 128 + signal.SIGTERM
    assert len(list((tmp_path / "run" / "checkpoints").glob("step_*"))) == 1
    assert kills.run([*words, "--resume"], tmp_path / "run") == 0
    assert kills.differences(whole.folder, tmp_path / "run") == []


def test_sigterm_during_a_validation_leaves_it_to_the_next_start(
    whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may take minutes, and a cluster gives half of one."""
    words, validate = [*whole.words, "--set", f"out={tmp_path}"], StageData.validate

    def interrupted(*args):
        os.kill(os.getpid(), signal.SIGTERM)
        return validate(*args)

    with monkeypatch.context() as patched:
        patched.setattr(StageData, "validate", interrupted)
        with pytest.raises(SystemExit, match="143"):
            train.main(words)
    log = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert not any("val_r_at_1" in line for line in log)
    assert load_checkpoint(Checkpoints(tmp_path / "run", 2).paths()[-1])["state"].unscored
    # The next start scores it, and is killed before that is in a checkpoint.
    assert kills.run([*words, "--resume"], tmp_path / "run", kills.Moment(in_save=True)) == -9
    assert kills.run([*words, "--resume"], tmp_path / "run") == 0
    assert kills.differences(whole.folder, tmp_path / "run") == []


def test_out_of_memory_leaves_the_last_good_step(
    whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found in the middle of the next one, where batch statistics have moved already."""
    words = [*whole.words, "--set", f"out={tmp_path}", "--set", "checkpoint_every=1000 steps"]
    gradients, done = step.gradients, []

    def failing(*args):
        logs = gradients(*args)
        done.append(1)
        if len(done) == 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return logs

    with monkeypatch.context() as patched:
        patched.setattr(step, "gradients", failing)
        with pytest.raises(UserError, match="out of memory at step 4"):
            train.main(words)
    assert "step_00000003" in Checkpoints(tmp_path / "run", 2).paths()[-1].name
    assert kills.run([*words, "--resume"], tmp_path / "run") == 0
    assert kills.differences(whole.folder, tmp_path / "run") == []
