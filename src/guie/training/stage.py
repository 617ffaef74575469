"""A stage of training made ready: the model at the stage's size, its optimiser, its batches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any

import pandas as pd
from accelerate import Accelerator

from guie.base.errors import UserError
from guie.batches.augment import Augment
from guie.batches.batch import Batch
from guie.batches.dataset import Classes, TrainDataset, classes_of, training_rows
from guie.batches.loader import Ahead, Beside, TrainLoader, train_loader, with_teachers
from guie.batches.replay import with_generic
from guie.batches.sampling import RankBatches, RankDraws, RankViews, Sampler
from guie.config import RunConfig
from guie.config.stages import StageConfig
from guie.data.manifest import Manifest
from guie.evaluation.extract import Check
from guie.evaluation.features.frozen import FrozenData, frozen_data
from guie.model import build_preprocess
from guie.model.preprocess import Preprocess
from guie.training.compiling import set_up_tower, uncompiled
from guie.training.optim import freeze
from guie.training.run.checkpoint import TrainState
from guie.training.tasks import DistillationTask, Task
from guie.training.teachers import teacher_views
from guie.training.trained import Trained


@dataclass(frozen=True)
class Material:
    """What a run trains on.

    Attributes: `generic`, what retention's generic images are drawn from; `rows`, the training rows
    of each stage; `classes`, of all stages.
    """

    manifest: Manifest
    generic: Manifest | None
    rows: list[pd.DataFrame]
    classes: Classes

    def all_rows(self) -> pd.DataFrame:
        """Of every stage, and the generic ones."""
        return pd.concat([*self.rows, self.generic.table] if self.generic else self.rows)

    def states(self) -> pd.DataFrame | None:
        """`Manifest.states` of the training images, then of the generic ones; None where nobody looked."""
        sources = [(self.manifest, pd.concat(self.rows))]
        sources += [(self.generic, self.generic.table)] if self.generic else []
        found = [
            m.states.loc[rows["image_path"].unique()] for m, rows in sources if m.states is not None
        ]
        return pd.concat(found) if found else None


def material_of(config: RunConfig, manifest: Manifest, generic: Manifest | None) -> Material:
    """Raises UserError where a stage has nothing to train on."""
    rows = [training_rows(manifest, stage.domains) for stage in config.stages]
    return Material(manifest, generic, rows, classes_of(pd.concat(rows)))


@dataclass(frozen=True)
class StageData:
    """What a stage trains on.

    Attributes: `rows`, its training rows; `batches`, of this process, from the state's step on;
    `frozen`, where features stand in for images.
    """

    rows: pd.DataFrame
    sampler: Sampler
    total_steps: int
    batches: TrainLoader | Ahead[Batch]
    frozen: FrozenData | None


@dataclass(frozen=True)
class Stage:
    """A stage under way.

    Attributes: `epochs_before`, of earlier stages.
    """

    config: StageConfig
    trained: Trained
    preprocess: Preprocess
    data: StageData
    epochs_before: float

    def state_dict(self) -> dict[str, Any]:
        """What `enter_stage` goes on from; all processes call it."""
        return self.trained.state_dict() | {"sampler": self.data.sampler.state()}

    def told(self, run: RunConfig, state: TrainState) -> str:
        """A line on what the stage is about to do."""
        rows, views = self.data.rows, self.config.cached_views
        cached = f" ({views} cached views of each)" if self.data.frozen else ""
        left_out = self.data.sampler.left_out
        rare = f" ({left_out} of them left out, in classes of too few)" if left_out else ""
        trainable, total = self.trained.parameters
        return (
            f"stage {state.stage + 1}/{len(run.stages)} {self.config.name}:"
            f" {self.data.total_steps} steps of {self.config.batch_size} images{cached} at"
            f" {self.preprocess.size_px} px, {len(rows)} images{rare},"
            f" {rows['label'].nunique()} classes, {rows['domain'].nunique()} domains;"
            f" {trainable:,} of {total:,} parameters train"
        )


def enter_stage(
    accelerator: Accelerator,
    config: RunConfig,
    material: Material,
    state: TrainState,
    task: Task,
    saved: dict[str, Any] | None,
    check: Check,
) -> Stage:
    """Set up the stage that the state stands in.

    Args:
        task: whole, as the stage before left it.
        saved: a checkpoint in the middle of this stage, to go on from.
        check: as of `embed_blocks`, where features of a frozen backbone are computed.

    Raises UserError where no batch can be made, and as `frozen_data`.
    """
    preprocess = set_model(task, config, state.stage, material)
    trained = Trained(accelerator, task, config.stages[state.stage], saved)
    with uncompiled():  # features of a frozen backbone are computed here
        draws = saved["sampler"] if saved else {}
        data = open_data(accelerator, config, material, state, draws, task, preprocess, check)
    before = sum(earlier.epochs for earlier in config.stages[: state.stage])
    return Stage(trained.stage, trained.prepare(), preprocess, data, before)


def set_model(task: Task, config: RunConfig, number: int, material: Material) -> Preprocess:
    """Make the task ready for a stage: image size, what trains, which classes; its preprocessing.

    Args:
        number: of the stage in the config.
    """
    stage, backbone = config.stages[number], task.embedder.backbone
    size_px = stage.size_px or config.model.image.size_px
    backbone.set_image_size(size_px, stage.stride_px or config.model.backbone.stride_px)
    if config.gradient_checkpointing:
        backbone.checkpoint_gradients()
    set_up_tower(backbone.tower, config)
    freeze(task, stage.lr)
    labels = material.rows[number]["label"].unique()
    task.open_stage(number, pd.Index(material.classes.labels).get_indexer(labels))
    return build_preprocess(config.model, backbone, size_px)


def open_data(
    accelerator: Accelerator,
    config: RunConfig,
    material: Material,
    state: TrainState,
    draws: dict[str, Any],
    task: Task,
    preprocess: Preprocess,
    check: Check,
) -> StageData:
    """The batches of the stage that the state stands in; each is a function of the step.

    Args:
        draws: state of a sampler that learns, as it was before the step; empty: the stage begins.

    Raises UserError where no batch can be made, and as `frozen_data`.
    """
    stage, seed = config.stages[state.stage], (config.seed, state.stage)
    manifest, rows = material.manifest, material.rows[state.stage]
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
    sampler.load(draws)
    total_steps = max(1, round(stage.epochs * sampler.steps_per_epoch))
    steps = (sampler, state.step, total_steps, rank, ranks)
    augment, backbone = Augment(stage.augment), task.embedder.backbone
    viewed = build_preprocess(config.model, backbone, preprocess.size_px, stage.augment.fit)
    dataset = TrainDataset(rows, material.classes.labels, manifest.root, augment, viewed, seed)
    beside = _teachers(accelerator, config, stage, task, dataset, RankDraws(*steps), check)
    if stage.cached_views:
        frozen = frozen_data(
            accelerator, config, stage, backbone, preprocess, dataset, manifest, check
        )
        batches = with_teachers(frozen.batches(RankDraws(*steps)), beside)
        ahead = Ahead(batches, methodcaller("to", accelerator.device))
        return StageData(rows, sampler, total_steps, ahead, frozen)
    if stage.repeated_views:
        views = RankViews(RankDraws(*steps), stage.repeated_views, dataset.paths)
        loader = train_loader(dataset, views, config.data.workers, accelerator.device, beside)
        return StageData(rows, sampler, total_steps, loader, None)
    drawn = dataset, RankBatches(*steps)
    wanted = task.retention.generic if task.retention else None
    if wanted:
        assert material.generic is not None  # read wherever retention wants it
        both = with_generic(*drawn, material.generic, wanted.batch_size)
        loader = train_loader(*both, config.data.workers, accelerator.device)
    else:
        loader = train_loader(*drawn, config.data.workers, accelerator.device)
    return StageData(rows, sampler, total_steps, loader, None)


def _teachers(
    accelerator: Accelerator,
    config: RunConfig,
    stage: StageConfig,
    task: Task,
    dataset: TrainDataset,
    draws: RankDraws,
    check: Check,
) -> Beside | None:
    """What teachers make of the batches, where the stage has fixed views of which that can be known."""
    views = stage.cached_views or stage.repeated_views
    if not views or not isinstance(task, DistillationTask):
        return None
    folder, workers = Path(config.out) / ".cache" / "features", config.data.workers
    found = teacher_views(accelerator, task.teachers, dataset, views, folder, workers, check)
    return partial(found.batches, draws)
