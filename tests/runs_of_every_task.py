"""Configs of runs of a few steps that use each task and each way to train; what they are made of."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import save_file

from class_weights import with_class_weights
from guie.config.loading import to_yaml
from guie.config.model import BackboneConfig
from guie.data.manifest import load_manifest
from guie.models import LoadedModel, open_model
from guie.models.backbones.open_clip import create_clip
from guie.models.opening import composed
from guie.training import loop
from guie.training.step import LossWatch
from tiny_runs import TINY_CLIP, mix_with_val, tiny_run

RATES = {"backbone": 1e-4, "head": 1e-3, "classes": 1e-2}
THREE = ["cars", "dishes", "landmarks"]
VIT = {"kwargs": {"embed_dim": 24, "depth": 2, "num_heads": 2}}
VIT |= {"library": "timm", "name": "vit_tiny_patch16_224"}
CRITERIA = [
    {"loss": {"name": "arcface"}, "weight": 0.5},
    {"relation": {"name": "snd", "sigma": {"perplexity": 4}, "queue": 64}},
    {"relation": {"name": "rkd", "angle": 1.0}, "domains": THREE},
    {"relation": {"name": "matching", "standardise": {"name": "phi_s", "steps": 1}, "drop": 0.5}},
    {"relation": {"name": "logits"}},
    {"relation": {"name": "similarity"}},
]


ADAPTED = {
    "adapters": [
        {"kind": "stochastic", "dim": 8, "draw": "image", "scale": 0.5},
        {"kind": "lora", "rank": 2, "targets": ["q", "v", "mlp"]},
    ],
    "prompts": {"kind": "pool", "size": 4, "length": 2, "orthogonality": 1e-6},
}
ADAPTED_RATES = {"adapters": 1e-2, "prompts": 1e-2, "head": 1e-2, "classes": 1e-1}
# What differs from a plain run of four steps
RUNS: dict[str, dict[str, Any]] = {
    "classification": {},
    "timm, bf16": {"precision": "bf16", "model": {"backbone": VIT}},
    "nested widths": {"task": {"nested": [4, 8]}},
    "triplet with memory": {"task": {"loss": {"name": "triplet", "memory": 48}}},
    "metaclasses": {
        "task": {"metaclasses": {"count": 4}},
        "model": {"head": {"dim": 16, "parts": 4}},
        "train": {"softmax_over": "stage", "clip_grad_value": 1.0},
    },
    "sub-centres, SAM, EMA, clipping, micro-batches, checkpointing": {
        "task": {"loss": {"name": "arcface", "centers": 2, "classifier": "separate"}},
        "gradient_checkpointing": True,
        "train": {"sam_rho": 0.05, "ema_decay": 0.5, "clip_grad_norm": 1.0, "accumulate": 2},
    },
    "retention, generic images": {"retention": {"weights": 0.5, "features": 10.0}},
    "contrastive": {"task": {"name": "contrastive"}, "model": {"head": None}},
    "distillation": {"task": {"name": "distillation", "criteria": CRITERIA}},
    "distillation from cached teachers": {
        "task": {"name": "distillation", "criteria": CRITERIA},
        "train": {"repeated_views": 1},
    },
    "online": {
        "task": {"name": "online"},
        "train": {"sampler": {"name": "loss_driven", "period": "10 steps"}},
    },
    "adapters and prompts": {"model": ADAPTED, "train": {"lr": ADAPTED_RATES}},
    "two stages, the first on cached features": {
        "stages": [{"cached_views": 1, "lr": {**RATES, "backbone": 0.0}}, {"size_px": 40}]
    },
}
# Models to embed with, each written into a folder
BY_SHAPE = [{"part": 0.9, "aspect": {"max": 1.0}}, {"aspect": {"above": 1.0}}]
MODELS: dict[str, Callable[[Path], LoadedModel]] = {
    "a run": lambda folder: open_model(tiny_run(folder, head={"dim": 16, "norm": "bn"})),
    "a head that takes the shape": lambda folder: open_model(
        tiny_run(
            folder, image={"size_px": 32, "fit": "pad"}, head={"norm": "bn", "image_shape": True}
        )
    ),
    "adapters and prompts": lambda folder: open_model(tiny_run(folder, **ADAPTED)),
    "views by shape": lambda folder: composed([open_model(tiny_run(folder))], views=BY_SHAPE),
}


class Material(NamedTuple):
    """A mix and the folder of its images, two teachers, and pretrained weights."""

    mix: Path
    root: Path
    teachers: list[dict[str, Any]]
    weights: Path


def material_of(toy: Path, folder: Path) -> Material:
    """Write what the runs need into a folder; `toy` is the toy benchmark's manifest."""
    mix = mix_with_val(toy, folder / "mix.csv")
    some = tiny_run(folder / "some", start=1, image={"size_px": 40}, size_px=40)
    every = tiny_run(folder / "every", start=2)
    for run in (some, every):
        with_class_weights(run, sorted(set(load_manifest(mix).table["label"])))
    teachers = [{"model": str(some), "domains": THREE}, {"model": str(every)}]
    torch.manual_seed(5)
    clip = create_clip(BackboneConfig.model_validate(TINY_CLIP)).state_dict()
    save_file({k: v.contiguous() for k, v in clip.items()}, folder / "clip.safetensors")
    return Material(mix, toy.parent, teachers, folder / "clip.safetensors")


def written(changes: dict[str, Any], material: Material, folder: Path) -> Path:
    """Write the config of a run of a few steps; return its path."""
    model = {"backbone": TINY_CLIP, "image": {"size_px": 32}, "head": {"dim": 16, "norm": "bn"}}
    model, task = model | changes.get("model", {}), dict(changes.get("task", {}))
    rates = dict(RATES)
    if task.get("name") == "distillation":
        task["teachers"], rates["matching"] = material.teachers, 1e-3
    elif task.get("name") == "online":
        rates["teachers"] = 1e-3
    elif task.get("name") == "contrastive":
        rates = {"backbone": 1e-4}
    if retention := changes.get("retention"):
        model["backbone"] = {**TINY_CLIP, "pretrained": str(material.weights)}
        images = {"manifest": str(material.mix), "root": str(material.root), "batch_size": 8}
        retention = {**retention, "generic": images}
    config = {
        "name": "t",
        "out": str(folder),
        "log_every": "1000 steps",
        "trackers": [],
        "data": {"manifest": str(material.mix), "root": str(material.root), "workers": 0},
        "stages": [{}],
        **changes,
        **{"model": model, "task": task, "retention": retention},
        "train": {"epochs": 0.4, "batch_size": 24, "lr": rates, **changes.get("train", {})},
    }
    path = folder / "c.yaml"
    path.write_text(to_yaml(config))
    return path


def within_steps(
    monkeypatch: pytest.MonkeyPatch, begin: Callable[[], object], end: Callable[[], object]
) -> None:
    """Call `begin` when the first step of a stage has ended, and `end` when its last step has."""
    add, train_stage = LossWatch.add, loop.train_stage

    def watched(run: Any, stage: Any) -> None:
        done = iter(range(1, stage.data.total_steps + 1))

        def added(*args: Any) -> None:
            add(*args)
            number = next(done)
            if number == 1:
                begin()
            if number == stage.data.total_steps:
                end()

        assert stage.data.total_steps > 1
        monkeypatch.setattr(LossWatch, "add", added)
        train_stage(run, stage)

    monkeypatch.setattr(loop, "train_stage", watched)
