"""A stage of training made ready: the model at the stage's size, and its batches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pandas as pd
from accelerate import Accelerator

from guie.augment import Augment
from guie.checkpoint import TrainState
from guie.compiling import set_up_tower
from guie.config import RunConfig
from guie.data import Classes, TrainDataset, train_loader
from guie.errors import UserError
from guie.features.frozen import FrozenData, frozen_data
from guie.generic import with_generic
from guie.manifest import Manifest
from guie.model import build_preprocess
from guie.model.preprocess import Preprocess
from guie.optim import freeze
from guie.sampling import RankBatches, RankDraws, Sampler
from guie.tasks import Task


@dataclass(frozen=True)
class StageData:
    """What a stage trains on.

    Attributes: `rows`, its training rows; `batches`, of this process, from the state's step on;
    `frozen`, where features stand in for images.
    """

    rows: pd.DataFrame
    sampler: Sampler
    total_steps: int
    batches: Iterable[dict[str, Any]]
    frozen: FrozenData | None


def set_model(
    task: Task, config: RunConfig, number: int, rows: pd.DataFrame, classes: Classes
) -> Preprocess:
    """Make the task ready for a stage: image size, what trains, which classes; its preprocessing.

    Args:
        number: of the stage in the config.
        rows: training rows of the stage.
        classes: of the run.
    """
    stage, backbone = config.stages[number], task.embedder.backbone
    size_px = stage.size_px or config.model.image.size_px
    backbone.set_image_size(size_px, stage.stride_px or config.model.backbone.stride_px)
    if config.gradient_checkpointing:
        backbone.checkpoint_gradients()
    set_up_tower(backbone.tower, config)
    freeze(task, stage.lr)
    task.open_stage(number, pd.Index(classes.labels).get_indexer(rows["label"].unique()))
    return build_preprocess(config.model, backbone, size_px)


def open_data(
    accelerator: Accelerator,
    config: RunConfig,
    state: TrainState,
    manifest: Manifest,
    generic: Manifest | None,
    rows: pd.DataFrame,
    classes: Classes,
    task: Task,
    preprocess: Preprocess,
) -> StageData:
    """The batches of the stage that the state stands in; each is a function of the step.

    Args:
        generic: what retention's generic images are drawn from.

    Raises UserError where no batch can be made, and as `frozen_data`.
    """
    stage, seed = config.stages[state.stage], (config.seed, state.stage)
    rank, ranks = accelerator.process_index, accelerator.num_processes
    if stage.batch_size % ranks:
        raise UserError(f"batch_size {stage.batch_size} cannot be shared by {ranks} processes")
    sampler = Sampler(
        rows["domain"],
        stage.sampler,
        stage.batch_size,
        seed,
        label_of_row=rows["label"],
        weight_of_row=rows.get("weight"),
    )
    sampler.load(state.sampler)
    total_steps = max(1, round(stage.epochs * sampler.steps_per_epoch))
    steps = (sampler, state.step, total_steps, rank, ranks)
    augment = Augment(stage.augment)
    dataset = TrainDataset(rows, classes.labels, manifest.root, augment, preprocess, seed)
    if stage.cached_views:
        backbone = task.embedder.backbone
        frozen = frozen_data(accelerator, config, stage, backbone, preprocess, dataset, manifest)
        batches = frozen.batches(RankDraws(*steps))
        return StageData(rows, sampler, total_steps, batches, frozen)
    batches = RankBatches(*steps)
    wanted = task.retention.generic if task.retention else None
    if wanted:
        dataset, batches = with_generic(dataset, batches, generic, wanted.batch_size)
    loader = train_loader(dataset, batches, config.data.workers, accelerator.device)
    return StageData(rows, sampler, total_steps, loader, None)


def told(config: RunConfig, state: TrainState, data: StageData, size_px: int) -> str:
    """A line on what the stage is about to do."""
    stage, rows = config.stages[state.stage], data.rows
    cached = f" ({stage.cached_views} cached views of each)" if data.frozen else ""
    return (
        f"stage {state.stage + 1}/{len(config.stages)} {stage.name}: {data.total_steps} steps of"
        f" {stage.batch_size} images{cached} at {size_px} px, {len(rows)} images,"
        f" {rows['label'].nunique()} classes, {rows['domain'].nunique()} domains"
    )
