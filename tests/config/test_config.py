"""Configs refuse what they do not know, and say where."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from guie.base.errors import UserError
from guie.config import MixConfig, RunConfig, config_from, load_config

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
    values = yaml.safe_load(MINIMAL.replace("1e-3", "0.001"))
    del values["stages"]
    minimal.write_text(yaml.safe_dump(values))
    (stage,) = load_config(minimal, RunConfig).stages
    assert (stage.name, stage.epochs, stage.batch_size) == ("train", 2, 128)


def test_resolved_config_loads_again_unchanged(minimal: Path, tmp_path: Path) -> None:
    config = load_config(minimal, RunConfig)
    written = tmp_path / "resolved.yaml"
    written.write_text(yaml.safe_dump(config.model_dump()))
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


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("train.epocs=2", "did you mean epochs?"),
        ("task.loss.margin=3", "task.loss.margin=3: unknown key; did you mean margin_rad?"),
        ("task.loss.name=arcfase", "did you mean arcface"),
        ("model.backbone.library=hf", "'open_clip' or 'timm'"),
        ("model.image.size_px=big", "model.image.size_px"),
        ("train.lr.backbone=-1", "greater than or equal to 0"),
        ("stages.7.epochs=1", "not an index below 2"),
        ("name=a/b", "name"),
        ("nonsense", "expected key=value"),
        ("seed.x=1", "seed"),
    ],
)
def test_a_bad_key_or_value_is_named(minimal: Path, override: str, said: str) -> None:
    with pytest.raises(UserError, match="(?s)" + said.replace("?", r"\?")):
        load_config(minimal, RunConfig, ["seed=1", override])


# A dot: of a key below
ONE_LINE = {
    "task.loss=arcface": "must be a mapping of name: softmax | arcface | ",
    "task.loss.name=cosfase": "unknown name 'cosfase'; did you mean cosface? Allowed: ",
    "task.loss.margin_rad=big": "must be a number, or a mapping of every, ",
    "task.loss.margin_rad=-1": "Input should be greater than or equal to 0",
    "task.loss.margin_rad={least: 2, most: 1}": "least is above most",
    "task.loss.start={length: 1, draw: none}": ".draw: Input should be 'normal' or 'uniform'",
    "train.sampler=ballanced": ".name: unknown name 'ballanced'; did you mean balanced? A",
    "train.sampler=3": "must be a mapping of name: mixed | dataset_size | ",
    "train.schedule=linear": ".name: unknown name 'linear'; allowed: constant, cosine, step, expo",
    "train.schedule={end: 0.1}": "has no name; allowed: constant, cosine, step, exponential",
    "train.schedule=step": ".epochs: missing, and it has no default",
    "train.schedule={name: step, epochs: []}": ".epochs: List should have at least 1",
    "train.optimizer=lion": ".name: Input should be 'adamw', 'adam' or 'sgd' (found 'lion')",
    "train.optimizer={momentum: 0.9}": ".momentum: is for sgd, and the optimizer is adamw",
    "train.weight_decay=big": "must be a number, or a mapping of backbone, cl",
    "train.weight_decay=-1": "Input should be greater than or equal to 0 (found -1",
    "train.weight_decay={neck: 1}": ".neck: this task has no such part; allowed: ",
    "train.lr.bakbone=0.1": "this task has no such part; did you mean backbone?",
    "train.lr=0.1": "must be a mapping of backbone, blocks, classes, head (found 0.1)",
    "train.lr.blocks={last: 1}": ".last: a key: Input should be a valid integer (found 'last')",
    "train.lr.blocks={3: -1}": ".3: Input should be greater than or equal to 0",
    "train.augment.jpg=0.5": "unknown key; did you mean jpeg?",
    "train.augment.auto=cifar": "Input should be 'imagenet' (found 'cifar')",
    "train.augment.affine=1": "shift, zoom and rotate_deg are all 0; raise one",
    "train.augment.erase_side=[0.4, 0.1]": "a range must have its lower end first",
    "train.augment.jpeg_quality=[0, 90]": ".0: Input should be greater than or equal to 1",
    "train=3": "must be a mapping, like each of stages (found 3)",
    "train.epochs=.inf": "Input should be a finite number (found inf)",
    "train.lr.head=.nan": "Input should be a finite number (found nan)",
    "stages.1.lr.neck=1": "this task has no such part; allowed: backbone, head",
    "stages.1.lr.backbone=-1": "Input should be greater than or equal to 0",
    "stages.1.warmup=3 epochs": "must be shorter than the stage's 3 epochs",
    "stages.1.ema_goes_on=averaged": "averaged needs ema_decay, which is null",
    "name=[1": "line 1: not valid YAML",
}


def only_line(path: Path, *overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        load_config(path, RunConfig, overrides)
    (line,) = str(caught.value).splitlines()
    return line


@pytest.mark.parametrize("override", ONE_LINE)
def test_a_fault_is_one_line_at_the_words_that_made_it(minimal: Path, override: str) -> None:
    """Also where every stage has it from `train`, and where a key may be of several kinds."""
    said = ONE_LINE[override]
    said = override.partition("=")[0] + said if said.startswith(".") else said
    assert only_line(minimal, override).startswith(f"--set {override}: {said}")


NESTED = [o for o in ONE_LINE if re.match(r"(task|train)\.(?!epochs|lr\.head)", o)]


@pytest.mark.parametrize("override", NESTED)
@pytest.mark.parametrize("depth", ["in the base", "in the file"])
def test_a_fault_is_one_line_at_the_file_where_it_stands(
    minimal: Path, tmp_path: Path, override: str, depth: str
) -> None:
    """Of three files, each the base of the next."""
    key, _, value = override.partition("=")
    *outer, last = key.split(".")
    text = "".join(f"{'  ' * n}{part}:\n" for n, part in enumerate(outer))
    middle, top = tmp_path / "middle.yaml", tmp_path / "top.yaml"
    middle.write_text(f"base: run.yaml\n{text}{'  ' * len(outer)}{last}: {value}\n")
    top.write_text("base: middle.yaml\ntrain: {batch_size: 8, augment: {flip: 0.5}}\n")
    said = ONE_LINE[override] if ONE_LINE[override].startswith(".") else f": {ONE_LINE[override]}"
    line = only_line(top if depth == "in the base" else middle)
    assert line.startswith(f"{middle}: {key}{said}")


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ("warmup_start=0.1", "warmup=null", "--set stages.1.warmup_start=0.1: needs warmup,"),
        ("lr.blocks={3: 1}", "layer_decay=0.9", "run.yaml: stages.1: lr.blocks and layer_decay"),
        ("lr.blocks={3: 1}", "cached_views=2", "--set stages.1.cached_views=2: features are com"),
    ],
)
def test_settings_that_exclude_each_other(
    minimal: Path, first: str, second: str, said: str
) -> None:
    line = only_line(minimal, f"stages.1.{first}", f"stages.1.{second}")
    assert line.removeprefix(f"{minimal.parent}/").startswith(said)


def test_a_key_that_is_missing_is_told_of_the_mapping_that_lacks_it(
    minimal: Path, tmp_path: Path
) -> None:
    top = tmp_path / "top.yaml"
    top.write_text("base: run.yaml\nstages:\n  - {name: only}\n")
    minimal.write_text(MINIMAL.replace("  epochs: 2\n", ""))
    assert only_line(top).startswith(f"{top}: stages.0.epochs: missing")
    assert only_line(top, "stages=null").startswith(f"{minimal}: train.epochs: missing")
    begun = only_line(top, "train.epochs=1", "model.head.branches.linear=shared")
    assert begun.startswith(
        "--set model.head.branches.linear=shared: model.head.branches.dropouts: mi"
    )


def test_aliases_are_values_of_their_own(minimal: Path) -> None:
    minimal.write_text(MINIMAL.replace("- {name: head}", "- &head {name: head}") + "  - *head\n")
    stages = load_config(minimal, RunConfig, ["stages.0.epochs=7"]).stages
    assert [stage.epochs for stage in stages] == [7, 3, 2]


def test_values_of_no_file_are_as_those_of_one(minimal: Path) -> None:
    values = yaml.safe_load(MINIMAL.replace("1e-", "1.0e-"))
    assert config_from(values, RunConfig) == load_config(minimal, RunConfig)
    with pytest.raises(UserError, match="^config: train.epochs: Input should be a valid number"):
        config_from({**values, "train": {**values["train"], "epochs": "two"}}, RunConfig)


@pytest.mark.parametrize("loss", ["arcface", "proxy_nca", "soft_triple"])
def test_class_weights_are_not_frozen_without_a_word(minimal: Path, loss: str) -> None:
    minimal.write_text(MINIMAL.replace(", classes: 1e-3", ""))
    with pytest.raises(UserError, match="run.yaml: train.lr.classes: missing.*or 0 to freeze"):
        load_config(minimal, RunConfig, [f"task.loss.name={loss}"])
    load_config(minimal, RunConfig, [f"task.loss.name={loss}", "train.lr.classes=0"])
    load_config(minimal, RunConfig, ["task.loss.name=supcon"])  # it has none


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


def test_every_fault_is_told_at_once(minimal: Path) -> None:
    with pytest.raises(UserError) as caught:
        load_config(minimal, RunConfig, ["sead=1", "precision=fp8"])
    assert "sead" in str(caught.value) and "precision" in str(caught.value)


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
    with pytest.raises(UserError, match="line"):
        load_config(bad, RunConfig)


def test_an_unset_variable_is_refused(minimal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GUIE_REAL", raising=False)
    monkeypatch.chdir(minimal.parent)  # where no ../shared is
    with pytest.raises(UserError, match="GUIE_REAL is not set"):
        load_config(minimal, RunConfig, ["data.manifest=${GUIE_REAL}/m.csv"])
    monkeypatch.setenv("GUIE_REAL", "elsewhere")
    config = load_config(minimal, RunConfig, ["data.manifest=${GUIE_REAL}/m.csv"])
    assert config.data.manifest == "elsewhere/m.csv"


@pytest.mark.parametrize("file", sorted(CONFIGS.glob("*.yaml")), ids=lambda file: file.stem)
def test_every_config_of_the_project_is_valid(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GUIE_REAL", "real")
    monkeypatch.setenv("KAGGLE_INPUT", "kaggle")
    load_config(file, MixConfig if file.stem.startswith("mix") else RunConfig)
