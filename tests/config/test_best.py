"""`make best`: each step takes what the steps before made, and the study's rows are the same trainings."""

import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from guie.config import RunConfig, load_config
from guie.config.ensemble import ComposeConfig
from guie.studies.grid import read_plan

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs"
ROWS = {
    "arcface": "teachers/arcface.yaml",
    "supcon": "teachers/supcon.yaml",
    "student of six, 64, 8 epochs": "best_real.yaml",
}


@pytest.fixture(autouse=True)
def unexpanded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Studies are read without replacing it."""
    monkeypatch.setenv("GUIE_REAL", "${GUIE_REAL}")


def test_each_step_takes_what_the_steps_before_made() -> None:
    said = subprocess.run(
        ["make", "--dry-run", "--always-make", "best"],
        cwd=ROOT,
        env=os.environ | {"GUIE_REAL": "real"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    made: list[str] = []
    for line in said.splitlines():
        words = shlex.split(line) if "src/" in line else []
        options = [word for word in words if word.startswith("--")]
        given = {option: words[words.index(option) + 1] for option in options}
        sets = [value for word, value in zip(words, words[1:], strict=False) if word == "--set"]
        if "src/train.py" in words:
            run = load_config(given["--config"], RunConfig, sets)
            taken = [teacher.model for teacher in getattr(run.task, "teachers", [])]
            taken += [run.start_from] if run.start_from else []
            made.append(f"{run.out}/{run.name}")
        elif "src/compose.py" in words:
            start = load_config(given["--config"], ComposeConfig)
            taken = [member.model for member in start.members]
            made.append(f"{start.out}/{start.name}")
        else:
            continue
        assert set(taken) <= set(made[:-1])
    assert len(made) == 8 == len(set(made))


@pytest.mark.parametrize("row", ROWS)
def test_the_study_measured_the_same_training(row: str) -> None:
    measured = read_plan(CONFIGS / "studies/best.yaml").jobs[row, 0, None].config
    recipe = load_config(CONFIGS / ROWS[row], RunConfig)
    assert compared(recipe) == compared(measured)


def named(model: str) -> str:
    return Path(model).name.replace(", seed ", "_")


def compared(config: RunConfig) -> dict[str, Any]:
    values = config.model_dump(exclude={"name", "out", "start_from"})
    for teacher in values["task"].get("teachers", []):
        teacher["model"] = named(teacher["model"])
    if values["task"].get("loss", {}).get("name") != "arcface":  # no class weights
        for stage in values["stages"]:
            stage["lr"].pop("classes", None)
    return values
