"""A sampler in YAML: a name alone or with settings; what is wrong is told by key."""

from __future__ import annotations

from pathlib import Path

import pytest

from guie.base.errors import UserError
from guie.config.base import Config, load_config
from guie.config.sampling import SamplerConfig, sampler_config


class Stage(Config):
    sampler: SamplerConfig = sampler_config("mixed")


def loaded(tmp_path: Path, text: str) -> SamplerConfig:
    file = tmp_path / "stage.yaml"
    file.write_text(text)
    return load_config(file, Stage).sampler


@pytest.mark.parametrize(
    "name", ["mixed", "dataset_size", "balanced", "round_robin", "loss_driven"]
)
def test_a_name_is_short_for_its_defaults(tmp_path: Path, name: str) -> None:
    short = loaded(tmp_path, f"sampler: {name}")
    assert short == loaded(tmp_path, f"sampler: {{name: {name}}}")
    assert short.name == name


def test_settings_arrive(tmp_path: Path) -> None:
    mixed = loaded(tmp_path, "sampler: {name: mixed, temperature: .inf, images_per_class: 4}")
    assert mixed.temperature == float("inf") and mixed.images_per_class == 4
    assert sampler_config("mixed").one_stream and not mixed.one_stream
    assert Stage.model_validate(Stage(sampler=mixed).model_dump()).sampler == mixed


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sampler: mixd", "sampler.*mixd.*did you mean mixed"),
        ("sampler: {name: mixed, temperatur: 2}", "temperatur: .*did you mean temperature"),
        ("sampler: {name: round_robin, factors: {a: 2}}", "factors: unknown key"),
        ("sampler: {name: mixed, temperature: 0}", "sampler.temperature: .*greater than 0"),
        ("sampler: {name: mixed, factors: {a: 0}}", "factors.*a: .*greater than 0"),
        ("sampler: specialist_steps", "steps: missing"),
    ],
)
def test_what_is_wrong_is_told_by_key(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        loaded(tmp_path, text)
