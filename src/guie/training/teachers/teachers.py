"""Models that a student learns from. Shapes: B images, C channels, H height, W width, T dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from guie.base.errors import UserError
from guie.batches.batch import Batch
from guie.config import RunConfig
from guie.config.distillation import TeacherConfig
from guie.model import LoadedModel, open_model
from guie.model.preprocess import Preprocess
from guie.model.weights import state_hash
from guie.training.teachers.apart import Apart, frozen


class Taught(NamedTuple):
    """What a teacher makes of the images that it teaches, of unit length, in the order of the batch."""

    rows_B: Tensor  # which of the batch's images
    emb_BT: Tensor  # of all images; 0 where the teacher is not asked


@dataclass
class Teacher:
    """A model that stays as it is, and the classes whose images it teaches.

    Attributes: `name`, of its losses in the log; `classes_C`, of all training classes by id, which it
    teaches.
    """

    name: str
    model: LoadedModel
    classes_C: Tensor

    @property
    def dim(self) -> int:
        """T of its embeddings."""
        return self.model.embedder.dim

    def to(self, device: torch.device) -> None:
        """Move it to where the student trains."""
        self.model.embedder.to(device)
        self.model.preprocess.to(device)
        self.classes_C = self.classes_C.to(device)

    @torch.no_grad()
    def __call__(self, grey_BCHW: Tensor, shapes_B3: Tensor, label_B: Tensor) -> Taught:
        """Its embeddings of the student's very views, at its own size, mean and std.

        Args:
            grey_BCHW: the views, in 0 to 255.
        """
        rows_B = self.classes_C[label_B]
        emb_BT = grey_BCHW.new_zeros((len(label_B), self.dim))
        if rows_B.any():
            prepared = self.model.preprocess(grey_BCHW[rows_B])
            emb_BT[rows_B] = self.model.embedder(prepared, shapes_B3[rows_B]).to(emb_BT)
        return Taught(rows_B, emb_BT)


class Teachers(Apart):
    """All teachers of a run."""

    def __init__(self, teachers: Sequence[Teacher]):
        self.teachers = list(teachers)

    def to(self, device: torch.device) -> None:
        """Move them to where the student trains."""
        for teacher in self.teachers:
            teacher.to(device)

    @cached_property
    def hashes(self) -> list[str]:
        """Of the weights of each: by these a resumed run knows them again."""
        return [state_hash(teacher.model.embedder.state_dict()) for teacher in self.teachers]

    def __call__(self, batch: Batch, student: Preprocess) -> list[Taught]:
        """What each makes of a batch: of its images, or known beforehand.

        Args:
            student: its preprocessing.
        """
        label_B, shapes_B3 = batch.label_B, batch.shapes_B3
        if batch.teacher_BT is not None:
            parts = batch.teacher_BT.split([teacher.dim for teacher in self.teachers], dim=1)
            pairs = zip(self.teachers, parts, strict=True)
            return [Taught(teacher.classes_C[label_B], emb_BT) for teacher, emb_BT in pairs]
        images_BCHW = batch.images_BCHW
        assert images_BCHW is not None and shapes_B3 is not None
        mean, std = student.mean.to(images_BCHW.device), student.std.to(images_BCHW.device)
        grey_BCHW = (images_BCHW.float() * std + mean).clamp(0, 255)
        return [teacher(grey_BCHW, shapes_B3, label_B) for teacher in self.teachers]


def open_teachers(
    configs: Sequence[TeacherConfig], run: RunConfig, domains: Sequence[str]
) -> Teachers:
    """Open the configured teachers, frozen.

    Args:
        run: of the student, which cannot be its own teacher.
        domains: of every training class, by id.

    Raises UserError where there is no such model, or where it teaches no domain of the mix.
    """
    teachers = [_open(config, number, run, domains) for number, config in enumerate(configs)]
    names = [teacher.name for teacher in teachers]
    for number, teacher in enumerate(teachers):
        if names.count(teacher.name) > 1:
            teacher.name += f"_{number}"
    return Teachers(teachers)


def _open(config: TeacherConfig, number: int, run: RunConfig, domains: Sequence[str]) -> Teacher:
    where = f"task.teachers.{number}"
    if Path(config.model).resolve() == (Path(run.out) / run.name).resolve():
        raise UserError(f"{where}.model: {config.model} is this very run; name another model")
    unknown = sorted(set(config.domains or ()) - set(domains))
    if unknown:
        raise UserError(
            f"{where}.domains: {', '.join(unknown)} is no domain that this run trains on, which are"
            f" {', '.join(sorted(set(domains)))}"
        )
    model = open_model(config.model, config.size_px)
    frozen(model.embedder)
    taught = set(config.domains or domains)
    classes_C = torch.tensor([domain in taught for domain in domains])
    return Teacher(Path(config.model).name, model, classes_C)
