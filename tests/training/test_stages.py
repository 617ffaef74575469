"""Every kind of stage, sampler and schedule trains the toy domains and resumes to the same bits."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from toy_configs import write_config

import train
from guie.base.devices import make_accelerator
from guie.config.loading import to_yaml
from guie.config.model import BackboneConfig
from guie.data.dataset import Classes
from guie.models import open_model, weights
from guie.models.backbones.open_clip import create_clip
from guie.training import loop, stage
from guie.training.checkpoint import Checkpoints, load_checkpoint
from guie.training.run_folder import read_metrics
from guie.training.tasks import build_task
from tiny_runs import TINY_CLIP, assert_same_bits, tiny_config

FEW = ["packages", "cars"]
RATES = {"backbone": 1e-4, "head": 1e-2, "classes": 1e-2}
SAMPLERS = [
    {"name": "mixed", "temperature": 2.0, "factors": {"cars": 2.0}},
    {"name": "dataset_size", "images_per_class": 3, "rare_classes": "leave_out"},
    {"name": "loss_driven", "period": "2 steps"},
    {"name": "mixed", "images_per_class": 3},
    {"name": "balanced"},
    {"name": "round_robin"},
    {"name": "specialist_steps", "steps": {"packages": 3, "cars": 1}},
]
SCHEDULES = [
    {"optimizer": "adam", "schedule": {"name": "cosine", "end": 0.1}, "warmup": "0.5 epochs"},
    {"schedule": "constant", "lr": {**RATES, "blocks": {0: 0.0, 1: 1e-3}}, "ema_decay": 0.9},
    {
        **{"schedule": {"name": "cosine", "every": "1 epoch"}, "decay_vectors": True},
        **{"warmup": "1 epoch", "warmup_start": 0.01, "warmup_every": "0.5 epochs"},
    },
    {
        "optimizer": {"name": "sgd", "momentum": 0.9},
        "schedule": {"name": "step", "epochs": [1, 2]},
    },
    {
        "schedule": {"name": "exponential", "every": "0.5 epochs", "factor": 0.8},
        "warmup": "2 steps",
    },
    {"weight_decay": {"backbone": 1e-3, "head": 1e-5}, "layer_decay": 0.7, "accumulate": 2},
    {"clip_grad_norm": 1.0},
]


@pytest.fixture
def written(mix: Path, toy_manifest: Path, tmp_path: Path):
    """Write a config with these stages; its path."""

    def write(stages: list[dict], **changes) -> Path:
        config = {
            "name": "whole",
            "out": str(tmp_path / "runs"),
            "log_every": "1 step",
            "checkpoint_every": "1 step",
            "data": {"manifest": str(mix), "root": str(toy_manifest.parent), "workers": 0},
            "model": {"backbone": TINY_CLIP, "image": {"size_px": 32}, "head": {"dropout": 0.2}},
            "train": {"batch_size": 24, "epochs": 2, "augment": {"flip": 0.5, "color": 0.2}},
            "stages": stages,
            **changes,
        }
        path = tmp_path / "c.yaml"
        path.write_text(to_yaml(config))
        return path

    return write


def stopped_and_resumed(config: Path, steps: list[int], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same run, stopped each time that so many more steps are done, and gone on with."""
    words = ["--config", str(config), "--set", "name=cut", "--resume"]
    update = loop.set_learning_rates
    for number in steps:
        done = []

        def counting(*args, done=done, number=number):
            if len(done) == number:
                raise KeyboardInterrupt
            done.append(1)
            return update(*args)

        with monkeypatch.context() as patched:
            patched.setattr(loop, "set_learning_rates", counting)
            with pytest.raises(KeyboardInterrupt):
                train.main(words)
    return train.main(words)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampler", "schedule"),
    list(zip(SAMPLERS, SCHEDULES, strict=True)),
    ids=lambda given: "-".join(map(str, given)),
)
def test_every_sampler_and_schedule(
    sampler: dict, schedule: dict, written, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = {"domains": FEW, "sampler": sampler, "lr": RATES, "epochs": 3, **schedule}
    config = written([stage])
    whole = train.main(["--config", str(config)])
    rates = [line["lr_head"] for line in read_metrics(whole / "metrics.jsonl") if "lr_head" in line]
    assert len(set(rates)) > 1 or schedule["schedule"] == "constant"
    assert_same_bits(stopped_and_resumed(config, [4], monkeypatch), whole)


@pytest.mark.slow
def test_a_stage_may_train_on_what_is_not_scored(written, monkeypatch: pytest.MonkeyPatch) -> None:
    """UnED squashes the images that it trains on, and scores their central squares."""
    image = {"size_px": 32, "fit": "crop"}
    model = {"backbone": TINY_CLIP, "image": image}
    stage = {"domains": FEW, "epochs": 1, "lr": RATES}
    config = written([{**stage, "augment": {"fit": "squash"}}, stage], model=model)
    entered, enter = [], loop.Stage

    def noted(*args):
        entered.append(enter(*args))
        return entered[-1]

    monkeypatch.setattr(loop, "Stage", noted)
    run = train.main(["--config", str(config)])
    trained = [stage.data.batches.preprocess.fit for stage in entered]
    assert (trained, [s.preprocess.fit for s in entered]) == (["squash", "crop"], ["crop"] * 2)
    assert open_model(run).preprocess.fit == "crop"


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", {"name": "sgd", "momentum": 0.9}])
def test_one_optimizer_over_two_stages(
    optimizer: str | dict, written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped at the first step of the second stage, and within it."""
    first = {
        "domains": FEW,
        "epochs": 1,
        "optimizer": optimizer,
        "lr": {"head": 1e-2, "classes": 1e-2},
    }
    second = {**first, "name": "full", "optimizer_state": "carry", "lr": {**RATES, "head": 1e-3}}
    config = written([first, second])
    whole = train.main(["--config", str(config)])
    lines = [line for line in read_metrics(whole / "metrics.jsonl") if "loss" in line]
    steps = sum(line["stage"] == lines[0]["stage"] for line in lines)
    if optimizer == "adamw":
        saved = load_checkpoint(Checkpoints(whole, keep=2).paths()[-1])["optimizer"]["state"]
        assert {int(state["step"]) for state in saved.values()} == {len(lines), len(lines) - steps}
    assert_same_bits(stopped_and_resumed(config, [steps, 1], monkeypatch), whole)
    reset = train.main(
        ["--config", str(written([first, {**second, "optimizer_state": "reset"}], name="reset"))]
    )
    weights = [load_file(run / "last.safetensors")["head.linear.weight"] for run in (whole, reset)]
    assert not torch.equal(*weights)


@pytest.mark.slow
def test_which_weights_follow_an_average(written) -> None:
    still = {"head": 1e-30, "classes": 0.0}  # weights stay where the stage began
    first = {"domains": FEW, "lr": RATES, "ema_decay": 0.9}
    folder = train.main(["--config", str(written([first], name="alone"))])
    averaged = load_file(folder / "last.safetensors")
    saved = load_checkpoint(Checkpoints(folder, keep=2).paths()[-1])
    raw = {name: saved["task"][f"embedder.{name}"] for name in averaged if "linear" in name}
    assert raw and not any(torch.equal(raw[name], averaged[name]) for name in raw)
    for goes_on, wanted in (("raw", raw), ("averaged", averaged)):
        stages = [{**first, "ema_carry": goes_on}, {"domains": FEW, "lr": still}]
        config = written(stages, name=goes_on)
        after = load_file(train.main(["--config", str(config)]) / "last.safetensors")
        for name in raw:
            assert torch.equal(after[name], wanted[name]), name


def test_an_average_is_carried_on_without_counters_and_queues(tmp_path: Path) -> None:
    config = tiny_config(tmp_path)
    classes = Classes(["a/0", "a/1"], [4, 4], ["a", "a"])
    live, scored = build_task(config, classes), build_task(config, classes)
    for task, value in ((live, 7), (scored, 3)):
        task.register_buffer("queue", torch.tensor(float(value)))
        task.register_buffer("seen", torch.tensor(value))
    ended = SimpleNamespace(
        run=SimpleNamespace(accelerator=make_accelerator()),
        scored=lambda: scored,
        shards=SimpleNamespace(whole=lambda task: task),
        ema=scored,
        config=SimpleNamespace(ema_carry="averaged"),
        model=live,
        optimizer=None,
    )
    task, _ = stage.Stage.release(ended)
    assert (task.queue, task.seen) == (7, 7)
    for name, parameter in scored.named_parameters():
        assert torch.equal(task.get_parameter(name), parameter), name


@pytest.mark.slow
def test_stages_of_every_kind(
    written, mix: Path, toy_manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the cache; overlapping patches with retention; new classes alone; plain patches again."""
    torch.manual_seed(0)
    clip = create_clip(BackboneConfig(**TINY_CLIP)).state_dict()
    save_file({k: v.contiguous() for k, v in clip.items()}, tmp_path / "clip.safetensors")
    generic = {"manifest": str(mix), "root": str(toy_manifest.parent), "batch_size": 8}
    branches = {"linear": "separate", "dropouts": [0.1, 0.2]}
    head = {"norm": "bn_plain", "bias": False, "branches": branches, "image_shape": True}
    config = written(
        [
            {
                "name": "cached",
                "epochs": 1,
                "cached_views": 2,
                "sam_rho": 0.05,
                "lr": {"head": 1e-2, "classes": 1e-2},
            },
            {"name": "overlap", "size_px": 40, "stride_px": 4, "epochs": 0.3, "lr": RATES},
            {
                **{"name": "last", "domains": FEW, "classes": "reset", "softmax_over": "stage"},
                **{"margin": 0.5, "size_px": 40, "stride_px": 4, "lr": {"classes": 1e-2}},
            },
            {"name": "plain", "epochs": 0.3, "lr": RATES, "ema_decay": 0.9},
        ],
        retention={"weights": 1e-3, "features": 0.5, "generic": {**generic, "split": "train"}},
        model={
            "backbone": {**TINY_CLIP, "pretrained": str(tmp_path / "clip.safetensors")},
            "image": {"size_px": 32},
            "head": head,
        },
    )
    whole = train.main(["--config", str(config)])
    lines = read_metrics(whole / "metrics.jsonl")
    stages = [line["stage"] for line in lines if "loss" in line]
    assert sorted(set(stages)) == ["cached", "last", "overlap", "plain"]
    retained = {line["stage"] for line in lines if "retention_features" in line}
    assert retained == {"overlap", "plain"}
    starts = [stages.index(name) for name in ("overlap", "last", "plain")]
    cuts = [starts[0] - 1, starts[1] - starts[0] + 2, starts[2] - starts[1]]  # one in each of three
    assert_same_bits(stopped_and_resumed(config, cuts, monkeypatch), whole)
    model = open_model(whole, weights="last.safetensors")
    assert model.preprocess.size_px == 32 and model.embedder.backbone.stride_px is None


@pytest.mark.slow
def test_frozen_weights_are_hashed_once_a_stage(
    mix: Path, toy_manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at each checkpoint and each best score; once more for the last weights of the run."""
    hashed, keep = [], weights.keep_frozen

    def counted(*args: Any) -> str | None:
        hashed.append(1)
        return keep(*args)

    for module in (stage, weights):
        monkeypatch.setattr(module, "keep_frozen", counted)
    rates = {"head": 1e-2, "classes": 1e-2}
    stages = [{"epochs": 1, "lr": rates, "validate_every": "1 step"}, {"epochs": 0.1, "lr": RATES}]
    path = write_config(
        tmp_path / "c.yaml", mix, toy_manifest.parent, checkpoint_every="1 step", stages=stages
    )
    folder = train.main(["--config", str(path)])
    assert len(hashed) == len(stages) + 1
    assert open_model(folder).embedder.backbone.tower is not None
