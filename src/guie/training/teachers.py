"""Teachers of a student: run on its own views, or once on fixed views."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from guie.base.errors import UserError
from guie.config import RunConfig
from guie.config.distillation import TeacherConfig
from guie.data.dataset import Batch, TrainDataset
from guie.data.sampling import RankDraws
from guie.evaluation.embedding import Check, raise_fault
from guie.evaluation.feature_cache import Features, recipe
from guie.evaluation.frozen import cached_views
from guie.losses.base import on_device_of, rows_of
from guie.models.loading import LoadedModel, open_model
from guie.models.preprocess import Preprocess
from guie.training.retention import NotCopied


class TeacherOutput(NamedTuple):
    """A teacher's embeddings of the images that it teaches, of unit length, in batch order."""

    rows_B: Tensor  # mask of the batch's images, on the CPU
    emb_BT: Tensor  # of all images; 0 for those it does not teach


@dataclass
class Teacher:
    """A frozen model, and the classes whose images it teaches.

    Attributes: `name`, names its losses in the log; `classes_C`, mask over all training classes by id:
    those it teaches, on the CPU.
    """

    name: str
    model: LoadedModel
    classes_C: Tensor

    @property
    def dim(self) -> int:
        """The dimension T of its embeddings."""
        return self.model.embedder.dim

    def to(self, device: torch.device) -> None:
        """Move it to the student's device."""
        self.model.embedder.to(device)
        self.model.preprocess.to(device)

    @torch.no_grad()
    def __call__(self, pixels_BCHW: Tensor, shapes_B3: Tensor, label_B: Tensor) -> TeacherOutput:
        """Embed the student's own views, at the teacher's image size, mean and std.

        Args:
            pixels_BCHW: the views, in 0 to 255.
            label_B: on the CPU.
        """
        rows_B = self.classes_C[label_B]
        emb_BT = pixels_BCHW.new_zeros((len(label_B), self.dim))
        if rows_B.any():
            own = on_device_of(rows_of(rows_B), pixels_BCHW)
            prepared = self.model.preprocess(pixels_BCHW[own])
            emb_BT[own] = self.model.embedder(prepared, shapes_B3[own]).to(emb_BT)
        return TeacherOutput(rows_B, emb_BT)


class Teachers(NotCopied):
    """All teachers of a run."""

    def __init__(self, teachers: Sequence[Teacher]):
        self.teachers = list(teachers)

    def to(self, device: torch.device) -> None:
        """Move them to the student's device."""
        for teacher in self.teachers:
            teacher.to(device)

    def __call__(self, batch: Batch, student: Preprocess) -> list[TeacherOutput]:
        """Return each teacher's output for a batch: computed from its images, or precomputed.

        Args:
            student: the student's preprocessing, on the device of the images.
        """
        label_B, shapes_B3 = batch.label_B, batch.shapes_B3
        if batch.teacher_BT is not None:
            parts = batch.teacher_BT.split([teacher.dim for teacher in self.teachers], dim=1)
            pairs = zip(self.teachers, parts, strict=True)
            return [TeacherOutput(teacher.classes_C[label_B], emb_BT) for teacher, emb_BT in pairs]
        images_BCHW = batch.images_BCHW
        assert images_BCHW is not None and shapes_B3 is not None
        pixels_BCHW = (images_BCHW.float() * student.std + student.mean).clamp(0, 255)
        return [teacher(pixels_BCHW, shapes_B3, label_B) for teacher in self.teachers]


def open_teachers(
    configs: Sequence[TeacherConfig], run: RunConfig, domains: Sequence[str]
) -> Teachers:
    """Open the configured teachers, frozen.

    Args:
        run: config of the student, which cannot be its own teacher.
        domains: the domain of every training class, by id.

    Raises UserError if there is no such model, or if it is to teach an unknown domain.
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
        raise UserError(f"{where}.model: {config.model} is the run itself; name another model")
    classes_C = classes_of(config.domains, domains, where)
    model = open_model(config.model, config.size_px)
    model.embedder.eval().requires_grad_(False)
    return Teacher(Path(config.model).name, model, classes_C)


def classes_of(wanted: Sequence[str] | None, domains: Sequence[str], where: str) -> Tensor:
    """Return a mask (C,) of the classes of some domains; None: of all.

    Args:
        domains: the domain of every training class, by id.
        where: the key of the config that names the wanted domains.

    Raises UserError if one of them has no classes.
    """
    if unknown := sorted(set(wanted or ()) - set(domains)):
        raise UserError(
            f"{where}.domains: {', '.join(unknown)}: not among the training domains of this run:"
            f" {', '.join(sorted(set(domains)))}"
        )
    taught = set(wanted or domains)
    return torch.tensor([domain in taught for domain in domains])


class TeacherTower(nn.Module):
    """A teacher for images from the student's loader: uint8, at the student's image size."""

    def __init__(self, teacher: Teacher):
        super().__init__()
        self.embedder, self.preprocess = teacher.model.embedder, teacher.model.preprocess
        self.dim = teacher.dim

    def forward(self, images_BCHW: Tensor, shapes_B3: Tensor) -> Tensor:
        """Embed uint8 images (B, 3, S, S); shapes (B, 3) are those of the original images."""
        return self.embedder(self.preprocess(images_BCHW), shapes_B3)


@dataclass(frozen=True)
class TeacherViews:
    """Cached embeddings of all views of the images that one teacher teaches.

    Attributes: `place_N`, index of each training row in `views`, -1 if it is not taught.
    """

    place_N: np.ndarray
    views: Sequence[Features]
    dim: int

    def rows(self, views_B: np.ndarray, rows_B: np.ndarray) -> np.ndarray:
        """Return the embeddings of these rows in these views, 0 for rows that are not taught."""
        found = np.zeros((len(rows_B), self.dim), np.float32)
        place_B = self.place_N[rows_B]
        for view in np.unique(views_B):
            here = (views_B == view) & (place_B >= 0)
            found[here] = self.views[view][place_B[here]]
        return found


def taught_batches(each: Sequence[TeacherViews], draws: RankDraws) -> Iterator[Tensor]:
    """Yield the teachers' embeddings, concatenated to (B, T), for each batch of this process."""
    for visits_B, rows_B in draws:
        parts = [one.rows(visits_B % len(one.views), rows_B) for one in each]
        yield torch.from_numpy(np.concatenate(parts, axis=1))


def teacher_views(
    accelerator: Accelerator,
    teachers: Teachers,
    dataset: TrainDataset,
    views: int,
    folder: Path,
    workers: int | None = None,
    check: Check = raise_fault,
) -> list[TeacherViews]:
    """Embed every view with the teachers of its image, or read the embeddings from the cache.

    Every process must call it; `check` as in `embed_blocks`. Raises UserError as `cached_views`.
    """
    each = []
    for teacher in teachers.teachers:
        rows = np.flatnonzero(teacher.classes_C.cpu().numpy()[dataset.labels])
        place_N = np.full(len(dataset), -1)
        place_N[rows] = np.arange(len(rows))
        seen_by = _seen_by(teacher, dataset)
        seen = {"seen": seen_by.preprocess.recipe()}  # the teacher's input
        found = cached_views(
            accelerator,
            TeacherTower(teacher).to(accelerator.device),
            recipe(teacher.model, accelerator.mixed_precision) | seen,
            seen_by,
            views,
            folder,
            workers,
            rows=rows,
            title=f"embeddings by {teacher.name}",
            check=check,
        )
        each.append(TeacherViews(place_N, found, teacher.dim))
    return each


def _seen_by(teacher: Teacher, dataset: TrainDataset) -> TrainDataset:
    """Return the data set with the same views, at the image size of the teacher if that is larger."""
    own, looks = dataset.preprocess.recipe(), teacher.model.preprocess.recipe()
    looks = looks.get("looks", [looks])
    size_px = max(round(look["size_px"] / look.get("part", 1.0)) for look in looks)
    print("SEEN BY", teacher.name, size_px, looks[:1])
    if size_px <= own["size_px"]:
        return dataset
    larger = copy.copy(dataset)
    larger.preprocess = Preprocess(**own | {"size_px": size_px})
    return larger
