"""Configs: inheritance, overrides, short forms, variables."""

from __future__ import annotations

from pathlib import Path

import pytest

from guie.base.errors import UserError
from guie.config import MixConfig, RunConfig, config_from, load_config
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


def test_a_bare_no_is_a_precision(minimal: Path) -> None:
    assert load_config(minimal, RunConfig, ["precision=no"]).precision == "no"


def test_without_stages_train_is_the_one_stage(minimal: Path) -> None:
    values = parsed(MINIMAL).plain
    del values["stages"]
    minimal.write_text(to_yaml(values))
    (stage,) = load_config(minimal, RunConfig).stages
    assert (stage.name, stage.epochs, stage.batch_size) == ("train", 2, 128)


def test_resolved_config_loads_again_unchanged(minimal: Path, tmp_path: Path) -> None:
    config = load_config(minimal, RunConfig)
    written = tmp_path / "resolved.yaml"
    written.write_text(to_yaml(config.model_dump()))
    assert load_config(written, RunConfig) == config


def test_overrides_reach_into_mappings_and_lists(minimal: Path) -> None:
    config = load_config(
        minimal,
        RunConfig,
        ["train.batch_size=8", "stages.1.epochs=0.5", "task.loss.margin_rad=1e-1"],
    )
    assert [stage.batch_size for stage in config.stages] == [8, 8]
    assert config.stages[1].epochs == 0.5
    assert config.task.loss.margin_rad == 0.1  # YAML 1.1 alone would read the string "1e-1"


def test_aliases_are_values_of_their_own(minimal: Path) -> None:
    minimal.write_text(MINIMAL.replace("- {name: head}", "- &head {name: head}") + "  - *head\n")
    stages = load_config(minimal, RunConfig, ["stages.0.epochs=7"]).stages
    assert [stage.epochs for stage in stages] == [7, 3, 2]


def test_values_of_no_file_are_as_those_of_one(minimal: Path) -> None:
    values = parsed(MINIMAL).plain
    assert config_from(values, RunConfig) == load_config(minimal, RunConfig)
    with pytest.raises(UserError, match="^config: train.epochs: Input should be a valid number"):
        config_from({**values, "train": {**values["train"], "epochs": "two"}}, RunConfig)


def test_an_empty_mapping_takes_back_what_is_inherited(minimal: Path) -> None:
    changes = ["train.lr.blocks.15=1e-7", "train.lr.blocks.20=1e-6", "stages.1.lr.blocks={}"]
    head, full = load_config(minimal, RunConfig, changes).stages
    assert (head.lr.blocks, full.lr.blocks) == ({15: 1e-7, 20: 1e-6}, {})
    assert (head.lr.trains_backbone, full.lr.trains_backbone) == (True, True)
    again = load_config(minimal, RunConfig, [*changes, "stages.1.lr.backbone=0"]).stages[1]
    assert not again.lr.trains_backbone


def test_a_name_alone_is_short_for_a_mapping(minimal: Path) -> None:
    changes = ["train.optimizer=sgd", "train.schedule=constant", "train.weight_decay=0"]
    (stage, _) = load_config(minimal, RunConfig, changes).stages
    assert (stage.optimizer.name, stage.schedule.name) == ("sgd", "constant")
    assert stage.weight_decay == 0.0
    changes = ["train.weight_decay={head: 1e-5}", "stages.1.weight_decay=1e-3"]
    head, full = load_config(minimal, RunConfig, changes).stages
    decays = (head.weight_decay.of("head"), head.weight_decay.of("backbone"), full.weight_decay)
    assert decays == (1e-5, 0.0, 1e-3)


def test_a_config_may_start_from_another(minimal: Path, tmp_path: Path) -> None:
    twin = tmp_path / "twin.yaml"
    twin.write_text("base: run.yaml\nname: twin\ntrain: {lr: {head: 0.5}}\n")
    config = load_config(twin, RunConfig)
    assert (config.name, config.stages[0].lr.head, config.stages[0].epochs) == ("twin", 0.5, 2)
    minimal.write_text("base: twin.yaml\n")
    with pytest.raises(UserError, match="leads back"):
        load_config(twin, RunConfig)


def test_a_missing_file_and_bad_yaml_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such config"):
        load_config(tmp_path / "none.yaml", RunConfig)
    bad = tmp_path / "bad.yaml"
    bad.write_text("a: [1\nb: 2\n")
    with pytest.raises(UserError, match="bad.yaml:2: not valid YAML"):
        load_config(bad, RunConfig)


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
