"""Rows whose teachers are runs of rows above."""

from __future__ import annotations

from collections.abc import Mapping

from guie.config.distillation import DistillationConfig
from guie.config.run import RunConfig


def teachers(config: RunConfig) -> list[str]:
    """Models that a run learns from, as written."""
    task = config.task
    return [one.model for one in task.teachers] if isinstance(task, DistillationConfig) else []


def taught_by(config: RunConfig, folders: Mapping[str, str]) -> RunConfig:
    """The config as train.py reads it: in place of rows' names their folders."""
    if not folders:
        return config
    assert isinstance(config.task, DistillationConfig)
    placed = [
        teacher.model_copy(update={"model": folders.get(teacher.model, teacher.model)})
        for teacher in config.task.teachers
    ]
    return config.model_copy(update={"task": config.task.model_copy(update={"teachers": placed})})
