"""`make best`: each step takes what the step before made, and the study's rows are the same trainings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from guie.config import RunConfig, load_config
from guie.config.ensemble import ComposeConfig
from guie.studies.grid import read_plan

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs"
TRAININGS = {
    "arcface": "teachers/arcface.yaml",
    "supcon": "teachers/supcon.yaml",
    "student": "best_real.yaml",
}


@pytest.fixture(autouse=True)
def unexpanded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Studies are read without replacing it."""
    monkeypatch.setenv("GUIE_REAL", "${GUIE_REAL}")


def test_each_step_takes_what_the_step_before_made() -> None:
    runs = {name: load_config(CONFIGS / path, RunConfig) for name, path in TRAININGS.items()}
    start, reduced = (
        load_config(CONFIGS / f"compose/{name}.yaml", ComposeConfig)
        for name in ("best_start", "best_64")
    )
    made = {name: f"{run.out}/{run.name}" for name, run in runs.items()}
    teachers = [teacher.model for teacher in runs["student"].task.teachers]
    assert teachers == [made["arcface"], made["supcon"]] == [one.model for one in start.members]
    assert runs["student"].start_from == f"{start.out}/{start.name}"
    assert [one.model for one in reduced.members] == [made["student"]]
    rules = (ROOT / "Makefile").read_text(encoding="utf-8")
    waits = dict(re.findall(r"(?m)^([\w/]+/(?:\w+\.json|\w+\.zip)): \| (.+)$", rules))
    folders = {f"{path}/summary.json" for path in (*made.values(), f"{start.out}/{start.name}")}
    steps, named = ["submissions/best/score.json"], set()
    while steps:
        step = steps.pop()
        named.add(step)
        steps += waits.get(step, "").split()
    assert folders | {f"{reduced.out}/{reduced.name}/summary.json"} <= named
    assert set(re.findall(r"configs/\w+(?:/\w+)?\.yaml", rules)) <= {
        str(path.relative_to(ROOT)) for path in CONFIGS.rglob("*.yaml")
    }


@pytest.mark.parametrize("row", TRAININGS)
def test_the_study_measured_the_same_training(row: str) -> None:
    """But for the precision: the study's is of the CPU that ran it."""
    measured = read_plan(CONFIGS / "studies/best.yaml").jobs[row, 0, None].config
    recipe = load_config(CONFIGS / TRAININGS[row], RunConfig)
    assert compared(recipe) == compared(measured)


def compared(config: RunConfig) -> dict[str, Any]:
    values = config.model_dump(exclude={"name", "out", "precision", "start_from"})
    for teacher in values["task"].get("teachers", []):
        teacher["model"] = Path(teacher["model"]).name
    if values["task"].get("loss", {}).get("name") != "arcface":  # no class weights
        for stage in values["stages"]:
            stage["lr"].pop("classes", None)
    return values
