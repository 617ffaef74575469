"""Read stored features of a frozen backbone and of teachers in place of images."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from guie.config import RunConfig
from guie.config.model import ModelConfig
from guie.config.stages import StageConfig
from guie.data.dataset import Batch, TrainDataset
from guie.data.manifest import Manifest
from guie.data.preprocess import Inputs, Preprocess, View
from guie.data.sampling import RankDraws
from guie.models.backbones.base import Backbone
from guie.models.embedder import Embedder
from guie.models.head import SHAPE
from guie.rows.embedding import BLOCK, Check, raise_fault, recipe, stored_features
from guie.rows.store import Rows
from guie.rows.views import drawn_rows, stored_views
from guie.training.teachers import Teacher, Teachers


class Tower(nn.Module):
    """A backbone that returns rows: its features, then the shape of the image."""

    cache_key = "Tower"

    def __init__(self, backbone: Backbone):
        super().__init__()
        self.backbone, self.dim = backbone, backbone.dim + SHAPE

    def forward(self, images_BCHW: Tensor, shapes_B3: Tensor) -> Tensor:
        """Map (B, 3, S, S) preprocessed images and their shapes (B, 3) to rows (B, R)."""
        return torch.cat([self.backbone(images_BCHW).float(), shapes_B3], dim=1)


@dataclass(frozen=True)
class TowerModel:
    """A backbone with the preprocessing and config that identify its features."""

    embedder: Tower
    preprocess: Preprocess
    config: ModelConfig


class ViewTower(Tower):
    """The same for the images of `TrainDataset`, which are not normalised."""

    def __init__(self, backbone: Backbone, preprocess: Preprocess):
        super().__init__(backbone)
        self.preprocess = copy.deepcopy(preprocess)  # loaders need the original, on the CPU

    def forward(self, images_BCHW: Tensor, shapes_B3: Tensor) -> Tensor:
        """Map (B, 3, S, S) uint8 images and their shapes (B, 3) to rows (B, R)."""
        return super().forward(self.preprocess.normalised(images_BCHW), shapes_B3)


@dataclass(frozen=True)
class FrozenData:
    """Training and validation features of a frozen stage, in place of images.

    Attributes: `views`, rows of every view of the training images; `val`, rows of the val split,
    None if there is none.
    """

    dataset: TrainDataset
    views: Sequence[Rows]
    val: Rows | None

    def batches(self, draws: RankDraws, device: torch.device | str = "cpu") -> Iterator[Batch]:
        """Yield the batches of `TrainLoader`, with features in place of images."""
        for visits_B, rows_B in draws:
            features_BF, shapes_B3 = _parts(drawn_rows(self.views, visits_B, rows_B))
            yield Batch(
                label_B=torch.from_numpy(self.dataset.labels[rows_B]).long(),
                row_B=torch.from_numpy(rows_B),
                shapes_B3=shapes_B3,
                feat_BF=features_BF,
            ).to(device)


def frozen_data(
    accelerator: Accelerator,
    config: RunConfig,
    stage: StageConfig,
    backbone: Backbone,
    preprocess: Preprocess,
    dataset: TrainDataset,
    manifest: Manifest,
    check: Check = raise_fault,
) -> FrozenData:
    """Load features for a stage with `cached_views` from `<out>/.cache/features`, or compute them.

    Every process must call it; for `check` see `OnDevices`. Raises UserError if an image cannot
    be read, a feature overflows float16, or the disk is full.
    """
    assert stage.cached_views is not None
    tower_config = config.model.backbone.model_copy(update={"stride_px": backbone.stride_px})
    model = config.model.model_copy(update={"backbone": tower_config, "head": None})
    tower = TowerModel(Tower(backbone), preprocess, model)
    folder, workers = Path(config.out) / ".cache" / "features", config.data.workers
    embedder = ViewTower(backbone, preprocess).to(accelerator.device)
    known_by = recipe(tower, accelerator.mixed_precision)
    drawn = (dataset, stage.cached_views)
    views = stored_views(accelerator, embedder, known_by, *drawn, folder, workers, check=check)
    val = None
    if "val" in manifest.table["split"].unique():
        paths = manifest.split("val")["image_path"]
        settings: dict[str, Any] = {"workers": workers, "check": check}
        settings["open_image"] = manifest.open_image
        val = stored_features(accelerator, tower, paths, manifest.root, folder, **settings)
    return FrozenData(dataset, views, val)


@torch.inference_mode()
def embed_rows(accelerator: Accelerator, embedder: Embedder, rows: Rows) -> np.ndarray:
    """Map (N, R) rows through the head alone to (N, D) float32, in every process."""
    embedder.eval()
    found = [np.zeros((0, embedder.dim), np.float32)]
    for start in range(0, len(rows), BLOCK):
        features_BF, shapes_B3 = _parts(rows[start : start + BLOCK])
        with accelerator.autocast():
            emb_BD = embedder.embed(
                features_BF.to(accelerator.device), shapes_B3.to(accelerator.device)
            )
        found.append(emb_BD.float().cpu().numpy())
    return np.concatenate(found)


def _parts(rows_BR: np.ndarray) -> tuple[Tensor, Tensor]:
    """Split rows into features (B, F) and shapes (B, 3)."""
    rows = torch.from_numpy(rows_BR)
    return rows[:, :-SHAPE].contiguous(), rows[:, -SHAPE:].contiguous()


class TeacherTower(nn.Module):
    """A teacher for images of `TrainDataset`: uint8, not normalised."""

    def __init__(self, teacher: Teacher):
        super().__init__()
        self.embedder, self.preprocess = teacher.model.embedder, teacher.model.preprocess
        self.dim = teacher.dim

    def forward(self, images_BCHW: Tensor, shapes_B3: Tensor) -> Tensor:
        """Embed uint8 images (B, 3, S, S); shapes (B, 3) are those of the original images."""
        return self.embedder(self.preprocess(images_BCHW), shapes_B3)


class TeacherViews(NamedTuple):
    """Cached embeddings of all views of the images that one teacher teaches."""

    place_N: np.ndarray  # of each training row in a view; -1 if it is not taught
    views: Sequence[Rows]


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

    A teacher of larger images than the student's sees the same part of an image in more pixels. Every
    process must call it; `check` as in `OnDevices`. Raises UserError as `stored_views`.
    """
    each = []
    for teacher in teachers.teachers:
        rows = np.flatnonzero(teacher.classes_C.cpu().numpy()[dataset.labels])
        place_N = np.full(len(dataset), -1)
        place_N[rows] = np.arange(len(rows))
        drawn = _drawn_for(teacher, dataset)
        seen = {"seen": drawn.preprocess.recipe()}  # the teacher's input
        found = stored_views(
            accelerator,
            TeacherTower(teacher).to(accelerator.device),
            recipe(teacher.model, accelerator.mixed_precision) | seen,
            drawn,
            views,
            folder,
            workers,
            rows=rows,
            title=f"embeddings by {teacher.name}",
            check=check,
        )
        each.append(TeacherViews(place_N, found))
    return each


def _drawn_for(teacher: Teacher, dataset: TrainDataset) -> TrainDataset:
    """Return the data set of the same views, at the teacher's image size if that is larger."""
    inputs, own = teacher.model.preprocess, dataset.preprocess.recipe()
    looks = cast(
        "Sequence[Preprocess | View]", inputs.looks if isinstance(inputs, Inputs) else [inputs]
    )
    wholes = [look.preprocess if isinstance(look, View) else look for look in looks]
    larger = copy.copy(dataset)
    own["size_px"] = max(own["size_px"], *(whole.size_px for whole in wholes))
    larger.preprocess = Preprocess(**own)
    return larger


def taught_batches(each: Sequence[TeacherViews], draws: RankDraws) -> Iterator[Tensor]:
    """Yield the teachers' embeddings, concatenated to (B, T), for each batch of this process."""
    for visits_B, rows_B in draws:
        parts = [drawn_rows(one.views, visits_B, one.place_N[rows_B]) for one in each]
        yield torch.from_numpy(np.concatenate(parts, axis=1))
