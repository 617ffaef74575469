"""Train an image embedding. One loop serves every task.

accelerate launch src/train.py --config configs/demo.yaml
accelerate launch src/train.py --config configs/demo.yaml --set train.epochs=2 --set name=short
accelerate launch src/train.py --config configs/demo.yaml --resume
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import torch
from accelerate import Accelerator
from tqdm import tqdm

from guie.base import errors
from guie.base.devices import from_main, make_accelerator
from guie.base.errors import UserError
from guie.config import RunConfig, load_config
from guie.config.durations import Duration
from guie.config.stages import StageConfig
from guie.data.image_checks.decoding import readable
from guie.data.loader import Prefetcher, load_generic
from guie.data.manifest import load_manifest
from guie.evaluation.validation import refuse_unscorable
from guie.training.checkpoint import TrainState
from guie.training.distributed import (
    Cause,
    Interrupts,
    ProcessGroupGuard,
    Stopped,
    refuse_unshardable,
)
from guie.training.optim import refuse_unknown_blocks, set_learning_rates
from guie.training.progress import Run, start_from, start_run
from guie.training.run_folder import best_score_text, locked, open_run, read_summary
from guie.training.stage import Stage, TrainingData, enter_stage, load_training_data
from guie.training.step import (
    LossWatch,
    gradients_within_memory,
    out_of_memory,
    refuse_lone_images,
    sam_step,
    train_mode,
)
from guie.training.tasks import build_task
from guie.training.tasks.online import refuse_unshared


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", required=True, help="YAML file, see configs/")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override a config key"
    )
    parser.add_argument("--resume", action="store_true", help="resume from the last checkpoint")
    parser.add_argument("--overwrite", action="store_true", help="delete that run's files first")
    parser.add_argument(
        "--drop-bad", action="store_true", help="skip images that cannot be decoded"
    )
    parser.add_argument(
        "--max-hours", type=_hours, metavar="H", help="save and exit after H hours, then --resume"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> Path:
    """Train as configured; return the run folder."""
    args = parse_args(argv)
    interrupts = Interrupts(args.max_hours)  # the time counts from here
    config = load_config(args.config, RunConfig, args.set)
    if config.model.head and config.model.head.reduced_dim:
        raise UserError(
            "model.head.reduced_dim: fitted only after training; remove it, then run compose.py"
        )
    accelerator = make_accelerator(
        mixed_precision=config.precision, log_with="tensorboard", project_dir=config.out
    )
    from_main(accelerator, lambda: refuse_unshardable(accelerator, config))
    from_main(accelerator, lambda: refuse_unshared(accelerator, config))
    from_main(accelerator, lambda: refuse_lone_images(accelerator, config))
    with ExitStack() as held:
        guard = held.enter_context(ProcessGroupGuard(accelerator, interrupts))
        folder, finished = from_main(accelerator, lambda: _open(config, args, held))
        if finished:
            accelerator.print(f"{folder}: already trained, {best_score_text(read_summary(folder))}")
            return folder
        manifest = load_manifest(config.data.manifest, config.data.root)
        manifest = manifest.without(config.data.leave_out)
        look = partial(readable, accelerator, fallback=Path(config.out), drop_bad=args.drop_bad)
        manifest = look(manifest, ("train", "val"), dropped=folder / "dropped.csv")
        from_main(accelerator, partial(refuse_unscorable, manifest))
        generic = None
        if wanted := config.retention and config.retention.generic:
            generic = load_generic(wanted)
            generic = look(generic, (wanted.split,), dropped=folder / "dropped_generic.csv")
        held.enter_context(interrupts)
        accelerator.init_trackers(config.name)
        try:
            train(config, load_training_data(config, manifest, generic), folder, accelerator, guard)
        except Stopped as stopped:
            if stopped.cause != Cause.TIME:
                raise
        # All processes exit together: one that outlives its process group aborts at exit.
        accelerator.wait_for_everyone()
        accelerator.end_training()
    return folder


def train(
    config: RunConfig,
    material: TrainingData,
    folder: Path,
    accelerator: Accelerator,
    guard: ProcessGroupGuard,
) -> None:
    """Train into an open run folder, from its newest checkpoint if it has one.

    Raises UserError if data or config are at fault. Raises Stopped if the process group stops early: on
    a signal, on an unreadable image, or when the time is up. A checkpoint is saved first.
    """
    run, saved = start_run(accelerator, config, material, folder, guard)
    torch.manual_seed(config.seed)
    try:
        task = build_task(config, material.classes, weights=saved is None).to(accelerator.device)
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        raise UserError(
            f"out of memory before the first step, with {len(material.classes):,} classes; use a smaller"
            " model.backbone, model.head or task.loss.centers, or fewer classes"
        ) from None
    if config.start_from and saved is None:
        accelerator.print(start_from(task.embedder, config))
    for stage in config.stages:
        refuse_unknown_blocks(task, stage.lr)
    while run.state.stage < len(config.stages):
        now = enter_stage(accelerator, config, material, run.state, task, saved, guard.check)
        saved = None
        train_stage(run, now)
        parameters = now.trained.parameters
        task, scored = now.trained.release()
        del now  # the next stage has its own optimiser
        run.state.next_stage()
    if accelerator.is_main_process:
        summary = run.finish(scored, parameters)
        print(f"{folder}: {best_score_text(summary)}, {summary['seconds']:.0f} s")


def train_stage(run: Run, now: Stage) -> None:
    """Train one stage, from the run's current step. Raises as `train`."""
    accelerator, config, state = run.accelerator, run.config, run.state
    stage, trained = now.config, now.trained
    sampler, total_steps = now.data.sampler, now.data.total_steps
    model, optimizer, watch = trained.model, trained.optimizer, LossWatch()
    accelerator.print(now.description(config, state))
    if state.unscored:  # the run was stopped while it validated
        if stopped := run.score(now):
            raise stopped
        run.save(now)
    batches = Prefetcher(()) if _exhausted(stage, state) else iter(now.data.batches)
    run.guard.check(batches.fault)
    quiet = not accelerator.is_local_main_process
    with tqdm(desc=stage.name, total=total_steps, initial=state.step, disable=quiet) as bar:
        for batch in batches:
            # -------------------------------------------------------- a step
            train_mode(trained.task, stage)
            trained.task.set_epoch(now.epochs_before + state.step / sampler.steps_per_epoch)
            rates = set_learning_rates(optimizer, stage, state.step, total_steps)
            draw = (config.seed, state.stage, state.step, accelerator.process_index)
            step = partial(gradients_within_memory, accelerator, model, batch, config, state, draw)
            try:
                logs = sam_step(model, step, stage.sam_rho) if stage.sam_rho else step()
            except UserError:
                if state.step and accelerator.num_processes == 1:
                    run.save(now)  # several processes are in the middle of this step
                raise
            if stage.clip_grad_norm:
                accelerator.clip_grad_norm_(model.parameters(), stage.clip_grad_norm)
            if stage.clip_grad_value:
                accelerator.clip_grad_value_(model.parameters(), stage.clip_grad_value)
            optimizer.step()
            optimizer.zero_grad()
            if trained.ema:
                trained.ema.update_parameters(trained.task)
            if sampler.learns:
                sampler_loss = trained.task.sampler_loss(logs)
                sampler.note(state.step, accelerator.reduce(sampler_loss, "mean"))
            state.step += 1
            state.global_step += 1
            bar.update()
            watch.add(logs["loss"], batch.row_B, rates)

            # -------------------------------------------------------- log, validate, save
            last = state.step == total_steps
            logs_due = last or state.global_step % config.log_every == 0
            save_due = state.global_step % config.checkpoint_every == 0
            state.unscored = last or _due(stage.validate_every, state.step, sampler.steps_per_epoch)
            stopped = run.guard.stop(batches.fault)
            if logs_due or state.unscored or save_due or stopped:
                watch.check(accelerator, now.data.rows["image_path"], stage, state.step)
            if logs_due:
                values = run.write_log(now, logs, rates)
                bar.set_postfix({name: f"{value:.3f}" for name, value in values.items()})
            if state.unscored and not stopped:
                stopped = run.score(now)
            done = last or _exhausted(stage, state)
            if done or save_due or stopped:
                run.save(now)
            if stopped:
                bar.close()
                where = f"{run.folder}: saved at step {state.global_step}"
                accelerator.print(f"{where}; continue with --resume")
                raise stopped
            if done:
                break


def _open(config: RunConfig, args: argparse.Namespace, held: ExitStack) -> tuple[Path, bool]:
    """Lock and open the run's folder; see `open_run`."""
    held.enter_context(locked(config))
    return open_run(config, resume=args.resume, overwrite=args.overwrite)


def _hours(text: str) -> float:
    try:
        hours = float(text)
    except ValueError:
        hours = math.nan
    if not 0 <= hours < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: must be a number of hours, 0 or more")
    return hours


def _due(every: Duration | None, step: int, steps_per_epoch: int) -> bool:
    return every is not None and every.ends_at(step, steps_per_epoch)


def _exhausted(stage: StageConfig, state: TrainState) -> bool:
    return stage.patience is not None and state.stale >= stage.patience


if __name__ == "__main__":
    errors.run(main)
