"""Durations: a number with its unit, resolved to steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from guie.base.errors import UserError
from guie.config import RunConfig, config_from, load_config
from guie.config.durations import Duration
from guie.config.loading import to_yaml

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
    text = to_yaml(config.model_dump())
    assert "warmup: 1 epoch\n" in text and "checkpoint_every: 500 steps\n" in text
    (tmp_path / "c.yaml").write_text(text)
    assert load_config(tmp_path / "c.yaml", RunConfig) == config


def test_what_goes_by_steps_alone_says_so() -> None:
    for key in ("log_every", "checkpoint_every"):
        with pytest.raises(UserError, match=f"{key}: must be in steps, such as 500 steps"):
            config_from({**VALUES, key: "1 epoch"}, RunConfig)
