"""Rows that take models of rows above: their teachers, what they start from."""

from __future__ import annotations

from collections.abc import Mapping

from guie.config.distillation import DistillationConfig
from guie.config.run import RunConfig


def models(config: RunConfig) -> list[str]:
    """Models that a run learns or starts from, as written."""
    task = config.task
    taught = [one.model for one in task.teachers] if isinstance(task, DistillationConfig) else []
    return [*taught, *([config.start_from] if config.start_from else [])]


def with_models(config: RunConfig, folders: Mapping[str, str]) -> RunConfig:
    """The config as train.py reads it: in place of rows' names their folders."""
    task = config.task
    if isinstance(task, DistillationConfig):
        placed = [
            teacher.model_copy(update={"model": folders.get(teacher.model, teacher.model)})
            for teacher in task.teachers
        ]
        task = task.model_copy(update={"teachers": placed})
    start = folders.get(config.start_from, config.start_from) if config.start_from else None
    return config.model_copy(update={"task": task, "start_from": start})
