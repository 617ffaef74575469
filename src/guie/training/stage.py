"""A training stage: the model at its image size, its optimiser, batches and checkpoints."""

import os
import shutil
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from guie.base.errors import UserError
from guie.config import RunConfig
from guie.config.stages import StageConfig
from guie.data.preprocess import Preprocess
from guie.models.embedder import build_preprocess
from guie.models.weights import ImageSize, frozen_names, keep_frozen
from guie.training.checkpoint import without_frozen
from guie.training.optim import MovingAverage, build_optimizer, freeze
from guie.training.process_guard import Stopped
from guie.training.run import Run
from guie.training.sharding import (
    Shards,
    continue_optimizer,
    gathered,
    load_optimizer,
    optimizer_state,
)
from guie.training.stage_data import StageData
from guie.training.tasks.base import Task


class Stage:
    """The current stage of a run, set up to train.

    Attributes: `data`; `task`, unsharded, or this process's shards of it; `model`, the task as wrapped by
    accelerate; `ema`, its weight average, if the stage keeps one; `parameters`, how many of the
    embedder's train, and their total, without class weights; `epochs_before`, of all earlier stages.

    Args:
        task: unsharded, from the previous stage.
        saved: a checkpoint within this stage, to resume from.
        moments: what the stage before returned, as `Stage.moments`.

    Raises UserError if nothing is left to train, and as `StageData`.
    """

    def __init__(
        self, run: Run, task: Task, saved: dict[str, Any] | None, moments: dict[str, dict[str, Any]]
    ):
        accelerator, config, number = run.accelerator, run.config, run.state.stage
        self.run, self.config, self.task = run, config.stages[number], task
        self.epochs_before = sum(earlier.epochs for earlier in config.stages[:number])

        class_ids = pd.Index(run.classes.labels).get_indexer(run.rows[number]["label"].unique())
        self.preprocess = set_model(task, config, number, class_ids)
        optimizer = build_optimizer(task, self.config)
        sizes = [(one.numel(), one.requires_grad) for one in task.embedder.parameters()]
        self.parameters = sum(size for size, trains in sizes if trains), sum(n for n, _ in sizes)
        if saved:
            task.load_state_dict(saved["task"])
        self.ema: MovingAverage | None = None
        if self.config.ema_decay:
            self.ema = MovingAverage(task, self.config.ema_decay)
            if saved:
                self.ema.load_state_dict(saved["ema"])

        with torch.compiler.set_stance("force_eager"):  # features of frozen backbones
            self.data = StageData(run, task, self.preprocess, saved["sampler"] if saved else {})

        self.shards = Shards(accelerator, task)
        if self.ema:
            self.shards.shard(self.ema.module)
        self.model, self.optimizer = self.shards.prepare(task, optimizer)
        if saved:
            load_optimizer(self.optimizer, saved["optimizer"])
            if accelerator.scaler:
                accelerator.scaler.load_state_dict(saved["scaler"])
        elif moments:
            continue_optimizer(self.optimizer, self.task, moments)

    def description(self) -> str:
        """Return a line that describes the stage."""
        data, rows, number = self.data, self.data.rows, self.run.state.stage
        cached = f" ({len(data.views)} cached views of each)" if data.views else ""
        left_out = data.sampler.left_out
        rare = f" ({left_out} of them skipped: too few in their class)" if left_out else ""
        trainable, total = self.parameters
        warmup = self.config.warmup
        steps = warmup.steps(data.total_steps / self.config.epochs) if warmup else 0
        cut = f"; the warm-up of {steps:.0f} steps never reaches the peak rates"
        return (
            f"stage {number + 1}/{len(self.run.config.stages)} {self.config.name}:"
            f" {data.total_steps} steps of {self.config.batch_size} images{cached} at"
            f" {self.preprocess.size_px} px, {len(rows)} images{rare},"
            f" {rows['label'].nunique()} classes, {rows['domain'].nunique()} domains;"
            f" {trainable:,} of {total:,} parameters train{cut if steps >= data.total_steps else ''}"
        )

    @property
    def is_exhausted(self) -> bool:
        """Whether patience ends the stage: its last validations brought no better score."""
        patience = self.config.patience
        return patience is not None and self.run.state.stale >= patience

    def validates_after(self, step: int) -> bool:
        """Return whether a validation within the stage is due after this step, counted from 1."""
        every = self.config.validate_every
        return every is not None and every.ends_at(step, self.data.sampler.steps_per_epoch)

    def log(self, logs: Mapping[str, Tensor], rates: dict[str, float]) -> dict[str, float]:
        """Log a step as means over all processes; return the task's values."""
        accelerator, state, sampler = self.run.accelerator, self.run.state, self.data.sampler
        values = {k: accelerator.reduce(v, "mean").item() for k, v in logs.items()}
        shares = sampler.shares(state.step - 1) if sampler.learner else {}
        more = {f"share_{domain}": share for domain, share in shares.items()}
        more |= {f"lr_{part}": rate for part, rate in rates.items()}
        self.run.log.write(state.global_step, self.config.name, values | more)
        return values

    def score(self) -> Stopped | None:
        """Validate, log, and write the model if it is the best so far, or if there is no val split.

        Returns what interrupted the validation, which is then still to run; else None.
        """
        run, state, whole = self.run, self.run.state, self.scored()
        try:
            # A compiled backbone would be compiled again for the last, short batch
            with torch.compiler.set_stance("force_eager"):
                scores = self.data.validate(whole.embedder)
        except Stopped as stopped:
            return stopped
        state.unscored = False
        if scores:
            run.log.write(state.global_step, self.config.name, scores)
            run.accelerator.print(
                f"  step {state.global_step}: val R@1 {scores['val_r_at_1']:.3f},"
                f" mMP@5 {scores['val_mmp_at_5']:.3f}"
            )
        if scores is None or state.best_score is None or scores["val_r_at_1"] > state.best_score:
            state.best_score = scores["val_r_at_1"] if scores else None
            state.best_step, state.stale = state.global_step, 0
            frozen_file = self.frozen_file
            if run.accelerator.is_main_process:
                whole.save(run.folder, "model", frozen_file)
        else:
            state.stale += 1
        return None

    def note_early_end(self) -> None:
        """Record and print that patience ended the stage, if it did; also when a run resumes there."""
        state, settings = self.run.state, self.config
        if state.step < self.data.total_steps:
            state.stopped_early[settings.name] = state.step
            self.run.accelerator.print(
                f"stage {settings.name}: patience {settings.patience} ended it at step {state.step} of"
                f" {self.data.total_steps}; best val R@1 {state.best_score:.3f} at step {state.best_step} of"
                " the run"
            )

    def save(self) -> None:
        """Start to write a checkpoint; all processes call it. Raises as `Checkpoints.save`."""
        run, scaler = self.run, self.run.accelerator.scaler
        more = {"frozen": self.frozen_file, "identity": run.identity}
        parts = {
            "task": self.task.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "ema": self.ema.state_dict() if self.ema else None,
            "scaler": scaler.state_dict() if scaler else None,
        }
        parts = without_frozen(parts, frozen_names(self.task.embedder))
        parts = gathered(run.accelerator, parts) | {"sampler": self.data.sampler.state()} | more
        if run.accelerator.is_main_process:
            run.checkpoints.save(parts, run.state)

    @cached_property
    def frozen_file(self) -> str | None:
        """The file of the frozen weights, None without any, or in other processes; all ask for it together.

        It is written once, because frozen weights do not change within a stage.
        """
        run, embedder = self.run, self.task.embedder
        names, state = frozen_names(embedder), embedder.state_dict()
        frozen = gathered(run.accelerator, {name: state[name] for name in names})
        if not run.accelerator.is_main_process:
            return None
        size = ImageSize(embedder.backbone.size_px, embedder.backbone.stride_px)
        return keep_frozen(run.folder, frozen, run.config.base, size)

    def scored(self) -> Task:
        """Return the unsharded task that is validated and saved; all processes call it."""
        return self.shards.whole(self.ema.module if self.ema else self.task)

    def moments(self) -> dict[str, dict[str, Any]]:
        """Return the optimiser's state by parameter if the next stage continues it; all processes call it."""
        following = self.run.config.stages[self.run.state.stage + 1 :]
        if not following or following[0].optimizer_state == "reset":
            return {}
        return optimizer_state(self.optimizer, self.task)

    def release(self) -> tuple[Task, Task]:
        """Return two unsharded tasks: one for the next stage to continue from, and the scored one."""
        accelerator, scored = self.run.accelerator, self.scored()
        unwrapped = accelerator.unwrap_model(self.model, keep_fp32_wrapper=False)
        task = self.shards.whole(unwrapped)
        if self.ema and self.config.ema_carry == "averaged":
            # Not counters, queues and other states of losses: their average means nothing
            means: dict[str, Tensor] = dict(scored.named_parameters())
            buffers = scored.embedder.named_buffers()
            means |= {f"embedder.{k}": v for k, v in buffers if v.is_floating_point()}
            task.load_state_dict(means, strict=False)
        accelerator.free_memory(self.model, self.optimizer)
        return task, scored


def set_model(task: Task, config: RunConfig, number: int, class_ids: Any) -> Preprocess:
    """Set image size, trained parameters and classes for a stage, by its number; return its preprocessing."""
    stage, backbone = config.stages[number], task.embedder.backbone
    size_px, stride_px = config.image_size(stage)
    backbone.set_image_size(size_px, stride_px)
    if config.gradient_checkpointing:
        backbone.checkpoint_gradients()
    backbone.set_batch_norm(stage.batch_norm)
    set_up_tower(backbone.tower, config)
    freeze(task, stage.lr)
    task.begin_stage(number, class_ids)
    return build_preprocess(config.model, backbone, size_px)


def train_mode(task: Task, stage: StageConfig) -> None:
    """Set train mode; a wholly frozen backbone, adapters or prompts stay in eval mode, without randomness.

    BatchNorm layers that the stage's `batch_norm` trains do so in a frozen backbone too.
    """
    task.train()
    backbone = task.embedder.backbone
    if not stage.lr.trains_backbone:
        backbone.tower.eval()
        for norm in backbone.trained_batch_norms().values():
            norm.train()
    for part, added in (("adapters", backbone.adapters), ("prompts", backbone.prompts)):
        if added and not stage.lr.of(part):
            added.eval()


def set_up_tower(tower: nn.Module, config: RunConfig) -> None:
    """Set memory format and compile a backbone for a stage, in place; its state dict keeps its names.

    Raises UserError if there is no C++ compiler.
    """
    if config.channels_last:
        tower.to(memory_format=torch.channels_last)  # images follow at the first convolution
    if config.compile:
        name = os.environ.get("CXX", "g++")
        if shutil.which(name) is None:
            raise UserError(
                f"compile: torch.compile needs a C++ compiler, and {name} is not on PATH; install it,"
                " name another in $CXX, or set compile to false"
            )
        # Static shapes, and none from an earlier stage: a resumed run then compiles the same code as an
        # uninterrupted one, and computes the same bits.
        torch.compiler.reset()
        tower.compile(dynamic=False)
