"""Adapters and prompts in the loop: on a tower of pretrained weights that stays as it is."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from toy_configs import sets

import train
import two_processes
from guie.base.devices import make_accelerator
from guie.base.errors import UserError
from guie.config.model import BackboneConfig
from guie.data.manifest import load_manifest
from guie.evaluation.opened import prompt_weights
from guie.models import open_model
from guie.models.backbones.open_clip import create_clip
from guie.rows.embedding import embed_files
from guie.training.run_folder import read_metrics
from tiny_runs import TINY_CLIP, assert_same_bits, cut_and_resumed

STOCHASTIC = {"kind": "stochastic", "dim": 8, "draw": "image", "scale": 0.5}
PUMA = {
    "adapters": [STOCHASTIC, {"kind": "lora", "rank": 2, "targets": ["q", "v", "mlp"]}],
    "prompts": {"kind": "pool", "size": 4, "length": 2, "orthogonality": 1e-6},
}
RATES = {"adapters": 1e-2, "prompts": 1e-2, "head": 1e-2, "classes": 1e-1}
SHORT = "stages.0.epochs=0.1"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of a tiny CLIP as a file, in place of the hub's."""
    path = tmp_path_factory.mktemp("base") / "clip.safetensors"
    torch.manual_seed(5)
    clip = create_clip(BackboneConfig(**TINY_CLIP))
    save_file({k: v.contiguous() for k, v in clip.state_dict().items()}, path)
    return path


@pytest.fixture(scope="module")
def adapted(base: Path, written: Callable) -> Callable[..., list[str]]:
    """Write a config with these keys of the model; its rates are those of the parts that train."""

    def write(*overrides: str, **model: Any) -> list[str]:
        backbone = {**TINY_CLIP, "pretrained": str(base)}
        model = {
            "backbone": backbone,
            "image": {"size_px": 32},
            "head": {"dim": 16},
            **PUMA,
            **model,
        }
        rates = {part: rate for part, rate in RATES.items() if model.get(part, True)}
        stage = {"epochs": 1, "lr": rates, "validate_every": "2 steps"}
        return written(*overrides, model=model, stages=[stage])

    return write


@pytest.fixture(scope="module")
def words(adapted: Callable) -> list[str]:
    return adapted()


@pytest.fixture(scope="module")
def run(words: list[str]) -> Path:
    return train.main(words)


@pytest.mark.slow
def test_the_loss_falls_and_the_tower_stays(
    run: Path, words: list[str], base: Path, tmp_path: Path, monkeypatch
) -> None:
    lines = [line for line in read_metrics(run / "metrics.jsonl") if "loss" in line]
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert {"lr_adapters", "lr_prompts", "orthogonality"} <= set(lines[0])
    trained = open_model(run, weights="last.safetensors").embedder.backbone
    pretrained = load_file(base)
    merged = ("in_proj_weight", "c_fc.weight", "c_proj.weight")  # by LoRA
    for name, value in trained.tower.state_dict().items():
        same = torch.equal(value, pretrained[f"visual.{name}"])
        assert same == (not name.endswith(merged)) or "positional" in name
    assert any(p.any() for p in trained.adapters.stochastic["0_mlp"].up.parameters())
    assert_same_bits(cut_and_resumed(monkeypatch, [*words, *sets(f"out={tmp_path}")], 2), run)


def test_only_what_was_trained_is_saved(run: Path) -> None:
    names = set(load_file(run / "model.safetensors"))
    assert {name.split(".")[0] for name in names} == {"backbone", "head"}
    assert {name.split(".")[1] for name in names if "backbone" in name} == {"adapters", "prompts"}
    assert not list(run.glob("frozen-*.safetensors"))
    (frozen,) = run.glob("frozen-*.json")
    assert json.loads(frozen.read_text())["backbone"]["name"] == "guie-tiny"
    tower = sum(p.numel() for p in open_model(run).embedder.backbone.tower.parameters())
    saved = sum(file.stat().st_size for file in run.rglob("*") if file.is_file())
    assert (run / "model.safetensors").stat().st_size < tower  # of four bytes each
    assert saved < 12 * tower
    summary = json.loads((run / "summary.json").read_text())
    assert summary["trainable_parameters"] < summary["parameters"] / 3


def test_weights_of_prompts_by_domain(run: Path, mix: Path, toy_manifest: Path) -> None:
    manifest = load_manifest(mix, toy_manifest.parent)
    model = open_model(run)
    table = prompt_weights(model, manifest, "val", workers=0)
    rows = manifest.split("val")
    assert list(table.index) == sorted(rows["domain"].unique()) and table.shape[1] == 4
    domain, seen = table.index[0], []
    weighing = model.embedder.backbone.prompts.weighing
    hook = weighing.register_forward_hook(lambda _, given, made: seen.append(made))
    files = [manifest.file(path) for path in rows[rows["domain"] == domain]["image_path"]]
    embed_files(make_accelerator(), model.embedder, model.preprocess, files, workers=0)
    hook.remove()
    mean = torch.cat(seen).mean(dim=0).tolist()
    assert mean == pytest.approx(table.loc[domain].tolist(), abs=1e-5)
    with pytest.raises(UserError, match="has no prompt pool"):
        prompt_weights(open_model("timm:test_vit"), manifest)


def test_the_base_is_found_from_another_working_directory_and_another_is_refused(
    base: Path, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path is the run's: as it was written, or from the run's folder on."""
    (tmp_path / "elsewhere").mkdir()
    own = tmp_path / "clip.safetensors"
    own.write_bytes(base.read_bytes())
    monkeypatch.chdir(tmp_path)
    relative = sets("model.backbone.pretrained=./clip.safetensors", "out=runs", SHORT)
    folder = train.main([*words, *relative]).absolute()
    monkeypatch.chdir(tmp_path / "elsewhere")
    open_model(folder)
    other = load_file(own)
    other["visual.class_embedding"][0] += 1
    save_file(other, own)
    with pytest.raises(UserError, match="have changed; restore the original file"):
        open_model(folder)
    own.unlink()
    with pytest.raises(UserError, match="no such weights file"):
        open_model(folder)


def test_what_is_saved_of_a_frozen_tower(adapted: Callable, base: Path) -> None:
    """Nothing, unless a copy is wanted; of tuned vectors, the tower's own."""
    folder = train.main(adapted(SHORT, "copy_frozen=true"))
    (frozen,) = folder.glob("frozen-*")
    assert frozen.suffix == ".safetensors" and "backbone.tower.conv1.weight" in load_file(frozen)
    folder = train.main(adapted(SHORT, adapters=[], prompts=None))
    assert set(load_file(folder / "last.safetensors")) == {"head.linear.weight", "head.linear.bias"}
    assert not list(folder.glob("frozen-*.safetensors"))
    tuned = {"kind": "tuned", "targets": "both"}
    folder = train.main(adapted(SHORT, adapters=tuned, prompts=None))
    saved, pretrained = load_file(folder / "last.safetensors"), load_file(base)
    tower = {n: v for n, v in saved.items() if n.startswith("backbone.tower.")}
    assert tower and all(value.ndim == 1 for value in tower.values())
    for name, value in tower.items():
        assert not torch.equal(value, pretrained[name.replace("backbone.tower", "visual")])
    assert open_model(folder).embedder.backbone.adapters.tuned


@pytest.mark.slow
@pytest.mark.parametrize("how", ["DDP", "FSDP", "gradient_checkpointing=true", "compile=true"])
def test_other_ways_to_run_train_alike(how: str, adapted: Callable, tmp_path: Path) -> None:
    """Without dropout or other chance, the logs agree."""
    if how.startswith("compile") and not shutil.which(os.environ.get("CXX", "g++")):
        pytest.skip("torch.compile needs a C++ compiler")
    adapters = [STOCHASTIC | {"keep": 1.0}, PUMA["adapters"][1]]
    words = adapted(f"out={tmp_path}", adapters=adapters, head={"dim": 16, "norm": "l2"})
    alone, other = train.main(words), [*words, "--set", "name=other"]
    if "=" in how:
        train.main([*other, "--set", how])
    else:
        two_processes.run("train", other, **(two_processes.SHARDED if how == "FSDP" else {}))
    logs = [read_metrics(folder / "metrics.jsonl") for folder in (alone, tmp_path / "other")]
    for line, expected in zip(*logs, strict=True):
        assert line.pop("stage") == expected.pop("stage")
        assert line == pytest.approx(expected, rel=1e-3)
