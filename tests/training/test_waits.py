"""A training step never waits for the device, but where a library does."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from toy_configs import write_config

import train
from class_weights import with_class_weights
from guie.config.model import BackboneConfig
from guie.data.dataset import Batch
from guie.data.manifest import load_manifest, save_manifest
from guie.models.backbones import create_clip
from guie.training import loop
from guie.training.step import LossWatch
from guie.training.tasks import DistillationTask, Task
from tiny_runs import TINY_CLIP, tiny_run
from waits import Waits

STEP = 3
RATES = {"backbone": 1e-4, "head": 1e-3, "classes": 1e-2}
TEACHERS_RATES = {**RATES, "teachers": 1e-3}
ADAPTED = {
    "adapters": [
        {"kind": "stochastic", "dim": 8, "draw": "image", "scale": 0.5},
        {"kind": "lora", "rank": 2, "targets": ["q", "v", "mlp"]},
    ],
    "prompts": {"kind": "pool", "size": 4, "length": 2, "orthogonality": 0.1},
}


def on_device(task: Task, batch: Batch) -> list[Tensor]:
    """What a GPU would hold as a step begins."""
    models: list[nn.Module] = [task]
    if isinstance(task, DistillationTask):
        models += [teacher.model.embedder for teacher in task.teachers.teachers]
    if task.retention and task.retention.pretrained:
        models.append(task.retention.pretrained)
    held = [tensor for model in models for tensor in (*model.parameters(), *model.buffers())]
    named = {field.name: getattr(batch, field.name) for field in fields(batch)}
    cpu = ("label_B", "row_B")
    return held + [v for name, v in named.items() if isinstance(v, Tensor) and name not in cpu]


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The waits of one step of the next training: from its forward pass to the watch of its loss."""
    compute, add, passes = loop.gradients_within_memory, LossWatch.add, []
    seen: list[str] = []
    modes: list[Waits] = []

    def begun(accelerator: Any, model: nn.Module, batch: Batch, *args: Any) -> Any:
        passes.append(1)
        if len(passes) == STEP:
            modes.append(Waits(on_device(accelerator.unwrap_model(model), batch)))
            modes[0].__enter__()
        return compute(accelerator, model, batch, *args)

    def ended(*args: Any) -> None:
        add(*args)
        if modes:
            modes[0].__exit__(None, None, None)
            seen.extend(modes.pop().seen)

    monkeypatch.setattr(loop, "gradients_within_memory", begun)
    monkeypatch.setattr(LossWatch, "add", ended)
    return seen


def run(folder: Path, mix: Path, root: Path, stage: dict[str, Any], **changes: Any) -> None:
    stage = {"epochs": 1, "lr": RATES, "augment": {"flip": 0.5}, **stage}
    rare = {"log_every": "1000 steps", "checkpoint_every": "1000 steps", "trackers": []}
    path = write_config(folder / "c.yaml", mix, root, **rare, **changes, stages=[stage])
    train.main(["--config", str(path)])


@pytest.mark.parametrize(
    "loss",
    [
        {"name": "arcface", "margin_rad": {"min": 0.2, "max": 0.5}, "centers": 2},
        {"name": "curricularface", "classifier": "separate"},
        {"name": "curricularface", "running_mean": "class"},
        {"name": "batch_all"},
        {"name": "hyperbolic"},
    ],
)
def test_losses_on_labels(
    loss: dict, mix: Path, toy_manifest: Path, tmp_path: Path, waits: list[str]
) -> None:
    lr = RATES if loss["name"] not in ("batch_all", "hyperbolic") else {**RATES, "classes": 0.0}
    stage = {"lr": lr, "clip_grad_norm": 1.0, "ema_decay": 0.9, "accumulate": 2}
    run(tmp_path, mix, toy_manifest.parent, stage, task={"loss": loss})
    assert waits == []


def test_metaclasses_in_a_stage_of_its_own_with_sam(
    mix: Path, toy_manifest: Path, tmp_path: Path, waits: list[str]
) -> None:
    stage = {"softmax_over": "stage", "sam_rho": 0.05, "clip_grad_value": 1.0}
    task = {"loss": {"name": "arcface"}, "metaclasses": {"count": 4}}
    run(tmp_path, mix, toy_manifest.parent, stage, task=task)
    assert waits == []


def test_adapters_and_retention(
    mix: Path, toy_manifest: Path, tmp_path: Path, waits: list[str]
) -> None:
    torch.save(create_clip(BackboneConfig(**TINY_CLIP)).state_dict(), tmp_path / "clip.pt")
    backbone = {**TINY_CLIP, "pretrained": str(tmp_path / "clip.pt")}
    model = {"backbone": backbone, "image": {"size_px": 32}, "head": {"norm": "bn"}, **ADAPTED}
    generic = {"manifest": str(mix), "root": str(toy_manifest.parent), "batch_size": 6}
    retention = {"weights": 0.5, "features": 1.0, "generic": generic}
    stage = {"lr": {**RATES, "adapters": 1e-3, "prompts": 1e-3}}
    run(tmp_path, mix, toy_manifest.parent, stage, model=model, retention=retention)
    assert waits == []


def test_contrastive(mix: Path, toy_manifest: Path, tmp_path: Path, waits: list[str]) -> None:
    table = load_manifest(mix, toy_manifest.parent).table.copy()
    table["caption"] = table["label"]
    save_manifest(table, tmp_path / "mix.csv")
    model = {"backbone": TINY_CLIP, "image": {"size_px": 32}, "head": None}
    task = {"name": "contrastive"}
    stage = {"lr": {"backbone": 1e-4}}
    run(tmp_path, tmp_path / "mix.csv", toy_manifest.parent, stage, model=model, task=task)
    assert waits == []


@pytest.mark.parametrize("views", [{}, {"repeated_views": 1}])
def test_distillation(
    views: dict, mix: Path, toy_manifest: Path, tmp_path: Path, waits: list[str]
) -> None:
    table = load_manifest(mix, toy_manifest.parent).table
    domains = sorted(set(table["domain"]))[:3]
    folders = [tiny_run(tmp_path / name, start=1) for name in ("some", "every")]
    for folder in folders:
        with_class_weights(folder, sorted(set(table["label"])))
    teachers = [{"model": str(folders[0]), "domains": domains}, {"model": str(folders[1])}]
    standardise = {"name": "phi_s", "steps": 1}
    criteria = [
        {"loss": {"name": "arcface"}, "weight": 0.5},
        {"relation": {"name": "snd", "sigma": {"perplexity": 4}, "queue": 64}},
        {"relation": {"name": "rkd", "angle": 1.0}, "domains": domains},
        {"relation": {"name": "matching", "standardise": standardise, "drop": 0.5}},
        {"relation": {"name": "logits"}},
        {"relation": {"name": "similarity"}},
    ]
    task = {"name": "distillation", "teachers": teachers, "criteria": criteria}
    stage = {"lr": {**RATES, "matching": 1e-3}, "sampler": "mixed", **views}
    run(tmp_path, mix, toy_manifest.parent, stage, task=task)
    assert waits == []


@pytest.mark.parametrize("sampler", ["mixed", {"name": "loss_driven", "period": "20 steps"}])
def test_online(
    sampler: Any, mix: Path, toy_manifest: Path, tmp_path: Path, waits: list[str]
) -> None:
    loss = {"name": "curricularface", "classifier": "separate"}
    stage = {"lr": TEACHERS_RATES, "sampler": sampler}
    task = {"name": "online", "teacher_dim": 8, "loss": loss}
    run(tmp_path, mix, toy_manifest.parent, stage, task=task)
    assert waits == []


@pytest.mark.parametrize("loss", ["proxy_anchor", "supcon"])
def test_the_losses_of_a_library_wait(
    loss: str, mix: Path, toy_manifest: Path, tmp_path: Path, waits: list[str]
) -> None:
    """Which shows that waits are seen. In the backward pass the gradient of what it indexed by a mask."""
    lr = RATES if loss == "proxy_anchor" else {**RATES, "classes": 0.0}
    run(tmp_path, mix, toy_manifest.parent, {"lr": lr}, task={"loss": {"name": loss}})
    where = {wait.partition(" at ")[2].partition(":")[0] for wait in waits}
    assert "losses/metric_learning.py" in where
    assert where <= {"losses/metric_learning.py", "training/step.py"}
