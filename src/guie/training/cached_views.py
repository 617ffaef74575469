"""Cache features of a fixed number of random views of training images, by frozen backbones and teachers."""

from __future__ import annotations

import copy
import hashlib
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from guie.base.devices import from_main
from guie.base.errors import UserError
from guie.config import RunConfig
from guie.config.model import ModelConfig
from guie.config.stages import StageConfig
from guie.data.dataset import Batch, Samples, TrainDataset
from guie.data.image_checks.decoding import absolute
from guie.data.manifest import Manifest
from guie.data.sampling import RankDraws
from guie.data.sampling.streams import key
from guie.evaluation.embedding import (
    BLOCK,
    Check,
    Embeds,
    cached_features,
    embed_blocks,
    raise_fault,
    recipe,
)
from guie.evaluation.feature_cache import FeatureCache, Features, fill, readable_states
from guie.models.backbones.base import Backbone
from guie.models.embedder import Embedder
from guie.models.head import SHAPE
from guie.models.preprocess import Inputs, Preprocess, View
from guie.training.teachers import Teacher, Teachers

VERSION = 1  # raise it if the same config draws other views
# Cache keys of the decoders of TrainDataset
DECODERS = {"seen": "open_part", "host": "open_part as host"}
BYTES = np.dtype(np.float16).itemsize


class TrainingView(Samples):
    """One view of every training image, made by `TrainDataset`, not yet normalised."""

    def __init__(self, dataset: TrainDataset, view: int, rows: Sequence[int] | np.ndarray):
        self.dataset, self.view, self.rows = dataset, view, rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        row = int(self.rows[index])
        # Seeded by the path: other rows of the manifest must not change the draws for this one.
        sample = self.dataset[self.view, key(self.dataset.paths[row]), row]
        return sample["image"], sample["shape"]


def cached_views(
    accelerator: Accelerator,
    embedder: Embeds,
    known_by: dict[str, Any],
    dataset: TrainDataset,
    views: int,
    folder: Path,
    workers: int | None = None,
    *,
    rows: np.ndarray | None = None,
    title: str = "features",
    check: Check = raise_fault,
) -> list[Features]:
    """Return features of each view of a stage's training images, and compute those not cached.

    Every process must call it.

    Args:
        embedder: takes the images of `TrainDataset`, uint8 and not normalised, and their shapes;
            it is on the device.
        known_by: all that a feature depends on except the view.
        views: the number of views.
        rows: rows of the data set; None for all.
        check: see `embed_blocks`.

    Raises UserError if an image cannot be read, a feature overflows float16, or the disk is full.
    """
    caches = _view_caches(known_by, dataset, views, folder)
    of_rows = np.arange(len(dataset)) if rows is None else rows
    files = absolute(dataset.root, dataset.paths.take(of_rows))
    states = from_main(accelerator, lambda: readable_states(files, DECODERS[dataset.decode]))
    missing = from_main(accelerator, lambda: [cache.missing(states) for cache in caches])
    row_bytes = embedder.dim * BYTES
    wanted = sum(len(rows) for rows in missing) * row_bytes
    accelerator.print(
        f"{title} of {views} views of {len(files):,} images:"
        f" {views * len(files) * row_bytes / 1e6:,.1f} MB in {folder},"
        f" {wanted / 1e6:,.1f} MB of them not yet computed"
    )
    from_main(accelerator, lambda: _check_room(folder, wanted))

    for view, cache in enumerate(caches):
        viewed, said = TrainingView(dataset, view, of_rows[missing[view]]), f"{title} (view {view})"
        blocks = embed_blocks(
            accelerator, embedder, viewed, workers=workers, title=said, check=check
        )
        fill(accelerator, cache, states, missing[view], blocks)
    return [cache.open(states, embedder.dim) for cache in caches]


def drawn_rows(views: Sequence[Features], visits_B: np.ndarray, places_B: np.ndarray) -> np.ndarray:
    """Return a row per image of a batch, from the view of its visit; 0 for place -1.

    Args:
        visits_B: how often each image was drawn before; visits take the views in turn.
        places_B: of the images in a view.
    """
    views_B = visits_B % len(views)
    found_BR = np.zeros((len(places_B), views[0].shape[1]), np.float32)
    for view in np.unique(views_B):
        here = (views_B == view) & (places_B >= 0)
        found_BR[here] = views[view][places_B[here]]
    return found_BR


def _view_caches(
    known_by: dict[str, Any], dataset: TrainDataset, views: int, folder: Path
) -> list[FeatureCache]:
    drawn = {
        "seed": list(dataset.seed),
        "root": str(dataset.root.absolute()),
        "augment": dataset.augment.config.model_dump(mode="json"),
        "version": f"{VERSION}, albumentations {version('albumentations')}",
    }
    if dataset.augment.config.mixup:  # the image that is mixed in depends on all rows
        drawn["rows"] = hashlib.sha256("\n".join(dataset.paths).encode()).hexdigest()
    return [
        FeatureCache(folder, known_by | {"view": {"number": view, **drawn}})
        for view in range(views)
    ]


def _check_room(folder: Path, wanted_bytes: int) -> None:
    here = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free_bytes = shutil.disk_usage(here).free
    if wanted_bytes > free_bytes:
        raise UserError(
            f"{folder}: the features need {wanted_bytes:,} bytes, {free_bytes:,} are free; free disk"
            " space, lower cached_views, or move the folder of runs (out)"
        )


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
    views: Sequence[Features]
    val: Features | None

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

    Every process must call it; for `check` see `embed_blocks`. Raises UserError if an image cannot
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
    views = cached_views(accelerator, embedder, known_by, *drawn, folder, workers, check=check)
    val = None
    if "val" in manifest.table["split"].unique():
        paths = manifest.split("val")["image_path"]
        settings: dict[str, Any] = {"workers": workers, "check": check}
        settings["open_image"] = manifest.open_image
        val = cached_features(accelerator, tower, paths, manifest.root, folder, **settings)
    return FrozenData(dataset, views, val)


@torch.inference_mode()
def embed_rows(accelerator: Accelerator, embedder: Embedder, rows: Features) -> np.ndarray:
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
    views: Sequence[Features]


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
    process must call it; `check` as in `embed_blocks`. Raises UserError as `cached_views`.
    """
    each = []
    for teacher in teachers.teachers:
        rows = np.flatnonzero(teacher.classes_C.cpu().numpy()[dataset.labels])
        place_N = np.full(len(dataset), -1)
        place_N[rows] = np.arange(len(rows))
        drawn = _drawn_for(teacher, dataset)
        seen = {"seen": drawn.preprocess.recipe()}  # the teacher's input
        found = cached_views(
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
