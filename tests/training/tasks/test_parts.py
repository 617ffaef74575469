"""What a task trains, by its parts."""

from __future__ import annotations

import pytest

from guie.config import RunConfig
from guie.data.dataset import Classes
from guie.training.optim import named_parameters
from guie.training.tasks import build_task

CLASSES = Classes(["a/0", "a/1", "b/0"], [4, 4, 4], ["a", "a", "b"])
TASKS = {
    "class weights": {"task": {"loss": {"name": "arcface"}}},
    "pairs": {"task": {"loss": {"name": "supcon"}}},
    "no head": {"head": None},
    "contrastive": {"task": {"name": "contrastive"}, "head": None},
}


@pytest.mark.parametrize("case", TASKS)
def test_a_tasks_config_knows_its_parts(case: str) -> None:
    """Rates are checked by the config, before any image is read, and used by the task."""
    changes = dict(TASKS[case])
    backbone = {"library": "open_clip", "name": "guie-tiny"}
    model = {"backbone": backbone, "image": {"size_px": 32}}
    model |= {"head": changes.pop("head")} if "head" in changes else {}
    stage = {"epochs": 1, "lr": {"backbone": 1e-4, "head": 0.0, "classes": 0.0}}
    values = {"name": "t", "data": {"manifest": "m.csv"}, "model": model, "stages": [stage]}
    config = RunConfig.model_validate({**values, **changes})
    task = build_task(config, CLASSES)
    assert list(task.parts()) == config.task.parts(config.model)
    named = list(named_parameters(task))
    assert len({id(one.parameter) for one in named}) == len(named)  # in no two
    assert {id(one.parameter) for one in named} == {id(p) for p in task.parameters()}
