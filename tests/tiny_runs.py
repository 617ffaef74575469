"""Run folders as train.py leaves them, a mix that has a val split, and runs that are cut short."""

import copy
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import train
from guie.config import RunConfig, config_from
from guie.config.loading import to_yaml
from guie.config.model import ModelConfig
from guie.data.manifest import load_manifest, save_manifest
from guie.models import LoadedModel, open_model
from guie.models.backbones.open_clip import OpenClip
from guie.models.embedder import Embedder, build_embedder
from guie.models.weights import save_model
from guie.training.run_folder import read_metrics, write_record

TINY_CLIP = {"library": "open_clip", "name": "guie-tiny"}


def tiny_config(folder: Path, **model: Any) -> RunConfig:
    """Two stages, the second at 40 px; `model` replaces keys of the model's config."""
    image = {"size_px": 32}
    model = {"backbone": TINY_CLIP, "image": image, "head": {"dim": 16}, **model}
    rates = {"classes": 1e-2} | ({"head": 3e-3} if model["head"] else {})
    rates |= {part: 1e-3 for part in ("adapters", "prompts") if model.get(part)}
    return config_from(
        {
            "name": folder.name,
            "out": str(folder.parent),
            "data": {"manifest": "input/demo/manifest.csv"},
            "model": model,
            "train": {"epochs": 1, "lr": rates},
            "stages": [{"name": "head"}, {"name": "full", "size_px": 40}],
        },
        RunConfig,
    )


def tiny_run(
    folder: Path, start: int = 0, moved: float = 0.0, size_px: int = 32, **model: Any
) -> Path:
    """A run whose weights are those of seed `start`, moved by so much noise of the folder's own."""
    config = tiny_config(folder, **model)
    write_record(folder, config)
    embedder = copy.deepcopy(_started(config.model.model_dump_json(), start))
    embedder.backbone.set_image_size(size_px)
    torch.manual_seed(len(folder.name) + sum(map(ord, folder.name)))
    with torch.no_grad():
        for parameter in embedder.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=moved)
    for name in ("model", "last"):
        save_model(embedder, folder / f"{name}.safetensors")
    return folder


@cache
def _started(model: str, seed: int) -> Embedder:
    """Built once: most of it is open_clip's text tower, which is thrown away."""
    torch.manual_seed(seed)
    return build_embedder(ModelConfig.model_validate_json(model))


def bn_config(
    folder: Path,
    manifest: Path,
    train: dict[str, Any],
    stages: list[dict[str, Any]],
    task: dict[str, Any] | None = None,
) -> Path:
    """A config of a tiny CLIP with batch statistics in its head, logged at every step; its file."""
    config = {
        "name": "one",
        "out": str(folder),
        "log_every": "1 step",
        "data": {"manifest": str(manifest), "workers": 0},
        "model": {"backbone": TINY_CLIP, "image": {"size_px": 32}, "head": {"norm": "bn"}},
        "train": train,
        "stages": stages,
        **({"task": task} if task else {}),
    }
    path = folder / "c.yaml"
    path.write_text(to_yaml(config))
    return path


def weights(run: Path | LoadedModel, file: str = "model.safetensors") -> dict[str, torch.Tensor]:
    """All weights and buffers of a run, by name."""
    model = run if isinstance(run, LoadedModel) else open_model(run, weights=file)
    return model.embedder.state_dict()


def mix_with_val(toy_manifest: Path, path: Path) -> Path:
    """The toy benchmark with one train class of each domain moved to val."""
    table = load_manifest(toy_manifest).table.copy()
    train_rows = table[table["split"] == "train"]
    moved = table["label"].isin(train_rows.groupby("domain")["label"].first())
    table.loc[moved, "split"], table.loc[moved, "role"] = "val", "both"
    save_manifest(table, path)
    return path


def interrupted_after(patched: pytest.MonkeyPatch, steps: int) -> None:
    """Make the optimiser's next step after so many raise KeyboardInterrupt."""
    done, step = [], torch.optim.AdamW.step

    def counting(self, *args, **kwargs):
        done.append(1)
        if len(done) > steps:
            raise KeyboardInterrupt
        return step(self, *args, **kwargs)

    patched.setattr(torch.optim.AdamW, "step", counting)


def cut_and_resumed(monkeypatch: pytest.MonkeyPatch, words: list[str], steps: int) -> Path:
    """The folder of a run that was interrupted after so many steps, and gone on with."""
    with monkeypatch.context() as patched:
        interrupted_after(patched, steps)
        with pytest.raises(KeyboardInterrupt):
            train.main(words)
    return train.main([*words, "--resume"])


def assert_same_bits(run: Path, other: Path) -> None:
    """Both runs ended with the same weights, and logged the same numbers."""
    for name in ("model.safetensors", "last.safetensors", "metrics.jsonl"):
        assert (run / name).read_bytes() == (other / name).read_bytes(), name


def logged_losses(run: Path) -> list[float]:
    """The loss of each step that was logged."""
    return [line["loss"] for line in read_metrics(run / "metrics.jsonl") if "loss" in line]


class Parts(nn.ModuleDict):
    """A task that is nothing but its parts; its layers are named as open_clip's and timm's."""

    embedder = SimpleNamespace(backbone=OpenClip)

    def parts(self) -> dict[str, dict[str, nn.Parameter]]:
        return {name: dict(module.named_parameters()) for name, module in self.items()}

    def unused_parameters(self) -> set[nn.Parameter]:
        return set()
