"""Logits of teachers that are finished runs: classes by name, and what has none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from class_weights import with_class_weights
from guie.base.errors import UserError
from guie.config import RunConfig, config_from
from guie.data.dataset import Batch, Classes
from guie.training.run_folder import CLASS_WEIGHTS, read_class_weights
from guie.training.tasks import build_task
from guie.training.tasks.distillation import DistillationTask
from tiny_runs import tiny_config, tiny_run, weights

KNOWN = ["a/1", "a/2", "b/1", "b/2", "b/3"]
OURS = Classes(["a/0", "b/1", "b/2", "b/3"], [1] * 4, ["a", "b", "b", "b"])


def student(folder: Path, teachers: list[dict[str, Any]]) -> DistillationTask:
    """With a classifier of two centres beside the logits."""
    criteria = [{"loss": {"name": "arcface", "centers": 2}}, {"relation": {"name": "logits"}}]
    task = {"name": "distillation", "teachers": teachers, "criteria": criteria}
    config = tiny_config(folder).model_dump() | {"task": task}
    built = build_task(config_from(config, RunConfig), OURS)
    assert isinstance(built, DistillationTask)
    built.begin_stage(0, range(4))
    return built.eval()


def said(task: DistillationTask) -> dict[str, Tensor]:
    torch.manual_seed(0)
    label = torch.tensor([0, 1, 2, 3, 3])
    grey = torch.randint(0, 256, (5, 3, 32, 32)).float()
    return task(Batch(label, label, torch.ones(5, 3), task.preprocess.normalised(grey)))[1]


def test_a_student_that_is_its_teacher_has_its_logits_also_by_other_ids(tmp_path: Path) -> None:
    teacher = with_class_weights(tiny_run(tmp_path / "teacher"), KNOWN)
    task = student(tmp_path / "student", [{"model": str(teacher)}])
    assert said(task)["logits/teacher"] > 1e-3
    task.embedder.load_state_dict(weights(teacher))
    places, weight_CkT = read_class_weights(teacher, OURS.labels)
    assert places.tolist() == [1, 2, 3]
    assert task.classifier is not None
    with torch.no_grad():
        task.classifier.weight_CD.view(4, 2, -1)[places] = weight_CkT
    assert abs(said(task)["logits/teacher"]) < 1e-6


def test_what_has_no_classes_in_common_is_refused_by_name(tmp_path: Path) -> None:
    teacher = tiny_run(tmp_path / "teacher")
    with pytest.raises(UserError, match=f"teacher: has no {CLASS_WEIGHTS}, which relation logits"):
        student(tmp_path / "student", [{"model": str(teacher)}])
    with_class_weights(teacher, KNOWN)
    with pytest.raises(UserError, match="teacher: knows 0 of the classes that it must teach"):
        student(tmp_path / "student", [{"model": str(teacher), "domains": ["a"]}])
    stranger = with_class_weights(tiny_run(tmp_path / "stranger"), ["c/1", "c/2"])
    with pytest.raises(UserError, match="stranger: knows 0 of the classes that it must teach"):
        student(tmp_path / "student", [{"model": str(stranger)}])
