"""Old names of config keys: read, with a warning; study jobs keep the identities they had under them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from guie.base.errors import UserError
from guie.config import MixConfig, RunConfig, config_from, load_config
from guie.config.durations import Duration
from guie.config.ensemble import ComposeConfig
from guie.config.old_keys import OLD_KEYS, UNITS, with_old_names

VALUES = {
    "name": "t",
    "data": {"manifest": "m.csv"},
    "model": {"backbone": {"library": "timm", "name": "x"}, "image": {"size_px": 8}},
    "stages": [{"epochs": 4, "lr": {"head": 0.1, "classes": 0.1}}],
}
MIX = {"name": "m", "out": "m.csv", "sources": [{"kind": "toy", "path": "toy"}], "shares": {}}
ENSEMBLE = {"name": "e", "members": ["a"], "views": [{}, {"part": 0.9, "aspect": {}}]}
CLIP = {"model": "open_clip:a:b"}
LOSSES = {name: {"task": {"loss": {"name": name}}} for name in ("arcface", "cosface")}

# Of each old key: the config that has it, where, the value, and that of its new name if it differs
SAMPLES: dict[str, tuple[dict, str, Any, Any]] = {
    "shares.told_by": (
        MIX | {"shares": {"shares": {"a": 1.0}}},
        "shares",
        {"clip": CLIP, "names": {"a": ["b"], "c": ["d"]}},
        ...,
    ),
    "ema_goes_on": (VALUES | {"train": {"ema_decay": 0.9}}, "train", "averaged", ...),
    "task.reaches": (
        VALUES | {"task": {"name": "online"}, "train": {"lr": {"teachers": 1.0}}},
        "task",
        "backbone",
        ...,
    ),
    "loss.start": (VALUES | LOSSES["arcface"], "task.loss", "xavier_uniform", ...),
    "margin_rad.least": (VALUES | LOSSES["arcface"], "task.loss.margin_rad", 0.1, ...),
    "margin_rad.most": (VALUES | LOSSES["arcface"], "task.loss.margin_rad", 0.2, ...),
    "margin_cos.least": (VALUES | LOSSES["cosface"], "task.loss.margin_cos", 0.1, ...),
    "margin_cos.most": (VALUES | LOSSES["cosface"], "task.loss.margin_cos", 0.2, ...),
    "adapters.of": (
        VALUES | {"train": {"lr": {"adapters": 1.0}}},
        "model.adapters",
        ["k"],
        ...,
    ),
    "aspect.most": (ENSEMBLE, "views.1.aspect", 2.0, ...),
    "log_every_steps": (VALUES, "", 1, "1 step"),
    "checkpoint_every_steps": (VALUES, "", 7, "7 steps"),
    "validate_every_steps": (VALUES, "train", 50, "50 steps"),
    "warmup_steps": (VALUES, "train", 5, "5 steps"),
    "warmup_epochs": (VALUES, "train", 2.0, "2 epochs"),
    "warmup_every_epochs": (VALUES | {"train": {"warmup": "2 epochs"}}, "train", 1.0, "1 epoch"),
    "every_epochs": (VALUES, "train.schedule", 0.5, "0.5 epochs"),
    "period_steps": (VALUES, "train.sampler", 9, "9 steps"),
}
# Keys that the others need
BESIDE = {
    "task.loss.margin_rad": {"min": 0.0, "max": 0.3},
    "task.loss.margin_cos": {"min": 0.0, "max": 0.3},
    "model.adapters": {"kind": "lora"},
    "train.schedule": {"name": "exponential", "factor": 0.9},
    "train.sampler": {"name": "loss_driven"},
}
MODELS = {"m": MixConfig, "t": RunConfig, "e": ComposeConfig}


@pytest.mark.parametrize("old", OLD_KEYS)
def test_an_old_key_is_read_with_one_line_that_names_the_new(
    old: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    values, outer, value, value_now = SAMPLES[old]
    key, new = old.rpartition(".")[2], OLD_KEYS[old]
    name = values["name"]
    place = f"{outer}." if outer else ""
    file = tmp_path / "c.yaml"
    file.write_text(yaml.safe_dump(values))
    beside = {k: v for k, v in BESIDE.get(outer, {}).items() if k != new}
    with_it = [f"{outer}={beside}".replace("'", '"')] if beside else []
    now = value if value_now is ... else value_now
    expected = load_config(file, MODELS[name], [*with_it, f"{place}{new}={now}"])
    assert not capfd.readouterr().err
    assert load_config(file, MODELS[name], [*with_it, f"{place}{key}={value}"]) == expected
    (line,) = capfd.readouterr().err.splitlines()
    assert line == f"--set {place}{key}={value}: {key} is called {new} now; rename it"

    inner: dict[str, Any] = {**beside, key: value}
    for part in reversed(outer.split(".") if outer else []):
        inner = {part: inner}
    if name != "e":  # a list of views does not merge
        (tmp_path / "top.yaml").write_text(yaml.safe_dump({"base": "c.yaml", **inner}))
        assert load_config(tmp_path / "top.yaml", MODELS[name]) == expected
        (line,) = capfd.readouterr().err.splitlines()
        assert line == f"{tmp_path / 'top.yaml'}: {key} is called {new} now; rename it"


@pytest.mark.parametrize("old", [old for old in OLD_KEYS if not old.endswith(UNITS)])
def test_jobs_are_hashed_by_the_first_names(old: str) -> None:
    *outer, key = old.split(".")
    before, now = {key: 1}, {OLD_KEYS[old]: 1}
    for part in reversed([*outer]):
        before, now = {part: before}, {part: now}
    assert with_old_names([{"stages": [now]}]) == [{"stages": [before]}]
    assert with_old_names({"min": {"init": [1]}, 3: "max"}) == {"min": {"init": [1]}, 3: "max"}


def test_a_resolved_config_of_old_is_read_without_a_word(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """All keys are in it, also those that say nothing; nobody is asked to edit a run's record."""
    new = {"warmup": "2 epochs", "warmup_every": "1 epoch", "validate_every": "50 steps"}
    new |= {"schedule": {"name": "exponential", "every": "0.5 epochs", "factor": 0.9}}
    new |= {"sampler": {"name": "loss_driven", "period": "9 steps"}}
    values = {**VALUES, "log_every": "1 step", "checkpoint_every": "7 steps"}
    values["stages"] = [{**VALUES["stages"][0], **new}, VALUES["stages"][0]]
    config = config_from(values, RunConfig)

    old = config.model_dump()
    old |= {"log_every_steps": 1, "checkpoint_every_steps": 7}
    first, second = old["stages"]
    first |= {"warmup_steps": 0, "warmup_epochs": 2.0, "warmup_every_epochs": 1.0}
    first |= {"validate_every_steps": 50}
    first["schedule"] |= {"every_epochs": 0.5}
    first["sampler"] |= {"period_steps": 9}
    second |= {"warmup_steps": 0, "warmup_epochs": 0.0, "warmup_every_epochs": None}
    second |= {"validate_every_steps": None}
    second["schedule"] |= {"every_epochs": None}
    for where in (old, first, second, first["schedule"], second["schedule"], first["sampler"]):
        for key in (new for old, new in OLD_KEYS.items() if old.endswith(UNITS)):
            where.pop(key, None)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(old))
    assert load_config(tmp_path / "config.yaml", RunConfig) == config
    assert not capfd.readouterr().err


def test_an_old_name_is_told_by_itself() -> None:
    def said(**stage: object) -> str:
        with pytest.raises(UserError) as refusal:
            config_from({**VALUES, "train": stage}, RunConfig)
        return str(refusal.value)

    assert (
        said(warmup_steps=-3)
        == "config: train.warmup_steps: must be above 0 and finite (found '-3 steps')"
    )
    assert said(warmup_epochs=9).startswith(
        "config: train.warmup_epochs: must be shorter than the stage's 4 epochs"
    )
    both = "config: train.warmup_epochs: means warmup, which config: train.warmup_steps sets too; drop one"
    assert said(warmup_steps=3, warmup_epochs=1) == both


def test_an_old_name_meets_the_new_one(tmp_path: Path) -> None:
    (tmp_path / "old.yaml").write_text(yaml.safe_dump({**VALUES, "train": {"warmup_steps": 3}}))
    (tmp_path / "new.yaml").write_text("base: old.yaml\ntrain: {warmup: 1 epoch}\n")
    config = load_config(tmp_path / "new.yaml", RunConfig)
    assert config.stages[0].warmup == Duration(1, "epochs")
    again = load_config(tmp_path / "new.yaml", RunConfig, ["train.warmup_steps=5"])
    assert again.stages[0].warmup == Duration(5, "steps")
    none = load_config(tmp_path / "new.yaml", RunConfig, ["train.warmup_steps=0"])
    assert none.stages[0].warmup is None
