"""Every kind of stage, sampler and schedule trains the toy domains and resumes to the same bits."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from toy_configs import FEW, FROZEN

import train
from guie.config.model import BackboneConfig
from guie.models import open_model
from guie.models.backbones.open_clip import create_clip
from guie.training import loop
from guie.training.checkpoint import Checkpoints, load_checkpoint
from guie.training.run_folder import read_metrics
from tiny_runs import TINY_CLIP, assert_same_bits

RATES = {"backbone": 1e-4, "head": 1e-2, "classes": 1e-2}
COMMON = {
    "train": {"batch_size": 24, "epochs": 2, "augment": {"flip": 0.5, "color": 0.2}},
    "checkpoint_every": "1 step",
}
# What has a state: shares by losses, momentum, an average; each with other samplers and schedules
SAMPLERS_AND_SCHEDULES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {"name": "loss_driven", "period": "2 steps"},
        {
            **{"schedule": {"name": "cosine", "every": "1 epoch"}, "decay_vectors": True},
            **{"warmup": "1 epoch", "warmup_start": 0.01, "warmup_every": "0.5 epochs"},
        },
    ),
    (
        {"name": "mixed", "images_per_class": 3, "temperature": 2.0, "factors": {"cars": 2.0}},
        {
            "optimizer": {"name": "sgd", "momentum": 0.9},
            "schedule": {"name": "step", "epochs": [1, 2]},
            "clip_grad_norm": 1.0,
        },
    ),
    (
        {"name": "dataset_size", "images_per_class": 3, "rare_classes": "leave_out"},
        {"schedule": "constant", "lr": {**RATES, "blocks": {0: 0.0, 1: 1e-3}}, "ema_decay": 0.9},
    ),
    (
        {"name": "specialist_steps", "steps": {"packages": 3, "cars": 1}},
        {"optimizer": "adam", "layer_decay": 0.7, "accumulate": 2},
    ),
]


def stopped_and_resumed(words: list[str], steps: list[int], monkeypatch) -> Path:
    """The same run, stopped each time that so many more steps are done, and continued."""
    words = [*words, "--set", "name=cut", "--resume"]
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
@pytest.mark.parametrize(("sampler", "schedule"), SAMPLERS_AND_SCHEDULES)
def test_every_sampler_and_schedule(
    sampler: dict, schedule: dict, written: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = {"domains": FEW, "sampler": sampler, "lr": RATES, "epochs": 3, **schedule}
    words = written(stages=[stage], **COMMON)
    whole = train.main(words)
    rates = [line["lr_head"] for line in read_metrics(whole / "metrics.jsonl") if "lr_head" in line]
    assert len(set(rates)) > 1 or schedule["schedule"] == "constant"
    assert_same_bits(stopped_and_resumed(words, [4], monkeypatch), whole)


@pytest.mark.slow
def test_a_stage_may_train_on_what_is_not_scored(written: Callable, monkeypatch) -> None:
    """UnED squashes the images that it trains on, and scores their central squares."""
    model = {"backbone": TINY_CLIP, "image": {"size_px": 32, "fit": "crop"}}
    plain = {"domains": FEW, "epochs": 1, "lr": RATES}
    entered, enter = [], loop.Stage

    def noted(*args):
        entered.append(enter(*args))
        return entered[-1]

    monkeypatch.setattr(loop, "Stage", noted)
    stages = [{**plain, "augment": {"fit": "squash"}}, plain]
    run = train.main(written(stages=stages, model=model))
    assert [one.data.batches.preprocess.fit for one in entered] == ["squash", "crop"]
    assert [one.preprocess.fit for one in entered] == ["crop", "crop"]
    assert open_model(run).preprocess.fit == "crop"


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", {"name": "sgd", "momentum": 0.9}])
def test_one_optimizer_over_two_stages(
    optimizer: str | dict, written: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped at the first step of the second stage, and within it."""
    first = {"domains": FEW, "epochs": 1, "optimizer": optimizer}
    first["lr"] = {"head": 1e-2, "classes": 1e-2}
    second = {**first, "name": "full", "optimizer_state": "carry", "lr": {**RATES, "head": 1e-3}}
    words = written(stages=[first, second], **COMMON)
    whole = train.main(words)
    lines = [line for line in read_metrics(whole / "metrics.jsonl") if "loss" in line]
    steps = sum(line["stage"] == lines[0]["stage"] for line in lines)
    if optimizer == "adamw":
        saved = load_checkpoint(Checkpoints(whole, keep=2).paths()[-1])["optimizer"]["state"]
        assert {int(state["step"]) for state in saved.values()} == {len(lines), len(lines) - steps}
    assert_same_bits(stopped_and_resumed(words, [steps, 1], monkeypatch), whole)
    reset = train.main([*words, "--set", "stages.1.optimizer_state=reset", "--set", "name=reset"])
    heads = [load_file(run / "last.safetensors")["head.linear.weight"] for run in (whole, reset)]
    assert not torch.equal(*heads)


@pytest.mark.slow
def test_which_weights_follow_an_average(written: Callable) -> None:
    still = {"head": 1e-30, "classes": 0.0}  # weights stay where the stage began
    first = {"domains": FEW, "lr": RATES, "ema_decay": 0.9}
    folder = train.main(written(stages=[first], **COMMON))
    averaged = load_file(folder / "last.safetensors")
    saved = load_checkpoint(Checkpoints(folder, keep=2).paths()[-1])
    raw = {name: saved["task"][f"embedder.{name}"] for name in averaged if "linear" in name}
    assert raw and not any(torch.equal(raw[name], averaged[name]) for name in raw)
    for carried, wanted in (("raw", raw), ("averaged", averaged)):
        stages = [{**first, "ema_carry": carried}, {"domains": FEW, "lr": still}]
        after = load_file(train.main(written(stages=stages, **COMMON)) / "last.safetensors")
        for name in raw:
            assert torch.equal(after[name], wanted[name]), name


@pytest.mark.slow
def test_stages_of_every_kind(
    mix: Path, toy_manifest: Path, written: Callable, tmp_path: Path, monkeypatch
) -> None:
    """From the cache; overlapping patches with retention; new classes alone; plain patches again."""
    torch.manual_seed(0)
    clip = create_clip(BackboneConfig(**TINY_CLIP)).state_dict()
    save_file({k: v.contiguous() for k, v in clip.items()}, tmp_path / "clip.safetensors")
    generic = {"manifest": str(mix), "root": str(toy_manifest.parent), "batch_size": 8}
    branches = {"linear": "separate", "dropouts": [0.1, 0.2]}
    model = {
        "backbone": {**TINY_CLIP, "pretrained": str(tmp_path / "clip.safetensors")},
        "image": {"size_px": 32},
        "head": {"norm": "bn_plain", "bias": False, "branches": branches, "image_shape": True},
    }
    overlap = {"size_px": 40, "stride_px": 4}
    alone = {"domains": FEW, "classes": "reset", "softmax_over": "stage", "margin": 0.5}
    stages = [
        {"name": "cached", "epochs": 1, "cached_views": 2, "sam_rho": 0.05, "lr": FROZEN},
        {"name": "overlap", "epochs": 0.3, "lr": RATES, **overlap},
        {"name": "last", "lr": {"classes": 1e-2}, **overlap, **alone},
        {"name": "plain", "epochs": 0.3, "lr": RATES, "ema_decay": 0.9},
    ]
    retention = {"weights": 1e-3, "features": 0.5, "generic": {**generic, "split": "train"}}
    words = written(stages=stages, retention=retention, model=model, **COMMON)
    whole = train.main(words)
    lines = read_metrics(whole / "metrics.jsonl")
    seen = [line["stage"] for line in lines if "loss" in line]
    assert sorted(set(seen)) == ["cached", "last", "overlap", "plain"]
    retained = {line["stage"] for line in lines if "retention_features" in line}
    assert retained == {"overlap", "plain"}
    starts = [seen.index(name) for name in ("overlap", "last", "plain")]
    cuts = [starts[0] - 1, starts[1] - starts[0] + 2, starts[2] - starts[1]]  # one in each of three
    assert_same_bits(stopped_and_resumed(words, cuts, monkeypatch), whole)
    last = open_model(whole, weights="last.safetensors")
    assert last.preprocess.size_px == 32 and last.embedder.backbone.stride_px is None
