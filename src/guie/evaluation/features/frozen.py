"""Stages on a frozen backbone: the features of random views, computed once and trained on in turn.

A row is what a head takes: the features, neither normalised nor projected, and the shape of the image.
Shapes: B images of a batch, C channels, H height, W width, F features, N images, R = F + 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from guie.batches.batch import Batch
from guie.batches.dataset import TrainDataset
from guie.batches.sampling import RankDraws
from guie.config import RunConfig
from guie.config.model import ModelConfig
from guie.config.stages import StageConfig
from guie.data.manifest import Manifest
from guie.evaluation.extract import BLOCK, Check, raise_fault
from guie.evaluation.features.cache import Features
from guie.evaluation.features.computing import cached_features, recipe
from guie.evaluation.features.views import cached_views
from guie.model.backbone import Backbone
from guie.model.embedder import Embedder
from guie.model.head import SHAPE
from guie.model.preprocess import Preprocess


class Tower(nn.Module):
    """A backbone that gives rows: its features, then the shape of the image."""

    cache_key = "Tower"

    def __init__(self, backbone: Backbone):
        super().__init__()
        self.backbone, self.dim = backbone, backbone.dim + SHAPE

    def forward(self, images_BCHW: Tensor, shapes_B3: Tensor) -> Tensor:
        """(B, 3, S, S) preprocessed images and their shapes (B, 3) -> (B, R)."""
        return torch.cat([self.backbone(images_BCHW).float(), shapes_B3], dim=1)


@dataclass(frozen=True)
class TowerModel:
    """A tower as features are computed by it and known by it."""

    embedder: Tower
    preprocess: Preprocess
    config: ModelConfig


class ViewTower(Tower):
    """The same for images as `TrainDataset` hands them over, which are yet to be normalised."""

    def __init__(self, backbone: Backbone, preprocess: Preprocess):
        super().__init__(backbone)
        self.normalised = preprocess.normalised  # no submodule: loaders keep theirs on the CPU

    def forward(self, images_BCHW: Tensor, shapes_B3: Tensor) -> Tensor:
        """(B, 3, S, S) uint8 images and their shapes (B, 3) -> (B, R)."""
        return super().forward(self.normalised(images_BCHW), shapes_B3)


@dataclass(frozen=True)
class FrozenData:
    """What a frozen stage trains on and is validated on, in place of images.

    Attributes: `views`, rows of every view of the training images; `val`, rows of the val split,
    None where there is none.
    """

    dataset: TrainDataset
    views: Sequence[Features]
    val: Features | None

    def batches(self, draws: RankDraws, device: torch.device | str = "cpu") -> Iterator[Batch]:
        """Batches as of `train_loader`, with features in place of images."""
        for visits_B, rows_B in draws:
            features_BF, shapes_B3 = _parts(self._rows(visits_B % len(self.views), rows_B))
            yield Batch(
                label_B=torch.from_numpy(self.dataset.labels[rows_B]),
                row_B=torch.from_numpy(rows_B),
                shapes_B3=shapes_B3,
                feat_BF=features_BF,
            ).to(device)

    def _rows(self, views_B: np.ndarray, rows_B: np.ndarray) -> np.ndarray:
        found_BR = np.empty((len(rows_B), self.views[0].shape[1]), np.float32)
        for view in np.unique(views_B):
            here = views_B == view
            found_BR[here] = self.views[view][rows_B[here]]
        return found_BR


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
    """Features for a stage with `cached_views`, from `<out>/.cache/features` or computed there.

    Every process must call it; `check` as of `embed_blocks`. Raises UserError where an image cannot
    be read, a feature is beyond float16, or the disk has no room.
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
        val = cached_features(
            accelerator, tower, paths, manifest.root, folder, workers=workers, check=check
        )
    return FrozenData(dataset, views, val)


@torch.inference_mode()
def embed_rows(accelerator: Accelerator, embedder: Embedder, rows: Features) -> np.ndarray:
    """(N, R) rows through the head alone -> (N, D) float32, in every process."""
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
    """Features (B, F) and shapes (B, 3)."""
    rows = torch.from_numpy(rows_BR)
    return rows[:, :-SHAPE].contiguous(), rows[:, -SHAPE:].contiguous()
