"""Checkpoints: whole or absent, the newest few, a damaged one passed over."""

from __future__ import annotations

import errno
import resource
import threading
from pathlib import Path
from typing import IO, Any

import pytest
import torch
from torch import nn

import kills
from guie.base.errors import UserError
from guie.models.weights import keep_frozen
from guie.training.checkpoint import (
    Checkpoints,
    Identity,
    TrainState,
    check_identity,
    without_frozen,
)

IDENTITY = Identity(rows="0123", commit="abc")


def save(checkpoints: Checkpoints, step: int) -> Path:
    torch.manual_seed(step)
    task = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(task.parameters())
    task(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    state = TrainState(global_step=step, best_score=0.5)
    parts = {"task": task.state_dict(), "optimizer": optimizer.state_dict(), "ema": None}
    return written(checkpoints, parts, state)


def written(checkpoints: Checkpoints, parts: dict[str, Any], state: TrainState, *args: Any) -> Path:
    checkpoints.save(parts, state, IDENTITY, *args)
    path = checkpoints.wait()
    assert path is not None
    return path


def test_the_newest_few_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    assert checkpoints.paths() == [] and checkpoints.load() is None
    paths = [save(checkpoints, step) for step in (9, 10, 11)]
    assert [path.exists() for path in paths] == [False, True, True]
    saved = checkpoints.load()
    assert saved["state"] == TrainState(global_step=11, best_score=0.5)
    torch.manual_seed(11)
    assert not torch.equal(saved["task"]["weight"], nn.Linear(3, 2).weight)  # a step was taken
    assert saved["optimizer"]["state"][0]["step"] == 1


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_a_damaged_newest_falls_back_with_a_word(
    damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    save(checkpoints, 5)
    newest = save(checkpoints, 6)
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes({"cut": content[:-100], "flipped": content, "empty": b""}[damage])
    assert checkpoints.load()["state"].global_step == 5
    message = capsys.readouterr().err
    assert str(newest) in message and "damaged" in message and "from step 5" in message
    # the damaged one goes when the run has passed an earlier step
    save(checkpoints, 5)
    assert not newest.exists()


def test_all_damaged_is_refused(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    save(checkpoints, 1).write_bytes(b"x")
    with pytest.raises(UserError, match="all checkpoints are damaged"):
        checkpoints.load()


def test_what_a_kill_left_of_a_write_goes_with_the_next(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    save(checkpoints, 1)
    left = tmp_path / "checkpoints" / ".new.123.tmp.pt"
    left.write_bytes(b"half")
    save(checkpoints, 2)
    assert [path.name[:13] for path in (tmp_path / "checkpoints").iterdir()] == ["step_00000002"]


def test_other_data_is_refused_and_other_code_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match="changed since the run started"):
        check_identity(IDENTITY, Identity(rows="other", commit="abc"), tmp_path)
    check_identity(IDENTITY, Identity(rows="0123", commit="def"), tmp_path)
    assert "started with code abc, resumed with def" in capsys.readouterr().err
    check_identity(IDENTITY, IDENTITY, tmp_path)
    assert capsys.readouterr().err == ""


def test_a_checkpoint_of_another_version_is_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    monkeypatch.setattr("guie.training.checkpoint.VERSION", 1)
    save(checkpoints, 1)
    monkeypatch.undo()
    with pytest.raises(UserError, match="another version of the code; resume with that, or --over"):
        checkpoints.load()


def test_frozen_weights_come_back_from_their_file(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    frozen, weight = torch.arange(6.0), torch.ones(2)
    file = keep_frozen(tmp_path, {"a": frozen})
    for step in (1, 2):
        task = {"embedder.a": frozen, "embedder.b": weight * step}
        ema = {"module.embedder.a": frozen, "module.embedder.b": weight, "n_averaged": weight}
        parts = without_frozen({"task": task, "ema": ema, "optimizer": {}}, {"a"})
        path = written(checkpoints, parts, TrainState(global_step=step), file)
    assert checkpoints.frozen() == {file}
    checkpoints.paths()[0].write_bytes(b"damaged")
    assert checkpoints.frozen() == {file}
    assert "embedder.a" not in torch.load(path, weights_only=True)["task"]
    saved = checkpoints.load()
    assert torch.equal(saved["task"]["embedder.a"], frozen) and saved["task"].keys() == task.keys()
    assert torch.equal(saved["ema"]["module.embedder.a"], frozen)


class SlowDisk:
    """`torch.save` waits until it may; it may fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.may, self.error = threading.Event(), None
        save = torch.save

        def slow_save(value: object, file: IO[bytes]) -> None:
            assert self.may.wait(60)
            if self.error:
                raise self.error
            save(value, file)

        monkeypatch.setattr(torch, "save", slow_save)


def test_training_goes_on_while_a_checkpoint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints, disk = Checkpoints(tmp_path, keep=2), SlowDisk(monkeypatch)
    weight = torch.arange(4.0)
    tied = {"embedder.a": weight, "embedder.b": weight.view(2, 2), "embedder.c": weight}
    state = TrainState(global_step=1)
    checkpoints.save({"task": tied, "ema": None}, state, IDENTITY)
    weight += 1
    state.global_step += 1
    assert checkpoints.paths() == [] and checkpoints.fault is None
    disk.may.set()
    assert checkpoints.wait() == checkpoints.paths()[0]
    saved = checkpoints.load()
    assert saved["state"].global_step == 1
    for name in tied:
        assert torch.equal(saved["task"][name].flatten(), torch.arange(4.0))
    # the same memory for the next, which has another value
    checkpoints.save({"task": {"embedder.a": weight}, "ema": None}, state, IDENTITY)
    checkpoints.wait()
    assert torch.equal(checkpoints.load()["task"]["embedder.a"], torch.arange(4.0) + 1)


def test_the_next_save_waits_for_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints, disk = Checkpoints(tmp_path, keep=3), SlowDisk(monkeypatch)
    parts = {"task": {"embedder.a": torch.ones(1)}, "ema": None}
    checkpoints.save(parts, TrainState(global_step=1), IDENTITY)
    threading.Timer(0.1, disk.may.set).start()
    checkpoints.save(parts, TrainState(global_step=2), IDENTITY)
    assert "step_00000001" in checkpoints.paths()[0].name
    with checkpoints:  # and so does its end
        pass
    assert [path.name[:13] for path in checkpoints.paths()] == ["step_00000001", "step_00000002"]


def test_a_failed_write_is_told_at_the_next_step_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoints, disk = Checkpoints(tmp_path, keep=2), SlowDisk(monkeypatch)
    path = save_only(checkpoints, disk)
    disk.error = OSError(errno.ENOSPC, "No space left on device")
    parts = {"task": {"embedder.a": torch.ones(1)}, "ema": None}
    checkpoints.save(parts, TrainState(global_step=2), IDENTITY)
    assert kills.until(lambda: checkpoints.fault is not None)
    assert "new.pt: the disk is full" in str(checkpoints.fault)
    with pytest.raises(UserError, match="new.pt: the disk is full"), checkpoints:
        pass
    assert checkpoints.fault is None and checkpoints.paths() == [path]
    with pytest.raises(ValueError, match="another"), checkpoints:
        checkpoints.save(parts, TrainState(global_step=2), IDENTITY)
        raise ValueError("another")
    message = capsys.readouterr().err
    assert message.startswith("warning: ") and "the disk is full" in message


def save_only(checkpoints: Checkpoints, disk: SlowDisk) -> Path:
    disk.may.set()
    parts = {"task": {"embedder.a": torch.ones(1)}, "ema": None}
    return written(checkpoints, parts, TrainState(global_step=1))


def test_a_disk_that_fills_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    """By a limit on the size of files, which the C++ code meets while it calls Python's `write`."""
    checkpoints = Checkpoints(tmp_path, keep=2)
    path = save(checkpoints, 1)
    parts = {"task": {"embedder.a": torch.ones(2**16)}, "ema": None}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, hard))
    try:
        with pytest.raises(UserError, match="larger than the file system or `ulimit -f` allows"):
            written(checkpoints, parts, TrainState(global_step=2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [*path.parent.iterdir()] == [path]
