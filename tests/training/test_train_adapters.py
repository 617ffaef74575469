"""Adapters and prompts in the loop: on a tower of pretrained weights that stays as it is."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from toy_configs import write_config

import embed
import export
import train
import two_processes
from composing import composition
from guie.base.devices import make_accelerator
from guie.base.errors import UserError
from guie.config.loading import parsed, to_yaml
from guie.config.model import BackboneConfig
from guie.data.manifest import load_manifest
from guie.evaluation.opened import prompt_weights
from guie.models import open_beside, open_model
from guie.models.backbones.open_clip import create_clip
from guie.rows.embedding import embed_files
from guie.training.run_folder import read_metrics
from tiny_runs import assert_same_bits, cut_and_resumed, tiny_run
from two_processes import SHARDED

PUMA = {
    "adapters": [
        {"kind": "stochastic", "dim": 8, "draw": "image", "scale": 0.5},
        {"kind": "lora", "rank": 2, "targets": ["q", "v", "mlp"]},
    ],
    "prompts": {"kind": "pool", "size": 4, "length": 2, "orthogonality": 1e-6},
}
ONE_KIND = {"adapters": PUMA["adapters"][:1], "prompts": None}
STAGE = {
    "epochs": 1,
    "lr": {"adapters": 1e-2, "prompts": 1e-2, "head": 1e-2, "classes": 1e-1},
    "validate_every": "2 steps",
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of a tiny CLIP as a file, which stands in for the hub's."""
    path = tmp_path_factory.mktemp("base") / "clip.safetensors"
    torch.manual_seed(5)
    clip = create_clip(BackboneConfig(library="open_clip", name="guie-tiny"))
    save_file({k: v.contiguous() for k, v in clip.state_dict().items()}, path)
    return path


@pytest.fixture(scope="module")
def config(
    base: Path, mix: Path, toy_manifest: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    path = tmp_path_factory.mktemp("adapted") / "c.yaml"
    return write_config(path, mix, toy_manifest.parent, model=model(base), stages=[STAGE])


def model(base: Path, **more: Any) -> dict[str, Any]:
    backbone = {"library": "open_clip", "name": "guie-tiny", "pretrained": str(base)}
    return {"backbone": backbone, "image": {"size_px": 32}, "head": {"dim": 16}, **PUMA, **more}


@pytest.fixture(scope="module")
def run(config: Path) -> Path:
    return train.main(["--config", str(config)])


@pytest.mark.slow
def test_the_loss_falls_and_the_tower_stays(run: Path, base: Path) -> None:
    lines = [line for line in read_metrics(run / "metrics.jsonl") if "loss" in line]
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert {"lr_adapters", "lr_prompts", "orthogonality"} <= set(lines[0])
    trained = open_model(run, weights="last.safetensors").embedder.backbone
    pretrained = load_file(base)
    merged = {"in_proj_weight", "c_fc.weight", "c_proj.weight"}  # by LoRA
    for name, value in trained.tower.state_dict().items():
        same = torch.equal(value, pretrained[f"visual.{name}"])
        assert same == (not any(name.endswith(end) for end in merged)) or "positional" in name
    assert any(
        parameter.any() for parameter in trained.adapters.stochastic["0_mlp"].up.parameters()
    )


def test_only_what_was_trained_is_saved(run: Path) -> None:
    names = set(load_file(run / "model.safetensors"))
    assert {name.split(".")[0] for name in names} == {"backbone", "head"}
    assert {name.split(".")[1] for name in names if "backbone" in name} == {"adapters", "prompts"}
    assert not list(run.glob("frozen-*.safetensors"))
    (message,) = run.glob("frozen-*.json")
    assert json.loads(message.read_text())["backbone"]["name"] == "guie-tiny"
    tower = sum(p.numel() for p in open_model(run).embedder.backbone.tower.parameters())
    saved = sum(file.stat().st_size for file in run.rglob("*") if file.is_file())
    assert (run / "model.safetensors").stat().st_size < tower  # of four bytes each
    assert saved < 12 * tower
    summary = json.loads((run / "summary.json").read_text())
    assert summary["trainable_parameters"] < summary["parameters"] / 3


@pytest.mark.slow
def test_killed_and_resumed_it_ends_in_the_same_bits(
    run: Path, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = ["--config", str(config), "--set", f"out={tmp_path}"]
    resumed = cut_and_resumed(monkeypatch, there, steps=2)
    assert_same_bits(resumed, run)


@pytest.mark.slow
def test_it_is_embedded_and_exported(
    run: Path, mix: Path, toy_manifest: Path, tmp_path: Path
) -> None:
    common = ["--manifest", str(mix), "--root", str(toy_manifest.parent), "--split", "val"]
    embed.main(["--model", str(run), *common, "--out", str(tmp_path / "E.npz"), "--workers", "0"])
    export.main(["--run", str(run), "--out", str(tmp_path / "submission")])
    assert (tmp_path / "submission" / "submission.zip").is_file()


def test_weights_of_prompts_by_domain(
    run: Path, mix: Path, toy_manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = load_manifest(mix, toy_manifest.parent)
    model = open_model(run)
    table = prompt_weights(model, manifest, "val", workers=0)
    rows = manifest.split("val")
    assert list(table.index) == sorted(rows["domain"].unique()) and table.shape[1] == 4
    domain = table.index[0]
    seen: list[torch.Tensor] = []
    hold = model.embedder.backbone.prompts.weighing.register_forward_hook(
        lambda _, given, made: seen.append(made)
    )
    files = [manifest.file(path) for path in rows[rows["domain"] == domain]["image_path"]]
    embed_files(make_accelerator(), model.embedder, model.preprocess, files, workers=0)
    hold.remove()
    assert torch.cat(seen).mean(dim=0).tolist() == pytest.approx(
        table.loc[domain].tolist(), abs=1e-5
    )
    moved = []
    monkeypatch.setattr(nn.Module, "to", lambda module, *device: moved.append(module) or module)
    prompt_weights(model, manifest, "val", workers=0)
    assert model.embedder in moved  # whole: what is left of it is used later
    monkeypatch.undo()
    with pytest.raises(UserError, match="has no prompt pool"):
        prompt_weights(open_model("timm:test_vit"), manifest)


def test_the_base_is_found_from_another_working_directory_and_another_is_refused(
    base: Path, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path is the run's: as it was written, or from the run's folder on."""
    (tmp_path / "elsewhere").mkdir()
    own = tmp_path / "clip.safetensors"
    own.write_bytes(base.read_bytes())
    monkeypatch.chdir(tmp_path)
    key = "model.backbone.pretrained=./clip.safetensors"
    words = ["--config", str(config), "--set", key, "--set", "out=runs"]
    folder = train.main([*words, "--set", "stages.0.epochs=0.1"]).absolute()
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


def test_a_copy_of_the_frozen_weights_where_wanted(
    base: Path, config: Path, tmp_path: Path
) -> None:
    options = ["--config", str(config), "--set", f"out={tmp_path}", "--set", "copy_frozen=true"]
    folder = train.main([*options, "--set", "stages.0.epochs=0.1"])
    (frozen,) = folder.glob("frozen-*")
    assert frozen.suffix == ".safetensors" and "backbone.tower.conv1.weight" in load_file(frozen)


def test_a_frozen_backbone_with_a_plain_head_is_not_written_either(
    base: Path, mix: Path, toy_manifest: Path, tmp_path: Path
) -> None:
    plain = model(base, adapters=[], prompts=None)
    stages = [{"epochs": 0.1, "lr": {"head": 1e-2, "classes": 1e-1}}]
    path = write_config(tmp_path / "c.yaml", mix, toy_manifest.parent, model=plain, stages=stages)
    folder = train.main(["--config", str(path)])
    assert set(load_file(folder / "last.safetensors")) == {"head.linear.weight", "head.linear.bias"}
    assert not list(folder.glob("frozen-*.safetensors"))


def test_tuned_vectors_are_the_towers_own(
    base: Path, mix: Path, toy_manifest: Path, tmp_path: Path
) -> None:
    tuned = model(base, adapters={"kind": "tuned", "targets": "both"}, prompts=None)
    lr = {"adapters": 1e-2, "head": 1e-2, "classes": 1e-1}
    stages = [{"epochs": 0.1, "lr": lr}]
    path = write_config(tmp_path / "c.yaml", mix, toy_manifest.parent, model=tuned, stages=stages)
    folder = train.main(["--config", str(path)])
    saved, pretrained = load_file(folder / "last.safetensors"), load_file(base)
    towers = {n: v for n, v in saved.items() if n.startswith("backbone.tower.")}
    assert towers and all(value.ndim == 1 for value in towers.values())
    own = {n: pretrained[n.replace("backbone.tower", "visual")] for n in towers}
    assert not any(torch.equal(towers[name], own[name]) for name in own)
    assert open_model(folder).embedder.backbone.adapters.tuned


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"adapters": []}, "lr.adapters: this task has no such part"),
        ({"prompts": None}, "lr.prompts: this task has no such part"),
        ({"adapters": {"kind": "stochastic", "dim": 8}}, "another config"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    changes: dict[str, Any], message: str, run: Path, config: Path, base: Path, tmp_path: Path
) -> None:
    values = parsed(config.read_text()).plain
    values["model"] = model(base, **changes)
    path = tmp_path / "c.yaml"
    path.write_text(to_yaml(values))
    with pytest.raises(UserError, match=message):
        train.main(["--config", str(path), "--resume"])


def test_cached_views_of_features_that_move_are_refused(config: Path) -> None:
    with pytest.raises(UserError, match="features are computed once"):
        train.main(["--config", str(config), "--set", "stages.0.cached_views=2"])


# ---------------------------------------------------------------- several on one base


@pytest.fixture(scope="module")
def runs(config: Path) -> tuple[Path, Path]:
    """Two short runs of stochastic adapters alone, which differ by their seed."""
    values = parsed(config.read_text()).plain
    values["model"] |= ONE_KIND
    del values["stages"][0]["lr"]["prompts"]
    path = config.with_name("several.yaml")
    path.write_text(to_yaml(values))
    words = ["--config", str(path), "--set", "stages.0.epochs=0.2", "--set"]
    names = ("seed=1", "seed=2")
    return tuple(train.main([*words, f"name={n.replace('=', '')}", "--set", n]) for n in names)


@pytest.mark.slow
@torch.no_grad()
def test_one_tower_in_memory_serves_several(runs: tuple[Path, Path], run: Path) -> None:
    first = open_model(runs[0])
    second = open_beside(first, runs[1])
    images = torch.randn(2, 3, 32, 32)
    before = first.embedder(images)
    assert torch.equal(second.embedder(images), open_model(runs[1]).embedder(images))
    assert torch.equal(first.embedder(images), before) and first.embedder is not second.embedder
    ours, theirs = (m.embedder.backbone.tower.state_dict() for m in (first, second))
    assert all(ours[name].data_ptr() == theirs[name].data_ptr() for name in ours)
    changed = open_beside(first, run)  # with LoRA: what it changes is its own
    assert torch.equal(changed.embedder(images), open_model(run).embedder(images))
    assert torch.equal(first.embedder(images), before)
    with pytest.raises(
        UserError, match="does not share the frozen weights of .*; open it separately"
    ):
        open_beside(changed, runs[0])


@pytest.mark.slow
@torch.no_grad()
def test_a_soup_of_adapters_is_their_average(runs: tuple[Path, Path], tmp_path: Path) -> None:
    composition(tmp_path / "soup", runs, join="soup")
    ours, *parts = (open_model(r).embedder.state_dict() for r in (tmp_path / "soup", *runs))
    for name, value in ours.items():
        expected = (parts[0][name] + parts[1][name]) / 2
        torch.testing.assert_close(value, expected, atol=1e-6, rtol=1e-6)
    name = "backbone.adapters.stochastic.0_mlp.up.weight"
    assert not torch.equal(parts[0][name], parts[1][name])


def test_adapters_of_another_kind_make_no_soup(tmp_path: Path) -> None:
    runs = [tiny_run(tmp_path / "one", **ONE_KIND), tiny_run(tmp_path / "both", **PUMA)]
    with pytest.raises(UserError, match="averaging weights needs one architecture"):
        composition(tmp_path / "soup", runs, join="soup")


# ---------------------------------------------------------------- other ways to run the same


def alone_and(config: Path, tmp_path: Path, other: Callable[[list[str]], object]) -> None:
    """Train without chance in one process, and by `other`; the logs agree."""
    values = parsed(config.read_text()).plain
    values["model"]["adapters"][0]["keep"] = 1.0
    values["model"]["head"] = {"dim": 16, "norm": "l2"}
    values |= {"out": str(tmp_path), "name": "alone"}
    path = tmp_path / "c.yaml"
    path.write_text(to_yaml(values))
    words = ["--config", str(path)]
    alone = train.main(words)
    other([*words, "--set", "name=other"])
    logs = [read_metrics(folder / "metrics.jsonl") for folder in (alone, tmp_path / "other")]
    for line, expected in zip(*logs, strict=True):
        assert line.pop("stage") == expected.pop("stage")
        assert line == pytest.approx(expected, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True], ids=["DDP", "FSDP"])
def test_two_processes_train_as_one(sharded: bool, config: Path, tmp_path: Path) -> None:
    more = SHARDED if sharded else {}
    alone_and(config, tmp_path, lambda words: two_processes.run("train", words, **more))


@pytest.mark.slow
def test_gradient_checkpoints_and_compilation_train_alike(config: Path, tmp_path: Path) -> None:
    key = "gradient_checkpointing=true"
    alone_and(config, tmp_path, lambda words: train.main([*words, "--set", key]))
    if shutil.which(os.environ.get("CXX", "g++")):
        (tmp_path / "compiled").mkdir()
        compiled = "compile=true"
        alone_and(config, tmp_path / "compiled", lambda w: train.main([*w, "--set", compiled]))
