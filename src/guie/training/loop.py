"""Train: from a config to a trained run. One loop serves every task."""

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from guie.base.devices import deterministic_algorithms, from_main, make_accelerator
from guie.base.errors import UserError
from guie.base.slow_bf16 import float32_products
from guie.config import RunConfig
from guie.data.dataset import Batch
from guie.data.loader import load_generic
from guie.data.manifest import load_manifest
from guie.evaluation.validation import refuse_unscorable
from guie.models.backbones.base import share_statistics
from guie.rows.checks import readable
from guie.training.optim import refuse_unknown_blocks, set_learning_rates
from guie.training.process_guard import Cause, Interrupts, ProcessGroupGuard, Stopped
from guie.training.run import Run
from guie.training.run_folder import best_score_text, locked, open_run, read_summary
from guie.training.sharding import refuse_unshardable
from guie.training.stage import Stage, train_mode
from guie.training.starting import load_start, refuse_missing_inputs
from guie.training.step import LossWatch, gradients_within_memory, out_of_memory, sam_step
from guie.training.tasks import build_task


def run_config(
    config: RunConfig,
    *,
    resume: bool = False,
    overwrite: bool = False,
    drop_bad: bool = False,
    max_hours: float | None = None,
) -> Path:
    """Train as configured; return the run folder.

    Args:
        resume, overwrite: what to do with an unfinished or a finished run in the folder.
        drop_bad: skip images that cannot be decoded.
        max_hours: save a checkpoint and return after this time.

    Raises UserError, as `train`, and for images, a folder or a number of processes that do not fit.
    """
    interrupts = Interrupts(max_hours)  # the time counts from here
    with ExitStack() as contexts:
        if config.deterministic:
            contexts.enter_context(deterministic_algorithms(config.precision))
        accelerator = make_accelerator(
            mixed_precision=config.precision, log_with=list(config.trackers), project_dir=config.out
        )
        contexts.enter_context(float32_products(accelerator))
        if config.precision == "fp16" and accelerator.device.type == "cpu":
            accelerator.print("precision: fp16 needs a GPU; this run computes in float32")
        from_main(accelerator, partial(refuse_unshardable, accelerator, config))
        guard = contexts.enter_context(ProcessGroupGuard(accelerator, interrupts))

        def lock_and_open() -> tuple[Path, bool]:
            contexts.enter_context(locked(Path(config.out) / config.name))
            return open_run(config, resume=resume, overwrite=overwrite)

        folder, finished = from_main(accelerator, lock_and_open)
        if finished:
            accelerator.print(f"{folder}: already trained, {best_score_text(read_summary(folder))}")
            return folder
        manifest = load_manifest(config.data.manifest, config.data.root)
        manifest = manifest.without(config.data.leave_out)
        refuse_missing_inputs(config, resume)
        check_images = partial(readable, accelerator, drop_bad=drop_bad)
        manifest = check_images(manifest, ("train", "val"), dropped=folder / "dropped.csv")
        from_main(accelerator, partial(refuse_unscorable, manifest))
        generic = None
        if wanted := config.retention and config.retention.generic:
            generic = load_generic(wanted)
            generic = check_images(generic, (wanted.split,), dropped=folder / "dropped_generic.csv")
        contexts.enter_context(interrupts)
        accelerator.init_trackers(config.name)
        try:
            train(Run(accelerator, config, folder, guard, manifest, generic))
        except Stopped as stopped:
            if stopped.cause != Cause.TIME:
                raise
        # All processes exit together: one that outlives its process group aborts at exit.
        accelerator.wait_for_everyone()
        accelerator.end_training()
    return folder


def train(run: Run) -> None:
    """Train a run, from its newest checkpoint if it has one.

    Raises UserError if data or config are at fault. Raises Stopped if the process group stops early: on
    a signal, on an unreadable image, or when the time is up. A checkpoint is saved first.
    """
    config, accelerator = run.config, run.accelerator
    saved = run.resume()
    torch.manual_seed(config.seed)
    try:
        task = build_task(config, run.classes, pretrained=saved is None).to(accelerator.device)
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        raise UserError(
            f"out of memory before the first step, with {len(run.classes):,} classes; use a smaller"
            " model.backbone, model.head or task.loss.centers, or fewer classes"
        ) from None
    if config.start_from and saved is None:
        accelerator.print(load_start(task.embedder, config))
    backbone = task.embedder.backbone
    # All stages before the first: a fault of a later one is no reason to lose an earlier one
    for stage_config in config.stages:
        refuse_unknown_blocks(task, stage_config.lr)
        backbone.trained_batch_norms(stage_config.batch_norm)  # raises for unknown names
        if backbone.new_batch_norms() and (fault := config.recompute_fault(stage_config)):
            raise UserError(f"stage {stage_config.name}: new modules of the backbone: {fault}")
        backbone.refuse_misfit(*config.image_size(stage_config))
        if stage_config.batch_size % accelerator.num_processes:
            raise UserError(
                f"batch_size {stage_config.batch_size}: must be divisible by the"
                f" {accelerator.num_processes} processes"
            )
    moments: dict[str, dict[str, Any]] = {}
    with run.checkpoints:
        while run.state.stage < len(config.stages):
            stage = Stage(run, task, saved, moments)
            saved, moments = None, {}
            train_stage(run, stage)
            stage.note_early_end()
            parameters, moments = stage.parameters, stage.moments()
            task, scored = stage.release()
            del stage  # the next stage has its own optimiser
            run.state.next_stage()
    if accelerator.is_main_process:
        scored.save(run.folder, "last")
        summary = run.finish(parameters)
        print(f"{run.folder}: {best_score_text(summary)}, {summary['seconds']:.0f} s")


def train_stage(run: Run, stage: Stage) -> None:
    """Train one stage, from the run's current step. Raises as `train`."""
    accelerator, config, state = run.accelerator, run.config, run.state
    total_steps, watch = stage.data.total_steps, LossWatch()
    accelerator.print(stage.description())
    if state.unscored:  # the run was stopped while it validated
        if stopped := stage.score():
            raise stopped
        stage.save()
    if stage.is_exhausted:
        return
    batches = iter(stage.data.batches)
    run.guard.check(batches.fault)
    quiet = not accelerator.is_local_main_process
    with tqdm(desc=stage.config.name, total=total_steps, initial=state.step, disable=quiet) as bar:
        for batch in batches:
            logs, rates = train_step(run, stage, batch)
            watch.add(logs["loss"], batch.row_B, rates)
            bar.update()

            last = state.step == total_steps
            logs_due = last or state.global_step % config.log_every == 0
            save_due = state.global_step % config.checkpoint_every == 0
            state.unscored = last or stage.validates_after(state.step)
            stopped = run.guard.stop(batches.fault or run.checkpoints.fault)
            if logs_due or state.unscored or save_due or stopped:
                watch.check(accelerator, stage.data.rows["image_path"], stage.config, state.step)
            if logs_due:
                values = stage.log(logs, rates)
                bar.set_postfix({name: f"{value:.3f}" for name, value in values.items()})
            if state.unscored and not stopped:
                stopped = stage.score()
            done = last or stage.is_exhausted
            if done or save_due or stopped:
                stage.save()
            if stopped:
                bar.close()
                run.checkpoints.wait()
                where = f"{run.folder}: saved at step {state.global_step}"
                accelerator.print(f"{where}; continue with --resume")
                raise stopped
            if done:
                return


def train_step(run: Run, stage: Stage, batch: Batch) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Take one optimiser step; return the task's logs, and the learning rate of each part.

    Raises as `gradients_within_memory`; the state before this step is then saved, if that is possible.
    """
    accelerator, config, state, settings = run.accelerator, run.config, run.state, stage.config
    task, model, optimizer, sampler = stage.task, stage.model, stage.optimizer, stage.data.sampler
    train_mode(task, settings)
    task.set_epoch(stage.epochs_before + state.step / sampler.steps_per_epoch)
    rates = set_learning_rates(optimizer, settings, state.step, stage.data.total_steps)
    draw = (config.seed, state.stage, state.step, accelerator.process_index)
    once = partial(gradients_within_memory, accelerator, model, batch, config, state, draw)
    try:
        logs = sam_step(model, once, settings.sam_rho) if settings.sam_rho else once()
    except UserError:
        if state.step and accelerator.num_processes == 1:
            stage.save()  # several processes are in the middle of this step
        raise
    if settings.clip_grad_norm:
        accelerator.clip_grad_norm_(model.parameters(), settings.clip_grad_norm)
    if settings.clip_grad_value:
        if not settings.clip_grad_norm:  # which unscales the gradients of fp16
            accelerator.unscale_gradients()
        nn.utils.clip_grad_value_(model.parameters(), settings.clip_grad_value)
    optimizer.step()
    optimizer.zero_grad()
    share_statistics(task.embedder.backbone.tower)
    if stage.ema:
        stage.ema.update_parameters(task)
    if learner := sampler.learner:
        learner.note(state.step, accelerator.reduce(task.sampler_loss(logs), "mean"))
    state.step += 1
    state.global_step += 1
    return logs, rates
