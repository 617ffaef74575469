"""Teachers of a student: run on its own views, or once on fixed views."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from guie.base.errors import UserError
from guie.config.distillation import TeacherConfig
from guie.data.dataset import Batch
from guie.data.preprocess import Preprocess
from guie.losses.base import on_device_of, rows_of
from guie.models.opening import LoadedModel, open_model


@dataclass
class Teacher:
    """A frozen model, and the classes whose images it teaches. Not a module, see `Retention`.

    Attributes: `name`, names its losses in the log; `classes_C`, mask over all training classes by id:
    those it teaches, on the CPU.
    """

    name: str
    model: LoadedModel
    classes_C: Tensor

    def __deepcopy__(self, memo: dict) -> Self:
        return self

    @property
    def dim(self) -> int:
        """The dimension T of its embeddings."""
        return self.model.embedder.dim

    def to(self, device: torch.device) -> None:
        """Move it to the student's device."""
        self.model.embedder.to(device)
        self.model.preprocess.to(device)

    @torch.no_grad()
    def embed(self, pixels_BCHW: Tensor, shapes_B3: Tensor, label_B: Tensor) -> Tensor:
        """Return embeddings (B, T) of the student's own views, at the teacher's image size, mean and std.

        They have unit length, or 0 for images that it does not teach.

        Args:
            pixels_BCHW: the views, in 0 to 255.
            label_B: on the CPU.
        """
        own = on_device_of(rows_of(self.classes_C[label_B]), pixels_BCHW)
        emb_BT = pixels_BCHW.new_zeros((len(label_B), self.dim))
        if len(own):
            prepared = self.model.preprocess(pixels_BCHW[own])
            emb_BT[own] = self.model.embedder(prepared, shapes_B3[own]).to(emb_BT)
        return emb_BT


def outputs_of(
    teachers: Sequence[Teacher], batch: Batch, student: Preprocess
) -> tuple[Tensor, ...]:
    """Return each teacher's embeddings of a batch: computed from its images, or precomputed.

    The student's preprocessing is on the device of the images.
    """
    if batch.teacher_BT is not None:
        return batch.teacher_BT.split([teacher.dim for teacher in teachers], dim=1)
    found = []
    for piece in batch.split(batch.pieces):
        images_BCHW, shapes_B3 = piece.images_BCHW, piece.shapes_B3
        assert images_BCHW is not None and shapes_B3 is not None
        pixels_BCHW = (images_BCHW.float() * student.std + student.mean).clamp(0, 255)
        found.append([one.embed(pixels_BCHW, shapes_B3, piece.label_B) for one in teachers])
    return tuple(torch.cat(pieces) for pieces in zip(*found, strict=True))


def open_teachers(configs: Sequence[TeacherConfig], domains: Sequence[str]) -> list[Teacher]:
    """Open the configured teachers, frozen, for training classes of these domains.

    Raises UserError if there is no such model, or if it is to teach an unknown domain.
    """
    teachers = []
    for number, config in enumerate(configs):
        classes_C = mask_of_domains(config.domains, domains, f"task.teachers.{number}")
        model = open_model(config.model, config.size_px)
        model.embedder.eval().requires_grad_(False)
        teachers.append(Teacher(Path(config.model).name, model, classes_C))
    names = [teacher.name for teacher in teachers]
    for number, teacher in enumerate(teachers):
        if names.count(teacher.name) > 1:
            teacher.name += f"_{number}"
    return teachers


def mask_of_domains(wanted: Sequence[str] | None, domains: Sequence[str], where: str) -> Tensor:
    """Return a mask (C,) of the classes of some domains, None: of all, by the domain of every class.

    Raises UserError, with the config's key, if one of them has no classes.
    """
    if unknown := sorted(set(wanted or ()) - set(domains)):
        raise UserError(
            f"{where}.domains: {', '.join(unknown)}: not among the training domains of this run:"
            f" {', '.join(sorted(set(domains)))}"
        )
    taught = set(wanted or domains)
    return torch.tensor([domain in taught for domain in domains])
