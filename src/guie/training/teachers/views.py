"""What teachers make of fixed views, computed once and kept on disk.

Shapes: B images of a batch, C channels, H height, W width, N images, T dimensions of all teachers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from guie.batches.dataset import TrainDataset
from guie.batches.sampling import RankDraws
from guie.evaluation.extract import Check, raise_fault
from guie.evaluation.features.cache import Features
from guie.evaluation.features.computing import recipe
from guie.evaluation.features.views import cached_views
from guie.training.teachers.teachers import Teacher, Teachers


class TeacherTower(nn.Module):
    """A teacher for images as the student's loader hands them over: uint8, at the student's size."""

    def __init__(self, teacher: Teacher):
        super().__init__()
        self.embedder, self.preprocess = teacher.model.embedder, teacher.model.preprocess
        self.dim = teacher.dim

    def forward(self, images_BCHW: Tensor, shapes_B3: Tensor) -> Tensor:
        """(B, 3, S, S) uint8 and the shapes (B, 3) of the whole images -> embeddings of the teacher."""
        return self.embedder(self.preprocess(images_BCHW), shapes_B3)


@dataclass(frozen=True)
class OneTeachers:
    """Views of the images that one teaches.

    Attributes: `place_N`, where each training row stands in `views`, -1 where it is not taught.
    """

    place_N: np.ndarray
    views: Sequence[Features]
    dim: int

    def rows(self, views_B: np.ndarray, rows_B: np.ndarray) -> np.ndarray:
        """Of these rows in these views, 0 where it is not taught."""
        found = np.zeros((len(rows_B), self.dim), np.float32)
        place_B = self.place_N[rows_B]
        for view in np.unique(views_B):
            here = (views_B == view) & (place_B >= 0)
            found[here] = self.views[view][place_B[here]]
        return found


@dataclass(frozen=True)
class TeacherViews:
    """What all teachers make of every view of a stage's training images."""

    each: Sequence[OneTeachers]
    views: int

    def batches(self, draws: RankDraws) -> Iterator[Tensor]:
        """The teachers side by side, (B, T), of each batch of this process."""
        for visits_B, rows_B in draws:
            parts = [one.rows(visits_B % self.views, rows_B) for one in self.each]
            yield torch.from_numpy(np.concatenate(parts, axis=1))


def teacher_views(
    accelerator: Accelerator,
    teachers: Teachers,
    dataset: TrainDataset,
    views: int,
    folder: Path,
    workers: int = 2,
    check: Check = raise_fault,
) -> TeacherViews:
    """Embeddings of every view by the teachers of its image, from the cache or computed there.

    Every process must call it; `check` as of `embed_blocks`. Raises UserError as `cached_views`.
    """
    each = []
    for teacher in teachers.teachers:
        rows = np.flatnonzero(teacher.classes_C.cpu().numpy()[dataset.labels])
        place_N = np.full(len(dataset), -1)
        place_N[rows] = np.arange(len(rows))
        seen = {"seen": dataset.preprocess.recipe()}  # what the teacher is shown
        found = cached_views(
            accelerator,
            TeacherTower(teacher).to(accelerator.device),
            recipe(teacher.model, accelerator.mixed_precision) | seen,
            dataset,
            views,
            folder,
            workers,
            rows=rows,
            title=f"embeddings by {teacher.name}",
            check=check,
        )
        each.append(OneTeachers(place_N, found, teacher.dim))
    return TeacherViews(each, views)
