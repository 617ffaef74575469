"""Run folders: opened, refused, resumed with what may change."""

from __future__ import annotations

import fcntl
import threading
from pathlib import Path

import pytest

from guie.base.errors import UserError
from guie.config import RunConfig
from guie.training.run.folder import (
    add_to_record,
    check_weights,
    differences,
    keep_classes,
    locked,
    open_run,
)


def config(out: Path, **changes) -> RunConfig:
    values = {
        "name": "t",
        "out": str(out),
        "data": {"manifest": "m.csv"},
        "model": {"backbone": {"library": "timm", "name": "x"}, "image": {"size_px": 8}},
        "stages": [{"epochs": 1, "lr": {"head": 1e-3, "classes": 0.0}}],
    }
    return RunConfig.model_validate({**values, **changes})


def test_what_differs_is_named_by_key_and_both_values(tmp_path: Path) -> None:
    other = config(
        tmp_path,
        stages=[
            {"epochs": 1, "lr": {"head": 2e-3, "classes": 0.0}},
            {"epochs": 2, "lr": {"classes": 0.0}},
        ],
    )
    found = differences(config(tmp_path), other)
    assert found[0] == "stages.0.lr.head: 0.001, now 0.002"
    assert any(text.startswith("stages.1.epochs: None, now 2") for text in found)


def test_what_does_not_change_a_run_may_change(tmp_path: Path) -> None:
    stages = [{"epochs": 1, "lr": {"head": 1e-3, "classes": 0.0}, "accumulate": 4}]
    data = {"manifest": "m.csv", "workers": 7}
    other = config(tmp_path, stages=stages, data=data, on_out_of_memory="halve")
    assert differences(config(tmp_path), other) == []


def test_an_unfinished_run_is_resumed_only_when_asked(tmp_path: Path) -> None:
    one = config(tmp_path)
    folder, _ = open_run(one, resume=False, overwrite=False)
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "step_00000001-0123456789abcdef.pt").touch()
    with pytest.raises(UserError, match="unfinished run; --resume"):
        open_run(one, resume=False, overwrite=False)
    assert open_run(one, resume=True, overwrite=False) == (folder, False)
    other = config(tmp_path, seed=1)
    with pytest.raises(UserError, match="another config .seed: 0, now 1"):
        open_run(other, resume=True, overwrite=False)
    open_run(other, resume=False, overwrite=True)
    assert (
        not (folder / "checkpoints").exists() and "seed: 1" in (folder / "config.yaml").read_text()
    )


def test_a_run_that_never_stepped_gives_way_to_another(tmp_path: Path) -> None:
    folder, _ = open_run(config(tmp_path), resume=False, overwrite=False)
    keep_classes(folder, ["a/1"])
    for name in ("metrics.jsonl", "events.out.tfevents.1.vm.2.0", "dropped.csv"):
        (folder / name).touch()
    other = config(tmp_path, seed=1)
    assert open_run(other, resume=False, overwrite=False) == (folder, False)
    assert sorted(path.name for path in folder.iterdir()) == ["config.yaml", "record.json"]
    assert "seed: 1" in (folder / "config.yaml").read_text()


@pytest.mark.parametrize("left", ["metrics.jsonl", "model.safetensors", "notes.txt"])
def test_what_a_folder_holds_besides_is_not_given_up(left: str, tmp_path: Path) -> None:
    folder, _ = open_run(config(tmp_path), resume=False, overwrite=False)
    (folder / left).write_text('{"step": 20}\n')
    with pytest.raises(UserError, match="another config .seed: 0, now 1"):
        open_run(config(tmp_path, seed=1), resume=False, overwrite=False)
    assert (folder / left).exists()


def test_one_process_at_a_time(tmp_path: Path) -> None:
    one = config(tmp_path)
    with locked(one):
        open_run(one, resume=False, overwrite=True)  # keeps the lock it holds
        with pytest.raises(UserError, match="another process trains there"), locked(one):
            pass
    with locked(one):
        pass


def test_a_changed_class_list_is_named(tmp_path: Path) -> None:
    keep_classes(tmp_path, ["a/1", "a/2", "b/1"])
    keep_classes(tmp_path, ["a/1", "a/2", "b/1"])
    with pytest.raises(UserError, match="3 classes.* now has 2 .gone: a/2, b/1; new: c/1"):
        keep_classes(tmp_path, ["a/1", "c/1"])


def test_retention_goes_on_towards_the_same_weights_only(tmp_path: Path) -> None:
    folder, _ = open_run(config(tmp_path), resume=False, overwrite=False)
    weights = {"file": "clip.safetensors", "sha256": "ab" * 32, "from": "a hub"}
    add_to_record(folder, weights=weights)
    check_weights(folder, {**weights, "from": "a copy of it"})
    with pytest.raises(UserError, match="clip.safetensors .* is another now"):
        check_weights(folder, {**weights, "sha256": "cd" * 32})


def test_a_lock_that_the_loaders_of_a_killed_run_still_hold_is_waited_for(tmp_path: Path) -> None:
    one = config(tmp_path)
    with locked(one):
        pass
    held = (tmp_path / "t/.lock").open("a+")
    fcntl.flock(held, fcntl.LOCK_EX)
    threading.Timer(0.3, held.close).start()
    with locked(one):
        assert held.closed
