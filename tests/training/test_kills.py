"""A run that is killed, stopped by a signal, or started twice. `make kill` kills more often."""

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
from tiny_runs import mix_with_val

pytestmark = pytest.mark.slow
RARELY = ["--set", "checkpoint_every=1000 steps"]


class Whole(NamedTuple):
    """An uninterrupted run."""

    words: list[str]
    folder: Path
    lines: int


@pytest.fixture(scope="module")
def whole(toy_manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder = tmp_path_factory.mktemp("kills")
    mix = mix_with_val(toy_manifest, toy_manifest.with_name("mix.csv"))
    words = ["--config", str(kills.write_config(folder, mix))]
    words += ["--set", "data.workers=0", "--set", "stages.1.epochs=1"]
    assert kills.run([*words, "--set", f"out={folder}"], folder / "run") == 0
    return Whole(words, folder / "run", kills.count_lines(folder / "run" / "metrics.jsonl"))


@pytest.fixture
def words(whole: Whole, tmp_path: Path) -> list[str]:
    return [*whole.words, "--set", f"out={tmp_path}"]


def assert_resumes(words: list[str], whole: Whole, folder: Path) -> None:
    assert kills.run([*words, "--resume"], folder) == 0
    assert kills.differences(whole.folder, folder) == []


@pytest.mark.parametrize(("workers", "share"), [(0, 0.7), (2, 0.4)])
def test_killed_and_resumed_to_the_same_bits(
    whole: Whole, words: list[str], workers: int, share: float, tmp_path: Path
) -> None:
    """With 0 workers also killed in the middle of writing the first checkpoint."""
    moments = [kills.Moment(int(share * whole.lines), random.random() / 20)]
    if workers == 0:
        moments.insert(0, kills.Moment(in_save=True))
    left = kills.chain([*words, "--set", f"data.workers={workers}"], tmp_path / "run", moments)
    assert len(left) == len(moments)
    assert workers or left[0] == "no checkpoint"  # half of one is none
    assert kills.differences(whole.folder, tmp_path / "run") == []


def test_sigterm_saves_and_a_second_run_is_refused(
    whole: Whole, words: list[str], tmp_path: Path
) -> None:
    words = [*words, *RARELY]
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
    assert_resumes(words, whole, tmp_path / "run")


def test_sigterm_during_a_validation_leaves_it_to_the_next_start(
    whole: Whole, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may take minutes, and a cluster gives half of one."""
    validate = StageData.validate

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
    assert_resumes(words, whole, tmp_path / "run")


def test_out_of_memory_leaves_the_last_good_step(
    whole: Whole, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found in the middle of the next one, where batch statistics have moved already."""
    words, gradients, done = [*words, *RARELY], step.gradients, []

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
    assert_resumes(words, whole, tmp_path / "run")
