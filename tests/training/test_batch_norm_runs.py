"""Runs that train batch normalisation: in a frozen stage too, resumed, exported, by two processes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from toy_configs import FROZEN, sets

import kills
import train
import two_processes
from exported import check_exported
from guie.config import RunConfig, config_from
from guie.data.dataset import Classes
from guie.models import open_model
from guie.models.backbones.base import batch_norms
from guie.training.checkpoint import Checkpoints, load_checkpoint
from guie.training.stage import set_model, train_mode
from guie.training.tasks import build_task
from tiny_runs import assert_same_bits, cut_and_resumed, tiny_run


@pytest.fixture(scope="module")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A pretrained backbone."""
    file = tmp_path_factory.mktemp("resnet") / "w.safetensors"
    torch.manual_seed(0)
    save_file(timm.create_model("test_resnet").state_dict(), file)
    return {"library": "timm", "name": "test_resnet", "pretrained": str(file)}


@pytest.fixture(scope="module")
def words(resnet: dict, written: Callable) -> list[str]:
    """A stage whose backbone is frozen, then one that trains it and keeps an average."""
    return written(
        model={"backbone": resnet, "image": {"size_px": 32}, "head": {"dim": 16}},
        train={"batch_size": 32, "batch_norm": "train", "epochs": 0.7},
        stages=[{"lr": FROZEN}, {"lr": {"backbone": 1e-3, **FROZEN}, "ema_decay": 0.7}],
        keep_checkpoints=99,
        checkpoint_every="1 step",
    )


def statistics(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value for name, value in state.items() if "running" in name}


@pytest.mark.slow
def test_statistics_of_a_frozen_stage_move_resume_and_are_exported(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the same bits; in two processes they are those of the first one."""
    run = train.main(words)
    found = [load_checkpoint(path) for path in Checkpoints(run, 1).paths()]
    first, last = [one["task"] for one in found if one["state"].stage == 0][:2]
    tower = [name for name in first if "tower" in name and "num_batches" not in name]
    moved = {name for name in tower if not torch.equal(first[name], last[name])}
    assert moved and moved == set(statistics(first))  # and no weight
    assert_same_bits(cut_and_resumed(monkeypatch, [*words, *sets("name=cut")], 3), run)

    model = open_model(run, weights="last.safetensors")
    ends = load_checkpoint(Checkpoints(run, 1).paths()[-1])
    saved = {name.removeprefix("module.embedder."): one for name, one in ends["ema"].items()}
    own = statistics(model.embedder.state_dict())
    assert own and all(torch.equal(saved[name], value) for name, value in own.items())
    pretrained = statistics(timm.create_model("test_resnet").state_dict())
    for name, value in pretrained.items():
        assert not torch.allclose(own[f"backbone.tower.{name}"], value, rtol=1e-2), name
    check_exported(model.embedder, model.preprocess, tmp_path)

    two_processes.run("train", [*words, *sets("name=two")])
    half = [*words, *sets("name=half")]
    assert two_processes.begin(run.with_name("half") / "metrics.jsonl", 5, half) >= 5
    two_processes.run("train", [*half, "--resume"])
    assert kills.differences(run.with_name("two"), run.with_name("half")) == []


def test_a_teachers_statistics_stay(resnet: dict, tmp_path: Path) -> None:
    teacher = tiny_run(tmp_path / "teacher", backbone=resnet)
    model = {"backbone": resnet, "image": {"size_px": 32}, "head": {"dim": 16}}
    task = {"name": "distillation", "criteria": [{"relation": {"name": "rkd"}}]}
    task["teachers"] = [{"model": str(teacher)}]
    stage = {"epochs": 1, "lr": {"backbone": 1e-3, "head": 1e-3}, "batch_norm": "train"}
    values = {"name": "t", "data": {"manifest": "m.csv"}, "model": model, "task": task}
    config = config_from(values | {"stages": [stage]}, RunConfig)
    task = build_task(config, Classes(["a/0", "a/1"], [4, 4], ["a", "a"]))
    set_model(task, config, 0, [0, 1])
    train_mode(task, config.stages[0])
    [taught] = task.teachers
    for embedder, trains in ((task.embedder, True), (taught.model.embedder, False)):
        norms = batch_norms(embedder.backbone.tower).values()
        assert norms and all(norm.training == trains for norm in norms)
