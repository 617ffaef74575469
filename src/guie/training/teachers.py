"""Models that a student learns from: on its very views, on fixed views computed once, or its own
pretrained backbone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Self, TypeVar

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from guie.base.errors import UserError
from guie.config import RunConfig
from guie.config.distillation import TeacherConfig
from guie.config.training import GenericImagesConfig
from guie.data.dataset import Batch, TrainDataset
from guie.data.sampling import RankDraws
from guie.evaluation.embedding import Check, raise_fault
from guie.evaluation.feature_cache import Features, recipe
from guie.evaluation.frozen import cached_views
from guie.losses import MarginSoftmax
from guie.losses.retention import drift, squared_distance
from guie.models import LoadedModel, open_model
from guie.models.backbones import Backbone, build_backbone
from guie.models.preprocess import Preprocess
from guie.models.pretrained import state_hash
from guie.models.weights import read_tensors, save_weights
from guie.training.run_folder import CLASSES, read_classes

M = TypeVar("M", bound=nn.Module)


class Apart:
    """Stands apart of the task that holds it, and is one for it and its moving averages.

    It is no module: no checkpoint, optimiser, reducer or `train()` reaches it.
    """

    def __deepcopy__(self, memo: dict) -> Self:
        return self


def frozen(model: M) -> M:
    """The model in eval mode, without gradients of its own; changed in place."""
    return model.eval().requires_grad_(False)


FILE, KEY = "model_classes.safetensors", "weight_CkT"


def save_class_weights(classifier: MarginSoftmax, path: Path) -> None:
    """Write them, in the order of the run's classes, atomically."""
    everyone = torch.arange(classifier.classes, device=classifier.weight_CD.device)
    with torch.no_grad():
        save_weights({KEY: classifier.centers_of(everyone)}, path)


def read_class_weights(folder: str | Path, labels: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Those that a run has of some classes: their places among these, (C,), and weights (C, k, T).

    Raises UserError where the folder keeps none.
    """
    folder = Path(folder)
    if not (folder / FILE).is_file() or not (folder / CLASSES).is_file():
        raise UserError(
            f"{folder}: has no {FILE}, so relation logits cannot learn from it; name a run of a margin"
            " softmax without projector, or take another relation"
        )
    known = read_classes(folder)
    row = {label: number for number, label in enumerate(known)}
    shared = [number for number, label in enumerate(labels) if label in row]
    weight_CkT = read_tensors(folder / FILE)[KEY]
    return torch.tensor(shared, dtype=torch.long), weight_CkT[
        [row[labels[number]] for number in shared]
    ]


class TeacherOutput(NamedTuple):
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
    def __call__(self, pixels_BCHW: Tensor, shapes_B3: Tensor, label_B: Tensor) -> TeacherOutput:
        """Its embeddings of the student's very views, at its own size, mean and std.

        Args:
            pixels_BCHW: the views, in 0 to 255.
        """
        rows_B = self.classes_C[label_B]
        emb_BT = pixels_BCHW.new_zeros((len(label_B), self.dim))
        if rows_B.any():
            prepared = self.model.preprocess(pixels_BCHW[rows_B])
            emb_BT[rows_B] = self.model.embedder(prepared, shapes_B3[rows_B]).to(emb_BT)
        return TeacherOutput(rows_B, emb_BT)


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

    def __call__(self, batch: Batch, student: Preprocess) -> list[TeacherOutput]:
        """What each makes of a batch: of its images, or known beforehand.

        Args:
            student: its preprocessing.
        """
        label_B, shapes_B3 = batch.label_B, batch.shapes_B3
        if batch.teacher_BT is not None:
            parts = batch.teacher_BT.split([teacher.dim for teacher in self.teachers], dim=1)
            pairs = zip(self.teachers, parts, strict=True)
            return [TeacherOutput(teacher.classes_C[label_B], emb_BT) for teacher, emb_BT in pairs]
        images_BCHW = batch.images_BCHW
        assert images_BCHW is not None and shapes_B3 is not None
        mean, std = student.mean.to(images_BCHW.device), student.std.to(images_BCHW.device)
        pixels_BCHW = (images_BCHW.float() * std + mean).clamp(0, 255)
        return [teacher(pixels_BCHW, shapes_B3, label_B) for teacher in self.teachers]


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


class Retention(Apart):
    """A teacher that is the student's own beginning: weights, features, or both are held to its.

    It is read from its own file at the start of every stage that trains the backbone, a resumed one too.
    """

    def __init__(self, config: RunConfig):
        assert config.retention is not None
        self.run, self.config = config, config.retention
        self.pretrained: Backbone | None = None

    @property
    def generic(self) -> GenericImagesConfig | None:
        """The generic images that batches of this stage bring along."""
        return self.config.generic if self.pretrained else None

    def begin_stage(self, number: int, student: Backbone) -> None:
        """Read the pretrained backbone where the stage trains any of the student's."""
        trained = [p for p in student.parameters() if p.requires_grad]
        self.pretrained = None
        if trained:
            self.pretrained = pretrained_for(self.run, number).to(trained[0].device)

    def __call__(
        self, student: Backbone, batch: Batch, feat_BF: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """What to add to the loss, and each term before its weight, for the log.

        Args:
            batch: with images, or where they are configured generic ones.
            feat_BF: the student's features of `images`.
        """
        terms: dict[str, Tensor] = {}
        if self.pretrained and self.config.weights:
            terms["weights"] = squared_distance(student.tower, self.pretrained.tower)
        if self.pretrained and self.config.features:
            terms |= self._features(student, self.pretrained, batch, feat_BF)
        total = feat_BF.new_zeros((), dtype=torch.float32)
        for name, term in terms.items():
            total = total + getattr(self.config, name) * term
        return total, {f"retention_{name}": term.detach() for name, term in terms.items()}

    def _features(
        self, student: Backbone, pretrained: Backbone, batch: Batch, feat_BF: Tensor
    ) -> dict[str, Tensor]:
        if not self.config.generic:
            assert batch.images_BCHW is not None
            return {"features": drift(feat_BF, _frozen(pretrained, batch.images_BCHW))}
        images_GCHW = batch.generic_GCHW
        assert images_GCHW is not None
        if not len(images_GCHW):  # a micro-batch may go without
            return {}
        apart = drift(student(images_GCHW), _frozen(pretrained, images_GCHW))
        return {"features": batch.generic_weight * apart}


@torch.no_grad()
def _frozen(pretrained: Backbone, images_BCHW: Tensor) -> Tensor:
    return pretrained(images_BCHW)


def pretrained_for(config: RunConfig, number: int) -> Backbone:
    """The pretrained backbone at a stage's image size and stride, frozen.

    Its position embeddings are resampled as often as those of the student were by then.
    """
    model = config.model
    backbone = build_backbone(model.backbone, model.image.size_px)
    for stage in config.stages[: number + 1]:
        size_px, stride_px = stage.size_px, stage.stride_px
        backbone.set_image_size(
            size_px or model.image.size_px, stride_px or model.backbone.stride_px
        )
    return frozen(backbone)
