"""Checkpoints: complete or absent, the newest few, a damaged one skipped."""

import errno
import resource
import threading
from pathlib import Path
from typing import IO, Any

import pytest
import torch

import kills
from guie.base.errors import UserError
from guie.models.weights import keep_frozen
from guie.training.checkpoint import Checkpoints, TrainState, check_identity, without_frozen

IDENTITY = {"rows": "0123", "commit": "abc"}
MORE = {"frozen": None, "identity": IDENTITY}
ONES = torch.ones(1)


def save(checkpoints: Checkpoints, step: int, wait: bool = True, **parts: Any) -> Path | None:
    parts = {"task": {"embedder.a": ONES * step}, "ema": None, **parts, **MORE}
    checkpoints.save(parts, TrainState(global_step=step, best_score=0.5))
    return checkpoints.wait() if wait else None


def steps(checkpoints: Checkpoints) -> list[str]:
    return [path.name[:13] for path in checkpoints.paths()]


def test_the_newest_few_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    assert checkpoints.paths() == [] and checkpoints.load() is None
    save(checkpoints, 1)
    (tmp_path / "checkpoints" / ".new.123.tmp.pt").write_bytes(b"half")  # left by a kill
    weight = torch.nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.AdamW([weight])
    weight.sum().backward()
    optimizer.step()
    for step in (9, 10, 11):
        save(checkpoints, step, optimizer=optimizer.state_dict())
    names = sorted(path.name[:13] for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["step_00000010", "step_00000011"]
    saved = checkpoints.load()
    assert saved["state"] == TrainState(global_step=11, best_score=0.5)
    assert saved["task"]["embedder.a"] == 11 and saved["optimizer"]["state"][0]["step"] == 1


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_a_damaged_newest_is_skipped_with_a_message(
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
    save(checkpoints, 5)  # the run has passed an earlier step: the damaged one goes
    assert steps(checkpoints) == ["step_00000005"]
    checkpoints.paths()[0].write_bytes(b"x")
    with pytest.raises(UserError, match="all checkpoints are damaged"):
        checkpoints.load()


def test_other_data_is_refused_and_other_code_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="changed since the run started"):
        check_identity(IDENTITY, {"rows": "other", "commit": "abc"}, tmp_path)
    check_identity(IDENTITY, {"rows": "0123", "commit": "def"}, tmp_path)
    assert "started with code abc, resumed with def" in capsys.readouterr().err
    check_identity(IDENTITY, IDENTITY, tmp_path)
    assert capsys.readouterr().err == ""
    checkpoints = Checkpoints(tmp_path, keep=1)
    with monkeypatch.context() as patched:
        patched.setattr("guie.training.checkpoint.VERSION", 1)
        save(checkpoints, 1)
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
        checkpoints.save({**parts, **MORE, "frozen": file}, TrainState(global_step=step))
        path = checkpoints.wait()
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


def test_training_continues_while_a_checkpoint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints, disk = Checkpoints(tmp_path, keep=3), SlowDisk(monkeypatch)
    weight = torch.arange(4.0)
    tied = {"embedder.a": weight, "embedder.b": weight.view(2, 2), "embedder.c": weight}
    state = TrainState(global_step=1)
    checkpoints.save({"task": tied, "ema": None, **MORE}, state)
    weight += 1
    state.global_step += 1
    assert checkpoints.paths() == [] and checkpoints.fault is None
    threading.Timer(0.1, disk.may.set).start()
    # The next waits for the one before, and uses the same memory for another value
    checkpoints.save({"task": {"embedder.a": weight}, "ema": None, **MORE}, state)
    assert steps(checkpoints)[0] == "step_00000001"
    with checkpoints:  # and so does its end
        pass
    assert steps(checkpoints) == ["step_00000001", "step_00000002"]
    first, second = (torch.load(path, weights_only=True) for path in checkpoints.paths())
    assert first["state"]["global_step"] == 1
    for name in tied:
        assert torch.equal(first["task"][name].flatten(), torch.arange(4.0))
    assert torch.equal(second["task"]["embedder.a"], torch.arange(4.0) + 1)


def test_a_failed_write_is_reported_at_the_next_step_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoints, disk = Checkpoints(tmp_path, keep=2), SlowDisk(monkeypatch)
    disk.may.set()
    path = save(checkpoints, 1)
    disk.error = OSError(errno.ENOSPC, "No space left on device")
    save(checkpoints, 2, wait=False)
    assert kills.until(lambda: checkpoints.fault is not None)
    assert "new.pt: the disk is full" in str(checkpoints.fault)
    with pytest.raises(UserError, match="new.pt: the disk is full"), checkpoints:
        pass
    assert checkpoints.fault is None and checkpoints.paths() == [path]
    with pytest.raises(ValueError, match="another"), checkpoints:
        save(checkpoints, 2, wait=False)
        raise ValueError("another")
    message = capsys.readouterr().err
    assert message.startswith("warning: ") and "the disk is full" in message


def test_a_disk_that_fills_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    """By a limit on the size of files, which the C++ code meets while it calls Python's `write`."""
    checkpoints = Checkpoints(tmp_path, keep=2)
    path = save(checkpoints, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, hard))
    try:
        with pytest.raises(UserError, match="larger than the file system or `ulimit -f` allows"):
            save(checkpoints, 2, task={"embedder.a": torch.ones(2**16)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [*path.parent.iterdir()] == [path]
