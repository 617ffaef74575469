"""What a training does between two steps, now and then: score, keep the best, write a checkpoint."""

from __future__ import annotations

from accelerate import Accelerator

from guie.config import RunConfig
from guie.data.manifest import Manifest
from guie.evaluation.extract import Check
from guie.evaluation.validation import validate
from guie.model.frozen_weights import frozen_names
from guie.training.compiling import uncompiled
from guie.training.crew import Stopped
from guie.training.run.checkpoint import Checkpoints, Identity, TrainState
from guie.training.run.record import RunLog
from guie.training.stage import Stage


def score_and_keep(
    accelerator: Accelerator,
    config: RunConfig,
    manifest: Manifest,
    now: Stage,
    state: TrainState,
    log: RunLog,
    check: Check,
) -> Stopped | None:
    """Validate, log, and write the model where it is the best so far; it is where nothing scores.

    Returns what has stopped the validation; it then stays to be done.
    """
    whole, workers = now.trained.scored(), config.data.workers
    try:
        with uncompiled():
            scores = validate(
                accelerator,
                whole.embedder,
                manifest,
                now.preprocess,
                workers,
                now.data.frozen,
                check,
            )
    except Stopped as stopped:
        return stopped
    state.unscored = False
    if scores:
        log.write(state.global_step, now.config.name, scores)
        accelerator.print(
            f"  step {state.global_step}: val R@1 {scores['val_r_at_1']:.3f},"
            f" mMP@5 {scores['val_mmp_at_5']:.3f}"
        )
    if scores is None or state.best_score is None or scores["val_r_at_1"] > state.best_score:
        state.best_score = scores["val_r_at_1"] if scores else None
        state.best_step, state.stale = state.global_step, 0
        if accelerator.is_main_process:
            whole.save(log.folder, "model")
    else:
        state.stale += 1
    return None


def save_checkpoint(
    accelerator: Accelerator,
    checkpoints: Checkpoints,
    now: Stage,
    state: TrainState,
    identity: Identity,
) -> None:
    """Write a checkpoint; all processes call it."""
    parts = now.state_dict()
    if accelerator.is_main_process:
        checkpoints.save(parts, frozen_names(now.trained.task.embedder), state, identity)
