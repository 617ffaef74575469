"""Configs: inheritance, overrides, short forms, variables."""

from collections.abc import Callable
from pathlib import Path

import pytest

from guie.base.errors import UserError
from guie.config import RunConfig, config_from, load_config
from guie.config.data import MixConfig
from guie.config.loading import parsed, to_yaml

CONFIGS = Path(__file__).parents[2] / "configs"
MINIMAL = """
name: t
data: {manifest: m.csv}
model:
  backbone: {library: timm, name: resnet18}
  image: {size_px: 32}
train:
  epochs: 2
  lr: {head: 1e-3, classes: 1e-3}
stages:
  - {name: head}
  - {name: full, epochs: 3, lr: {backbone: 1e-5}}
"""


@pytest.fixture
def minimal(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(MINIMAL)
    return path


def test_stages_inherit_from_train(minimal: Path) -> None:
    head, full = load_config(minimal, RunConfig).stages
    assert (head.epochs, head.lr.of("backbone"), head.lr.of("head")) == (2, 0.0, 1e-3)
    assert (full.epochs, full.lr.of("backbone"), full.lr.of("head")) == (3, 1e-5, 1e-3)


def test_a_loss_of_another_name_replaces_that_of_the_base(minimal: Path, tmp_path: Path) -> None:
    base = tmp_path / "base.yaml"
    base.write_text(MINIMAL + "task: {loss: {name: arcface, margin_rad: 0.5, scale: 64}}\n")
    minimal.write_text("base: base.yaml\ntask: {loss: {name: softmax, scale: 16}}\n")
    assert load_config(minimal, RunConfig).task.loss.model_dump()["name"] == "softmax"
    minimal.write_text("base: base.yaml\ntask: {loss: {margin_rad: 0.2}}\n")
    kept = load_config(minimal, RunConfig).task.loss
    assert (kept.name, kept.margin_rad, kept.scale) == ("arcface", 0.2, 64)


@pytest.mark.parametrize(
    ("changes", "found", "expected"),
    [
        (["stages=null"], lambda run: [s.name for s in run.stages], ["train"]),
        (["train.batch_size=8"], lambda run: [s.batch_size for s in run.stages], [8, 8]),
        (["stages.1.epochs=0.5"], lambda run: run.stages[1].epochs, 0.5),
        (["task.loss.margin_rad=1e-1"], lambda run: run.task.loss.margin_rad, 0.1),  # no text
        (["precision=no"], lambda run: run.precision, "no"),
        (["train.optimizer=sgd"], lambda run: run.stages[0].optimizer.name, "sgd"),
        (["train.schedule=constant"], lambda run: run.stages[0].schedule.name, "constant"),
        (["train.weight_decay=0"], lambda run: run.stages[0].weight_decay, 0.0),
        (
            ["train.weight_decay={head: 1e-5}"],
            lambda run: [run.stages[0].weight_decay.of(part) for part in ("head", "backbone")],
            [1e-5, 0.0],
        ),
        (
            ["train.lr.blocks.15=1e-7", "train.lr.blocks.20=1e-6", "stages.1.lr.blocks={}"],
            lambda run: [stage.lr.blocks for stage in run.stages],
            [{15: 1e-7, 20: 1e-6}, {}],
        ),
        (["train.lr.blocks.3=1"], lambda run: run.stages[0].lr.trains_backbone, True),
    ],
)
def test_overrides(changes: list[str], found: Callable, expected: object, minimal: Path) -> None:
    assert found(load_config(minimal, RunConfig, changes)) == expected


def test_a_resolved_config_loads_again_unchanged(minimal: Path, tmp_path: Path) -> None:
    """Also of values of no file. Durations are written with their units."""
    stage = {"warmup": "1 epoch", "sampler": {"name": "loss_driven", "period": "30 steps"}}
    values = parsed(MINIMAL).plain
    config = config_from({**values, "train": {**values["train"], **stage}}, RunConfig)
    assert config.stages[0].sampler.period == 30
    text = to_yaml(config.model_dump())
    assert "warmup: 1 epoch\n" in text and "checkpoint_every: 500 steps\n" in text
    (tmp_path / "resolved.yaml").write_text(text)
    assert load_config(tmp_path / "resolved.yaml", RunConfig) == config
    assert config_from(values, RunConfig) == load_config(minimal, RunConfig)


def test_a_config_may_start_from_another(minimal: Path, tmp_path: Path) -> None:
    twin = tmp_path / "twin.yaml"
    twin.write_text("base: run.yaml\nname: twin\ntrain: {lr: {head: 0.5}}\n")
    config = load_config(twin, RunConfig)
    assert (config.name, config.stages[0].lr.head, config.stages[0].epochs) == ("twin", 0.5, 2)
    minimal.write_text("base: twin.yaml\n")
    with pytest.raises(UserError, match="leads back"):
        load_config(twin, RunConfig)


def test_an_unset_variable_is_refused(minimal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GUIE_REAL", raising=False)
    monkeypatch.chdir(minimal.parent)  # where no ../shared is
    with pytest.raises(UserError, match="GUIE_REAL is not set"):
        load_config(minimal, RunConfig, ["data.manifest=${GUIE_REAL}/m.csv"])
    monkeypatch.setenv("GUIE_REAL", "elsewhere")
    config = load_config(minimal, RunConfig, ["data.manifest=${GUIE_REAL}/m.csv"])
    assert config.data.manifest == "elsewhere/m.csv"


@pytest.mark.parametrize(
    "file",
    sorted([*CONFIGS.glob("*.yaml"), *CONFIGS.glob("demo/*.yaml"), *CONFIGS.glob("smoke/*.yaml")]),
    ids=lambda file: str(file.relative_to(CONFIGS)),
)
def test_every_config_of_the_project_is_valid(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GUIE_REAL", "real")
    monkeypatch.setenv("KAGGLE_INPUT", "kaggle")
    load_config(file, MixConfig if file.stem.startswith("mix") else RunConfig)
