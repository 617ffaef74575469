"""A run in progress: initialise, log, validate and save it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from guie.base.devices import from_main
from guie.base.errors import UserError
from guie.config.training import RunConfig
from guie.data.dataset import rows_hash
from guie.evaluation.validation import validate
from guie.models import Embedder, LoadedModel, build_preprocess, open_model
from guie.models.loading import BEST, at_size
from guie.models.preprocess import Preprocess
from guie.models.pretrained import sha256_of, weights_record
from guie.models.weights import Base, frozen_names, read_metadata, remove_unused
from guie.training.checkpoint import Checkpoints, Identity, TrainState, check_identity
from guie.training.distributed import ProcessGroupGuard, Stopped
from guie.training.run_folder import (
    RunLog,
    add_to_record,
    check_images,
    check_weights,
    code_version,
    device_name,
    finish,
    keep_classes,
    keep_images,
    peak_gpu_memory_mb,
    peak_memory_mb,
    prefixed,
)
from guie.training.stage import Parameters, Stage, TrainingData, uncompiled
from guie.training.tasks import Task


@dataclass(frozen=True)
class Run:
    """A run: its config and data, its state, and its outputs.

    Attributes: `began`, in seconds of the monotonic clock.
    """

    accelerator: Accelerator
    config: RunConfig
    material: TrainingData
    folder: Path
    guard: ProcessGroupGuard
    checkpoints: Checkpoints
    identity: Identity
    state: TrainState
    log: RunLog
    began: float

    def write_log(
        self, now: Stage, logs: Mapping[str, Tensor], rates: dict[str, float]
    ) -> dict[str, float]:
        """Log a step as means over all processes; return the task's values."""
        values = {k: self.accelerator.reduce(v, "mean").item() for k, v in logs.items()}
        sampler = now.data.sampler
        shares = sampler.shares(self.state.step - 1) if sampler.learns else {}
        more = prefixed("share_", shares) | prefixed("lr_", rates)
        self.log.write(self.state.global_step, now.config.name, values | more)
        return values

    def score(self, now: Stage) -> Stopped | None:
        """Validate, log, and write the model if it is the best so far, or if there is no val split.

        Returns what interrupted the validation, which is then still to run; else None.
        """
        whole, state = now.trained.scored(), self.state
        try:
            with uncompiled():
                scores = validate(
                    self.accelerator,
                    whole.embedder,
                    self.material.manifest,
                    now.preprocess,
                    self.config.data.workers,
                    now.data.frozen,
                    self.guard.check,
                )
        except Stopped as stopped:
            return stopped
        state.unscored = False
        if scores:
            self.log.write(state.global_step, now.config.name, scores)
            self.accelerator.print(
                f"  step {state.global_step}: val R@1 {scores['val_r_at_1']:.3f},"
                f" mMP@5 {scores['val_mmp_at_5']:.3f}"
            )
        if scores is None or state.best_score is None or scores["val_r_at_1"] > state.best_score:
            state.best_score = scores["val_r_at_1"] if scores else None
            state.best_step, state.stale = state.global_step, 0
            if self.accelerator.is_main_process:
                whole.save(self.folder, "model")
        else:
            state.stale += 1
        return None

    def save(self, now: Stage) -> None:
        """Write a checkpoint; all processes call it."""
        parts = now.state_dict()
        if self.accelerator.is_main_process:
            embedder, pretrained = now.trained.task.embedder, self.config.base
            backbone = embedder.backbone
            base = None
            if pretrained:
                base = Base(pretrained, backbone.size_px, backbone.stride_px)
            frozen = frozen_names(embedder)
            self.checkpoints.save(parts, frozen, self.state, self.identity, base)

    def finish(self, scored: Task, parameters: Parameters) -> dict[str, Any]:
        """Write the last model and the summary; return the summary. Only the main process calls it.

        Args:
            parameters: of the last stage.
        """
        scored.save(self.folder, "last")
        models = [read_metadata(self.folder / f"{stem}.safetensors") for stem in ("model", "last")]
        used = self.checkpoints.frozen() | {metadata.frozen for metadata in models if metadata}
        remove_unused(self.folder, used)
        summary = {
            "best": self.state.best(),
            "steps": self.state.global_step,
            "seconds": round(time.monotonic() - self.began, 1),
            "device": device_name(self.accelerator.device),
            "peak_memory_mb": peak_memory_mb(),
            "peak_gpu_memory_mb": peak_gpu_memory_mb(self.accelerator.device),
            "classes": len(self.material.classes),
            "parameters": parameters.total,
            "trainable_parameters": parameters.trainable,
        }
        finish(self.folder, summary)
        return summary


def _begun_with(config: RunConfig) -> dict[str, Any]:
    """Return the record of a run's initial weights."""
    known: dict[str, Any] = {"weights": weights_record(config.model.backbone)}
    if config.start_from and (file := Path(config.start_from) / BEST).is_file():
        known["start"] = {"model": config.start_from, "sha256": sha256_of(file)}
    return known


def start_run(
    accelerator: Accelerator,
    config: RunConfig,
    material: TrainingData,
    folder: Path,
    guard: ProcessGroupGuard,
) -> tuple[Run, dict[str, Any] | None]:
    """Return the run, resumed from its newest checkpoint, and the checkpoint; None for a new run.

    Raises UserError if the checkpoint has other data, or if retention uses other pretrained weights.
    """
    began, main = time.monotonic(), accelerator.is_main_process
    identity = Identity(rows_hash(material.all_rows()), code_version())
    from_main(accelerator, lambda: keep_classes(folder, material.classes.labels))
    checkpoints = Checkpoints(folder, config.keep_checkpoints)
    saved = checkpoints.load(warn=main)
    if saved:
        check_identity(saved["identity"], identity, folder, warn=main)
        if config.retention:
            check_weights(folder, weights_record(config.model.backbone))
        from_main(accelerator, lambda: check_images(folder, material.states()))
    elif main:
        add_to_record(folder, **_begun_with(config))
        keep_images(folder, material.states())
    state = saved["state"] if saved else TrainState()
    log = RunLog(folder, accelerator, state.global_step, state.unscored)
    where = (accelerator, config, material, folder, guard)
    return Run(*where, checkpoints, identity, state, log, began), saved


TOWER = "backbone.tower."
PARTS = (TOWER, "backbone.adapters.", "backbone.prompts.", "head.")


def start_from(embedder: Embedder, config: RunConfig) -> str:
    """Load the weights of `config.start_from` into a new embedder, in place; return a message.

    Position embeddings are resampled for another image size. Heads, adapters and prompts whose shapes
    differ are trained from scratch.

    Raises UserError if there is no such model, it is an ensemble, or its backbone differs.
    """
    assert config.start_from is not None
    backbone, size_px = config.model.backbone, config.model.image.size_px
    try:
        # The library draws random weights as it builds; keep the run's own random state
        with torch.random.fork_rng(devices=[]):
            given = at_size(open_model(config.start_from), size_px, backbone.stride_px)
    except UserError as error:
        raise UserError(f"start_from: {error}") from None
    state, own = given.embedder.state_dict(), embedder.state_dict()
    taken = [part for part in PARTS if _shapes(own, part) == _shapes(state, part) != {}]
    if TOWER not in taken:
        raise UserError(
            f"start_from: {config.start_from} has another backbone than model.backbone, {backbone.name};"
            " name a run with the same backbone, or remove start_from"
        )
    own |= {name: state[name] for part in taken for name in _shapes(own, part)}
    embedder.load_state_dict(own)
    scratch = [part for part in PARTS if part not in taken and _shapes(own, part)]
    _refuse_other_pixels(given, build_preprocess(config.model, embedder.backbone, size_px), config)
    message = [f"{part.strip('.').rpartition('.')[2]} from scratch" for part in scratch]
    return ", ".join([f"starts from {config.start_from}", *message])


def _refuse_other_pixels(given: LoadedModel, own: Preprocess, config: RunConfig) -> None:
    """Raise UserError if mean or std differ: the backbone was trained with its own."""
    assert isinstance(given.preprocess, Preprocess)  # of one model
    for key in ("mean", "std"):
        then, now = _levels(given.preprocess, key), _levels(own, key)
        if then != now:
            raise UserError(
                f"model.image.{key}: {now}, but start_from, {config.start_from}, has {then}; set it to that"
            )


def _levels(preprocess: Preprocess, key: str) -> list[float]:
    """Return the values of the three channels on a 0..1 scale."""
    return [round(level / 255, 4) for level in getattr(preprocess, key).flatten().tolist()]


def _shapes(state: Mapping[str, Tensor], part: str) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in state.items() if name.startswith(part)}
