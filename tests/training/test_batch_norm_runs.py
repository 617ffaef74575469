"""Runs that train batch normalisation: in a frozen stage too, resumed, exported, by two processes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from toy_configs import write_config

import kills
import train
import two_processes
from exported import check_exported
from guie.base.errors import UserError
from guie.config import RunConfig, config_from, load_config
from guie.data.dataset import Classes
from guie.models import open_model
from guie.models.batch_norm import batch_norms
from guie.training.checkpoint import Checkpoints, load_checkpoint
from guie.training.sharding import refuse_unshardable
from guie.training.stage import set_model
from guie.training.step import refuse_unsynced, train_mode
from guie.training.tasks import build_task
from tiny_runs import assert_same_bits, cut_and_resumed, tiny_run

RESNET = {"library": "timm", "name": "test_resnet"}
RATES = {"head": 1e-3, "classes": 1e-2}
STAGES = [
    {"name": "frozen", "epochs": 0.7, "lr": RATES},
    {"name": "full", "epochs": 0.7, "lr": {"backbone": 1e-3, **RATES}, "ema_decay": 0.7},
]


@pytest.fixture(scope="module")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A pretrained backbone."""
    file = tmp_path_factory.mktemp("resnet") / "w.safetensors"
    torch.manual_seed(0)
    save_file(timm.create_model("test_resnet").state_dict(), file)
    return {**RESNET, "pretrained": str(file)}


@pytest.fixture(scope="module")
def config(
    resnet: dict, mix: Path, toy_manifest: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A stage whose backbone is frozen, then one that trains it and keeps an average."""
    path = tmp_path_factory.mktemp("statistics") / "c.yaml"
    model = {"backbone": resnet, "image": {"size_px": 32}, "head": {"dim": 16}}
    more = {"keep_checkpoints": 99, "train": {"batch_size": 32, "batch_norm": "train"}}
    return write_config(path, mix, toy_manifest.parent, model=model, stages=STAGES, **more)


@pytest.fixture(scope="module")
def run(config: Path) -> Path:
    return train.main(["--config", str(config), "--set", "checkpoint_every=1 step"])


def statistics(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value for name, value in state.items() if "running" in name}


@pytest.mark.slow
def test_checkpoints_hold_the_statistics_of_a_frozen_stage(run: Path, resnet: dict) -> None:
    """All of them move, and no weight of the backbone."""
    found = [load_checkpoint(path) for path in Checkpoints(run, 1).paths()]
    first, last = [one["task"] for one in found if one["state"].stage == 0][:2]
    tower = [name for name in first if "tower" in name and "num_batches" not in name]
    moved = {name for name in tower if not torch.equal(first[name], last[name])}
    assert moved and moved == set(statistics(first))


@pytest.mark.slow
def test_it_resumes_to_the_same_bits(
    run: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for steps in (3, 6):  # amid the frozen stage, and amid the other
        words = ["--config", str(config), "--set", f"name=cut_{steps}"]
        words += ["--set", "checkpoint_every=1 step"]
        assert_same_bits(cut_and_resumed(monkeypatch, words, steps), run)


@pytest.mark.slow
def test_the_exported_model_has_the_statistics(run: Path, tmp_path: Path) -> None:
    model = open_model(run, weights="last.safetensors")
    ends = load_checkpoint(Checkpoints(run, 1).paths()[-1])
    saved = {name.removeprefix("module.embedder."): one for name, one in ends["ema"].items()}
    own = statistics(model.embedder.state_dict())
    assert own and all(torch.equal(saved[name], value) for name, value in own.items())
    pretrained = statistics(timm.create_model("test_resnet").state_dict())
    for name, value in pretrained.items():
        assert not torch.allclose(own[f"backbone.tower.{name}"], value, rtol=1e-2), name
    check_exported(model.embedder, model.preprocess, tmp_path)


@pytest.mark.slow
def test_two_processes_resume_to_the_same_bits(config: Path) -> None:
    """Each by its own images, and the statistics are the first one's in both."""
    words = ["--config", str(config), "--set", "checkpoint_every=1 step", "--set"]
    folder = Path(load_config(config, RunConfig).out)
    two_processes.run("train", [*words, "name=two"])
    begun = two_processes.begin(folder / "half" / "metrics.jsonl", 5, [*words, "name=half"])
    assert begun >= 5
    two_processes.run("train", [*words, "name=half", "--resume"])
    assert kills.differences(folder / "two", folder / "half") == []


def test_a_teachers_statistics_stay(resnet: dict, tmp_path: Path) -> None:
    teacher = tiny_run(tmp_path / "teacher", backbone=resnet)
    model = {"backbone": resnet, "image": {"size_px": 32}, "head": {"dim": 16}}
    task = {"name": "distillation", "criteria": [{"relation": {"name": "rkd"}}]}
    values = {"name": "t", "data": {"manifest": "m.csv"}, "model": model}
    values["task"] = task | {"teachers": [{"model": str(teacher)}]}
    rates = {"backbone": 1e-3, "head": 1e-3}
    values["stages"] = [{"epochs": 1, "lr": rates, "batch_norm": "train"}]
    config = config_from(values, RunConfig)
    task = build_task(config, Classes(["a/0", "a/1"], [4, 4], ["a", "a"]))
    set_model(task, config, 0, [0, 1])
    train_mode(task, config.stages[0])
    student = batch_norms(task.embedder.backbone.tower).values()
    [taught] = task.teachers
    of_teacher = batch_norms(taught.model.embedder.backbone.tower).values()
    assert student and all(norm.training for norm in student)
    assert of_teacher and not any(norm.training for norm in of_teacher)


def changed(resnet: dict, stages: list[dict[str, Any]], **more: Any) -> RunConfig:
    values = {"name": "t", "data": {"manifest": "m.csv"}, "stages": stages, **more}
    values["model"] = {"backbone": resnet, "image": {"size_px": 32}}
    return config_from(values, RunConfig)


def test_checkpointing_of_new_layers_is_refused() -> None:
    """Without pretrained weights they learn their statistics, whatever the stage's `batch_norm`."""
    values = changed({"library": "timm", "name": "test_resnet"}, [{"epochs": 1, "lr": RATES}])
    config = values.model_copy(update={"gradient_checkpointing": True})
    task = build_task(config, Classes(["a/0", "a/1"], [4, 4], ["a", "a"]))
    with pytest.raises(UserError, match="gradient_checkpointing: .* normalisation of new modules"):
        set_model(task, config, 0, [0, 1])


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"train": {"cached_views": 2}}, "cached_views: features are computed once"),
        ({"gradient_checkpointing": True}, "gradient_checkpointing: would count a batch twice"),
        ({"train": {"batch_norm": "on"}}, "batch_norm: Input should be 'frozen', 'train' or"),
        ({"train": {"batch_norm": {"layer1": "on"}}}, "layer1: Input should be 'frozen'"),
    ],
    ids=["cached", "checkpointed", "a word", "a word of a module"],
)
def test_what_does_not_go_with_it_is_refused(more: dict, said: str, resnet: dict) -> None:
    stage = {"epochs": 1, "lr": RATES}
    if "batch_norm" not in more.get("train", {}):
        stage["batch_norm"] = {"layer4": "train"}
    with pytest.raises(UserError, match=said):
        changed(resnet, [stage], **more)


def test_train_and_synced_are_not_mixed(resnet: dict) -> None:
    stages = [{"epochs": 1, "lr": RATES, "batch_norm": mode} for mode in ("train", "synced")]
    with pytest.raises(
        UserError, match="stages.1.batch_norm: a run allows one of train and synced"
    ):
        changed(resnet, stages)


def test_processes_that_cannot_share_are_refused(
    resnet: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch synchronises on GPUs alone; shards of FSDP keep statistics of their own."""
    two = SimpleNamespace(num_processes=2, device=torch.device("cpu"))
    trained, synced = (
        changed(resnet, [{"epochs": 1, "lr": RATES, "batch_norm": mode}])
        for mode in ("train", "synced")
    )
    with pytest.raises(UserError, match="SyncBatchNorm needs GPUs; set it to train"):
        refuse_unsynced(two, synced)
    refuse_unsynced(two, trained)
    refuse_unsynced(SimpleNamespace(num_processes=1, device=torch.device("cpu")), synced)
    monkeypatch.setattr("guie.training.sharding.is_sharded", lambda accelerator: True)
    with pytest.raises(UserError, match="under FSDP would keep different statistics"):
        refuse_unshardable(two, trained)
    refuse_unshardable(two, synced)
