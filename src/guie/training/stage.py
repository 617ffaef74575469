"""Set up a training stage: the model at the stage's image size, its optimiser, batches and checkpoint."""

from __future__ import annotations

import os
import shutil
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any, NamedTuple, cast

import pandas as pd
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from guie.base.errors import UserError
from guie.config import RunConfig
from guie.config.stages import StageConfig
from guie.data.augmentation import Augment
from guie.data.dataset import Batch, Classes, TrainDataset, classes_of, training_rows
from guie.data.loader import (
    Beside,
    Prefetcher,
    TrainLoader,
    train_loader,
    with_generic,
    with_teachers,
)
from guie.data.manifest import Manifest
from guie.data.sampling import RankBatches, RankDraws, RankViews, Sampler
from guie.evaluation.embedding import Check
from guie.evaluation.frozen import FrozenData, frozen_data
from guie.models import build_preprocess
from guie.models.preprocess import Preprocess
from guie.training.checkpoint import TrainState
from guie.training.distributed import Shards, gathered, load_optimizer
from guie.training.optim import averaged, build_optimizer, freeze
from guie.training.tasks import DistillationTask, Task
from guie.training.teachers import teacher_views


def set_up_tower(tower: nn.Module, config: RunConfig) -> None:
    """Set memory format and compile a backbone for a stage, in place; its state dict keeps its names.

    Raises UserError if there is no C++ compiler.
    """
    if config.channels_last:
        tower.to(memory_format=torch.channels_last)  # images follow at the first convolution
    if config.compile:
        _find_compiler()
        # Static shapes, and none from an earlier stage: a resumed run then compiles the same code as an
        # uninterrupted one, and computes the same bits.
        torch.compiler.reset()
        tower.compile(dynamic=False)


def uncompiled() -> AbstractContextManager[None]:
    """Return a context without compilation: a validation would compile its last, short batch too."""
    return torch.compiler.set_stance("force_eager")


def _find_compiler() -> None:
    name = os.environ.get("CXX", "g++")
    if shutil.which(name) is None:
        raise UserError(
            f"compile: torch.compile needs a C++ compiler, and {name} is not on PATH; install it, name"
            " another in $CXX, or set compile to false"
        )


class Parameters(NamedTuple):
    """Numbers of the embedder's parameters, and of those that train; class weights are not counted."""

    trainable: int
    total: int

    @classmethod
    def of(cls, embedder: nn.Module) -> Parameters:
        """Count an unsharded embedder's parameters, after `freeze`."""
        sizes = [(one.numel(), one.requires_grad) for one in embedder.parameters()]
        return cls(sum(size for size, trains in sizes if trains), sum(size for size, _ in sizes))


class TrainingState:
    """The task, its optimiser, and its weight average if the stage keeps one.

    Attributes: `task`, unsharded, or this process's shards of it; `model`, the task as wrapped by
    accelerate, after `prepare`; `parameters`, of the whole embedder.

    Args:
        task: unsharded, after `freeze`.
        saved: a `state_dict` of this stage, to resume from.

    Raises UserError if nothing is left to train.
    """

    model: nn.Module
    optimizer: Optimizer

    def __init__(
        self,
        accelerator: Accelerator,
        task: Task,
        stage: StageConfig,
        saved: dict[str, Any] | None = None,
    ):
        self.accelerator, self.task, self.stage, self._saved = accelerator, task, stage, saved
        self._plain = build_optimizer(task, stage)
        self.parameters = Parameters.of(task.embedder)
        if saved:
            task.load_state_dict(saved["task"])
        self.ema: AveragedModel | None = None
        if stage.ema_decay:
            self.ema = averaged(task, stage.ema_decay)
            if saved:
                self.ema.load_state_dict(saved["ema"])

    def prepare(self) -> TrainingState:
        """Wrap or shard the task and optimiser with accelerate."""
        self.shards = Shards(self.accelerator, self.task)
        if self.ema:
            self.shards.shard(self.ema.module)
        self.model, self.optimizer = self.accelerator.prepare(self.task, self._plain)
        if self._saved:
            load_optimizer(self.optimizer, self._saved["optimizer"])
            if self.accelerator.scaler:
                self.accelerator.scaler.load_state_dict(self._saved["scaler"])
        self._saved = None
        return self

    def state_dict(self) -> dict[str, Any]:
        """Return unsharded state dicts by name, valid in the main process only; all processes call it."""
        scaler = self.accelerator.scaler
        state = {
            "task": self.task.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "ema": self.ema.state_dict() if self.ema else None,
            "scaler": scaler.state_dict() if scaler else None,
        }
        return gathered(self.accelerator, state)

    def scored(self) -> Task:
        """Return the unsharded task that is validated and saved; all processes call it."""
        if self.ema is None:
            return self.shards.whole(self.task)
        return self.shards.whole(cast(Task, self.ema.module))  # a copy of the task

    def release(self) -> tuple[Task, Task]:
        """Return two unsharded tasks: one for the next stage to continue from, and the scored one."""
        scored = self.scored()
        unwrapped = self.accelerator.unwrap_model(self.model, keep_fp32_wrapper=False)
        averaged_on = self.ema is not None and self.stage.ema_goes_on == "averaged"
        task = scored if averaged_on else self.shards.whole(unwrapped)
        self.accelerator.free_memory(self.model, self.optimizer)
        return task, scored


def embedder_weights(saved: dict[str, Any]) -> dict[str, Tensor]:
    """Return the embedder's weights that a checkpoint would score: the EMA if the stage keeps one.

    Args:
        saved: a `TrainingState.state_dict`.
    """
    prefix, state = "embedder.", saved["task"]
    if saved["ema"]:
        prefix, state = "module.embedder.", saved["ema"]
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


@dataclass(frozen=True)
class TrainingData:
    """The data of a run.

    Attributes: `generic`, source of retention's generic images; `rows`, the training rows of each stage;
    `classes`, of all stages.
    """

    manifest: Manifest
    generic: Manifest | None
    rows: list[pd.DataFrame]
    classes: Classes

    def all_rows(self) -> pd.DataFrame:
        """Return the rows of every stage, and the generic ones."""
        return pd.concat([*self.rows, self.generic.table] if self.generic else self.rows)

    def states(self) -> pd.DataFrame | None:
        """Return `Manifest.states` of training, then generic images; None if they were not read."""
        sources = [(self.manifest, pd.concat(self.rows))]
        sources += [(self.generic, self.generic.table)] if self.generic else []
        found = [
            m.states.loc[rows["image_path"].unique()] for m, rows in sources if m.states is not None
        ]
        return pd.concat(found) if found else None


def load_training_data(
    config: RunConfig, manifest: Manifest, generic: Manifest | None
) -> TrainingData:
    """Collect the run's training data. Raises UserError if a stage has no training images."""
    rows = [training_rows(manifest, stage.domains) for stage in config.stages]
    return TrainingData(manifest, generic, rows, classes_of(pd.concat(rows)))


@dataclass(frozen=True)
class StageData:
    """The data of a stage.

    Attributes: `rows`, its training rows; `batches`, of this process, from the current step on; `frozen`,
    cached features that replace the images, if any.
    """

    rows: pd.DataFrame
    sampler: Sampler
    total_steps: int
    batches: TrainLoader | Prefetcher[Batch]
    frozen: FrozenData | None


@dataclass(frozen=True)
class Stage:
    """A stage in progress.

    Attributes: `epochs_before`, the epochs of all earlier stages.
    """

    config: StageConfig
    trained: TrainingState
    preprocess: Preprocess
    data: StageData
    epochs_before: float

    def state_dict(self) -> dict[str, Any]:
        """Return the state that `enter_stage` resumes from; all processes call it."""
        return self.trained.state_dict() | {"sampler": self.data.sampler.state()}

    def description(self, run: RunConfig, state: TrainState) -> str:
        """Return a line that describes the stage."""
        rows, views = self.data.rows, self.config.cached_views
        cached = f" ({views} cached views of each)" if self.data.frozen else ""
        left_out = self.data.sampler.left_out
        rare = f" ({left_out} of them skipped: too few in their class)" if left_out else ""
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
    material: TrainingData,
    state: TrainState,
    task: Task,
    saved: dict[str, Any] | None,
    check: Check,
) -> Stage:
    """Set up the current stage.

    Args:
        task: unsharded, from the previous stage.
        saved: a checkpoint within this stage, to resume from.
        check: as in `embed_blocks`, used while features of a frozen backbone are computed.

    Raises UserError if no batch can be formed, and as `frozen_data`.
    """
    preprocess = set_model(task, config, state.stage, material)
    trained = TrainingState(accelerator, task, config.stages[state.stage], saved)
    with uncompiled():  # features of a frozen backbone are computed here
        draws = saved["sampler"] if saved else {}
        data = open_data(accelerator, config, material, state, draws, task, preprocess, check)
    before = sum(earlier.epochs for earlier in config.stages[: state.stage])
    return Stage(trained.stage, trained.prepare(), preprocess, data, before)


def set_model(task: Task, config: RunConfig, number: int, material: TrainingData) -> Preprocess:
    """Set image size, trained parameters and classes for a stage; return its preprocessing.

    Args:
        number: of the stage in the config, from 0.
    """
    stage, backbone = config.stages[number], task.embedder.backbone
    size_px = stage.size_px or config.model.image.size_px
    backbone.set_image_size(size_px, stage.stride_px or config.model.backbone.stride_px)
    if config.gradient_checkpointing:
        backbone.checkpoint_gradients()
    set_up_tower(backbone.tower, config)
    freeze(task, stage.lr)
    labels = material.rows[number]["label"].unique()
    task.begin_stage(number, pd.Index(material.classes.labels).get_indexer(labels))
    return build_preprocess(config.model, backbone, size_px)


def open_data(
    accelerator: Accelerator,
    config: RunConfig,
    material: TrainingData,
    state: TrainState,
    draws: dict[str, Any],
    task: Task,
    preprocess: Preprocess,
    check: Check,
) -> StageData:
    """Return the batches of the current stage; each is a function of the step.

    Args:
        draws: state of a loss-driven sampler before the step; empty at the start of a stage.

    Raises UserError if no batch can be formed, and as `frozen_data`.
    """
    stage, seed = config.stages[state.stage], (config.seed, state.stage)
    manifest, rows = material.manifest, material.rows[state.stage]
    rank, ranks = accelerator.process_index, accelerator.num_processes
    if stage.batch_size % ranks:
        raise UserError(
            f"batch_size {stage.batch_size}: must be divisible by the {ranks} processes"
        )
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
    taught = _teachers(accelerator, config, stage, task, dataset, RankDraws(*steps), check)
    if stage.cached_views:
        frozen = frozen_data(
            accelerator, config, stage, backbone, preprocess, dataset, manifest, check
        )
        batches = with_teachers(frozen.batches(RankDraws(*steps)), taught)
        ahead = Prefetcher(batches, methodcaller("to", accelerator.device))
        return StageData(rows, sampler, total_steps, ahead, frozen)
    if stage.repeated_views:
        views = RankViews(RankDraws(*steps), stage.repeated_views, dataset.paths)
        loader = train_loader(dataset, views, config.data.workers, accelerator.device, taught)
        return StageData(rows, sampler, total_steps, loader, None)
    drawn = dataset, RankBatches(*steps)
    wanted = task.retention.generic if task.retention else None
    if wanted:
        assert material.generic is not None  # loaded if retention needs it
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
    """Return the teachers' outputs for the batches, precomputed if the stage has fixed views; else None."""
    views = stage.cached_views or stage.repeated_views
    if not views or not isinstance(task, DistillationTask):
        return None
    folder, workers = Path(config.out) / ".cache" / "features", config.data.workers
    found = teacher_views(accelerator, task.teachers, dataset, views, folder, workers, check)
    return partial(found.batches, draws)
