"""Durations: a number with its unit, resolved to steps; keys of old, which had the unit in their name."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from guie.base.errors import UserError
from guie.config import RunConfig, config_from, load_config
from guie.config.durations import OLD_NAMES, Duration

VALUES = {
    "name": "t",
    "data": {"manifest": "m.csv"},
    "model": {"backbone": {"library": "timm", "name": "x"}, "image": {"size_px": 8}},
    "stages": [{"epochs": 4, "lr": {"head": 0.1, "classes": 0.1}}],
}


@pytest.mark.parametrize(
    ("text", "steps", "message"),
    [
        ("500 steps", 500, "500 steps"),
        ("1 step", 1, "1 step"),
        ("1 epoch", 7, "1 epoch"),
        ("1.0 epochs", 7, "1 epoch"),
        (".5 epochs", 3.5, "0.5 epochs"),
        ("1e-7 epochs", 7e-7, "1e-07 epochs"),
    ],
)
def test_a_duration_is_read_resolved_and_written(text: str, steps: float, message: str) -> None:
    duration = Duration.read(text)
    assert (duration.steps(7), str(duration)) == (steps, message)
    assert Duration.read(message) == duration


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (500, "has no unit; write 500 steps, or 500 epochs"),
        ("500", "such as 500 steps or 1.5 epochs"),
        ("two epochs", "such as 500 steps or 1.5 epochs"),
        ("5 minutes", "such as 500 steps or 1.5 epochs"),
        (["5 steps"], "such as 500 steps or 1.5 epochs"),
        ("0 steps", "must be above 0"),
        (".nan epochs", "such as"),
        ("nan epochs", "above 0 and finite"),
        ("inf epochs", "above 0 and finite"),
        ("2.5 steps", "a whole number of steps"),
    ],
)
def test_what_is_none_is_refused_with_a_remedy(value: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Duration.read(value)


def test_it_ends_at_the_nearest_step() -> None:
    def ends(text: str, steps_per_epoch: float = 5) -> list[int]:
        duration = Duration.read(text)
        return [step for step in range(1, 16) if duration.ends_at(step, steps_per_epoch)]

    assert ends("4 steps") == [4, 8, 12]
    assert ends("1 epoch") == [5, 10, 15]
    assert ends(".5 epochs") == [2, 5, 7, 10, 12, 15]  # halves downwards, as those of rates
    assert ends("0.01 epochs") == list(range(1, 16))


def test_a_config_is_written_with_units_and_read_again(tmp_path: Path) -> None:
    stage = {"warmup": "1 epoch", "validate_every": "7 steps", "schedule": "cosine"}
    stage["sampler"] = {"name": "loss_driven", "period": "30 steps"}
    values = {**VALUES, "train": stage, "log_every": "1 step"}
    config = config_from(values, RunConfig)
    assert (config.log_every, config.stages[0].sampler.period) == (1, 30)
    text = yaml.safe_dump(config.model_dump())
    assert "warmup: 1 epoch\n" in text and "checkpoint_every: 500 steps\n" in text
    (tmp_path / "c.yaml").write_text(text)
    assert load_config(tmp_path / "c.yaml", RunConfig) == config


def test_what_goes_by_steps_alone_says_so() -> None:
    for key in ("log_every", "checkpoint_every"):
        with pytest.raises(UserError, match=f"{key}: must be in steps, such as 500 steps"):
            config_from({**VALUES, key: "1 epoch"}, RunConfig)


# ---------------------------------------------------------------- keys as they were once named


def test_a_resolved_config_of_old_is_read(tmp_path: Path) -> None:
    """All keys are in it, also those that say nothing."""
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
        for key, _ in OLD_NAMES.values():
            where.pop(key, None)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(old))
    assert load_config(tmp_path / "config.yaml", RunConfig) == config


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
