"""The configs to start from on one's own images: their stages, rates, and warm-up on small data."""

from __future__ import annotations

from pathlib import Path

import pytest

from guie.config import RunConfig, load_config

CONFIGS = Path(__file__).parents[2] / "configs"
STAGED = ["one_gpu", "vit_h14", "vit_l14_336", "kaggle"]
SIZES = [20 * 7, 150 * 7, 13_357, 100_000]  # training images


def config_of(name: str, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    monkeypatch.setenv("KAGGLE_INPUT", "input")
    return load_config(CONFIGS / f"{name}.yaml", RunConfig)


@pytest.mark.parametrize("name", STAGED)
def test_head_and_full_have_the_rate_of_the_study(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, full = config_of(name, monkeypatch).stages[:2]
    assert (head.name, full.name) == ("head", "full")
    assert (head.lr.of("classes"), full.lr.of("classes")) == (0.1, 0.1)
    assert head.lr.of("backbone") == 0 < full.lr.of("backbone")


@pytest.mark.parametrize("name", [*STAGED, "one_gpu_lora"])
@pytest.mark.parametrize("images", SIZES)
def test_the_warm_up_is_at_most_a_tenth_of_a_stage(
    name: str, images: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the training rounds it: on few images, a tenth of an epoch may be less than a step."""
    for stage in config_of(name, monkeypatch).stages:
        steps_per_epoch = images / stage.batch_size
        assert stage.warmup
        warmup = round(stage.warmup.steps(steps_per_epoch))
        assert warmup <= stage.epochs * steps_per_epoch / 10, stage.name
