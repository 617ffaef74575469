"""Twins of the recipes in small: they train to the end, and resume to the same bits."""

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import train
from guie.config import RunConfig, load_config
from guie.config.stages import StageConfig
from guie.models.backbones.open_clip import OpenClip
from guie.training.checkpoint import Checkpoints, load_checkpoint
from guie.training.run_folder import read_metrics
from tiny_runs import assert_same_bits, cut_and_resumed
from tiny_twins import STEPS, twin

CONFIGS = Path(__file__).parents[2] / "configs"
ONE_GPU = {name: CONFIGS / f"{name}.yaml" for name in ("one_gpu", "one_gpu_lora")}
# These differ from another recipe in numbers alone, or pair what two others have.
LIKE_OTHERS = {
    *("dreml_cub", "dreml_inshop", "dreml_vehicleid", "layers_net_f", "winner_4_vit_l"),
    *("layers_cub", "layers_sop"),
    *("puma_vit_b", "puma_vit_l", "puma_vit_s_512", "puma_vit_s_four"),
    *("uned_clip_ujcrr", "uned_clip_uscrr", "uned_clip_uscss"),
    *("uned_in_ujcrr", "uned_in_specialist"),
    *("unify_rkd_2", "unify_rkd_4", "unify_snd_2", "unify_snd_4"),
}
NAMES = sorted({path.stem for path in (CONFIGS / "recipes").glob("*.yaml")} - LIKE_OTHERS)


@pytest.fixture(scope="module")
def trained(
    toy_manifest: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[Path, Path]]:
    """(config, run folder) of a recipe's twin, trained once."""

    @cache
    def of(name: str) -> tuple[Path, Path]:
        recipe = load_config(ONE_GPU.get(name, CONFIGS / f"recipes/{name}.yaml"), RunConfig)
        config = twin(recipe, tmp_path_factory.mktemp(name), toy_manifest)
        return config, train.main(["--config", str(config)])

    return of


@pytest.mark.slow
@pytest.mark.parametrize("name", [*NAMES, *ONE_GPU])
def test_a_twin_trains_to_the_end(name: str, trained: Callable) -> None:
    """Every stage takes its steps; what it freezes keeps its bits, all else moves."""
    config, folder = trained(name)
    stages = load_config(config, RunConfig).stages
    lines = [line for line in read_metrics(folder / "metrics.jsonl") if "loss" in line]
    assert [line["stage"] for line in lines] == [s.name for s in stages for _ in range(STEPS)]
    assert all(math.isfinite(line["loss"]) for line in lines)
    for number, first, last in stage_ends(folder):
        assert moved(first, last) == expected(first, stages[number]), stages[number].name


def stage_ends(folder: Path) -> list[tuple[int, dict[str, Any], dict[str, Any]]]:
    """(stage, task after its first step, task after its last) of every stage."""
    by_stage: dict[int, list[Path]] = {}
    for path in Checkpoints(folder, keep=999).paths():
        by_stage.setdefault(load_checkpoint(path)["state"].stage, []).append(path)
    tasks = {n: [load_checkpoint(p)["task"] for p in (s[0], s[-1])] for n, s in by_stage.items()}
    return [(number, *pair) for number, pair in sorted(tasks.items())]


PARTS = {"adapters": "adapters", "prompts": "prompts", "head": "head", "criterion": "classes"}
PARTS |= {"criteria": "classes", "relations": "matching", "projector": "projector"}


def place(name: str) -> str | None:
    """The part of the model that a weight belongs to, of a backbone with the number of its block."""
    words = name.split(".")
    if "tower" not in words:
        return next((part for key, part in PARTS.items() if key in words), None)
    block = OpenClip.block_of(name)
    return "backbone" if block is None else f"block {block}"


def moved(first: dict[str, Any], last: dict[str, Any]) -> set[str]:
    """Places with a weight that changed."""
    names = [
        n for n in first if n.endswith(("weight", "bias", "weight_CD", "stage_AD", "proj", "LD"))
    ]
    return {place(n) for n in names if not torch.equal(first[n], last[n])} - {None}


def expected(task: dict[str, Any], stage: StageConfig) -> set[str]:
    """Places that a stage trains, by its rates."""
    places = {place(name) for name in task} - {None}
    rates = {p: stage.lr.of(p) for p in places if not p.startswith("block")}
    for block in places - rates.keys():
        bounds = [n for n in stage.lr.blocks if n <= int(block.split()[1])]
        rates[block] = stage.lr.blocks[max(bounds)] if bounds else stage.lr.of("backbone")
    return {name for name, rate in rates.items() if rate > 0}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["winner_5"])
def test_a_twin_resumes_to_the_same_bits(
    name: str, trained: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, whole = trained(name)
    words = ["--config", str(config), "--set", "name=cut"]
    assert_same_bits(cut_and_resumed(monkeypatch, words, steps=1), whole)
