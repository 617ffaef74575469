"""Checkpoints: whole or absent, the newest few, a damaged one passed over."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from guie.base.errors import UserError
from guie.training.checkpoint import Checkpoints, Identity, TrainState, check_identity

IDENTITY = Identity(rows="0123", commit="abc")


def save(checkpoints: Checkpoints, step: int) -> Path:
    torch.manual_seed(step)
    task = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(task.parameters())
    task(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    state = TrainState(global_step=step, best_score=0.5)
    parts = {"task": task.state_dict(), "optimizer": optimizer.state_dict(), "ema": None}
    return checkpoints.save(parts, set(), state, IDENTITY)


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


def test_frozen_weights_are_written_once_and_come_back(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    frozen, weight = torch.arange(6.0), torch.ones(2)
    for step in (1, 2):
        task = {"embedder.a": frozen, "embedder.b": weight * step}
        ema = {"module.embedder.a": frozen, "module.embedder.b": weight, "n_averaged": weight}
        parts = {"task": task, "ema": ema, "optimizer": {}}
        path = checkpoints.save(parts, {"a"}, TrainState(global_step=step), IDENTITY)
    (file,) = tmp_path.glob("frozen-*.safetensors")
    assert checkpoints.frozen() == {file.name}
    checkpoints.paths()[0].write_bytes(b"damaged")
    assert checkpoints.frozen() == {file.name}
    assert "embedder.a" not in torch.load(path, weights_only=True)["task"]
    saved = checkpoints.load()
    assert torch.equal(saved["task"]["embedder.a"], frozen) and saved["task"].keys() == task.keys()
    assert torch.equal(saved["ema"]["module.embedder.a"], frozen)
