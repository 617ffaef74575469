"""Train an embedding: the one loop, for every task.

accelerate launch src/train.py --config configs/demo.yaml
accelerate launch src/train.py --config configs/demo.yaml --set train.epochs=2 --set name=short
accelerate launch src/train.py --config configs/demo.yaml --resume
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from tqdm import tqdm

from guie import errors
from guie.augment import Augment
from guie.checkpoint import TrainState, load_checkpoint, save_checkpoint
from guie.config import RunConfig, load_config
from guie.config.run import StageConfig
from guie.data import TrainDataset, train_loader, training_rows
from guie.devices import make_accelerator
from guie.embedding import embed_files
from guie.errors import UserError
from guie.logs import MetricsLog, peak_memory_mb
from guie.manifest import Manifest, load_manifest
from guie.model import build_preprocess
from guie.model.preprocess import Preprocess
from guie.optim import build_optimizer, freeze, set_learning_rates
from guie.protocols import quick_scores
from guie.runs import CHECKPOINT, finish, open_run, read_summary
from guie.sampling import RankBatches, Sampler
from guie.tasks import Task, build_task


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", required=True, help="YAML file, see configs/")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override a config key"
    )
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    parser.add_argument("--overwrite", action="store_true", help="delete that run first")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> Path:
    """Train as configured; returns the run folder."""
    args = parse_args(argv)
    config = load_config(args.config, RunConfig, args.set)
    manifest = load_manifest(config.data.manifest, config.data.root)
    accelerator = make_accelerator(
        mixed_precision=config.precision, log_with="tensorboard", project_dir=config.out
    )
    if accelerator.is_main_process:
        opened = open_run(config, resume=args.resume, overwrite=args.overwrite)
    else:
        opened = None
    folder, finished = broadcast_object_list([opened])[0]
    if finished:
        accelerator.print(f"{folder}: already trained, {read_summary(folder)['best']}")
        return folder
    accelerator.init_trackers(config.name)
    began = time.monotonic()

    # ---------------------------------------------------------------- classes, task, position
    trained = [training_rows(manifest, stage.domains)["label"] for stage in config.stages]
    classes = sorted(set().union(*trained))
    checkpoint = folder / CHECKPOINT
    saved = load_checkpoint(checkpoint) if checkpoint.exists() else None
    state = saved["state"] if saved else TrainState()
    torch.manual_seed(config.seed)
    task = build_task(config, len(classes), weights=saved is None).to(accelerator.device)
    metrics = MetricsLog(folder / "metrics.jsonl")
    if accelerator.is_main_process:
        metrics.rewind(state.global_step)

    while state.stage < len(config.stages):
        # ------------------------------------------------------------ set the stage
        stage, seed = config.stages[state.stage], (config.seed, state.stage)
        size_px = stage.size_px or config.model.image.size_px
        backbone = task.embedder.backbone
        backbone.set_image_size(size_px)
        preprocess = build_preprocess(config.model, backbone, size_px)
        freeze(task, stage.lr)
        optimizer = build_optimizer(task, stage)
        if saved:
            task.load_state_dict(saved["task"])
        model, optimizer = accelerator.prepare(task, optimizer)
        if saved:
            optimizer.load_state_dict(saved["optimizer"])
            if accelerator.scaler:
                accelerator.scaler.load_state_dict(saved["scaler"])
        saved = None

        # ------------------------------------------------------------ data: a function of the step
        rows = training_rows(manifest, stage.domains)
        sampler = Sampler(rows["domain"], stage.sampler, stage.batch_size, seed)
        total_steps = max(1, round(stage.epochs * sampler.steps_per_epoch))
        rank, ranks = accelerator.process_index, accelerator.num_processes
        if stage.batch_size % ranks:
            raise UserError(f"batch_size {stage.batch_size} cannot be shared by {ranks} processes")
        augment = Augment(stage.augment)
        dataset = TrainDataset(rows, classes, manifest.root, augment, preprocess, seed)
        batches = RankBatches(sampler, state.step, total_steps, rank, ranks)
        loader = train_loader(dataset, batches, config.data.workers)

        # ------------------------------------------------------------ train
        accelerator.print(
            f"stage {state.stage + 1}/{len(config.stages)} {stage.name}: {total_steps} steps of"
            f" {stage.batch_size} images at {size_px} px, {len(rows)} images,"
            f" {rows['label'].nunique()} classes, {rows['domain'].nunique()} domains"
        )
        bar = tqdm(
            total=total_steps,
            initial=state.step,
            desc=stage.name,
            disable=not accelerator.is_local_main_process,
        )
        for batch in loader if not _exhausted(stage, state) else ():
            _train_mode(task, stage)
            # Dropout draws from (seed, stage, step, rank) alone, whatever ran before.
            torch.manual_seed(_draw(*seed, state.step, rank))
            rates = set_learning_rates(optimizer, stage, state.step, total_steps)
            batch = _to_device(batch, accelerator.device)

            loss, logs = model(batch)
            accelerator.backward(loss)
            if stage.clip_grad_norm:
                accelerator.clip_grad_norm_(model.parameters(), stage.clip_grad_norm)
            optimizer.step()
            optimizer.zero_grad()
            state.step += 1
            state.global_step += 1
            bar.update()

            last = state.step == total_steps
            if last or state.global_step % config.log_every_steps == 0:
                values = {k: accelerator.reduce(v, "mean").item() for k, v in logs.items()}
                if not np.isfinite(values["loss"]):
                    paths = rows["image_path"].iloc[batch["rows"].tolist()].tolist()
                    raise UserError(_non_finite(values["loss"], stage, state, rates, paths))
                line = {"step": state.global_step, "stage": stage.name, **values}
                _log(accelerator, metrics, line | {f"lr_{k}": v for k, v in rates.items()})
                bar.set_postfix(loss=f"{values['loss']:.3f}", acc=f"{values['accuracy']:.3f}")

            # -------------------------------------------------------- validate, keep the best, save
            every = stage.validate_every_steps
            if last or (every and state.step % every == 0):
                scores = _validate(accelerator, task, manifest, preprocess, config)
                if scores:
                    line = {"step": state.global_step, "stage": stage.name}
                    _log(accelerator, metrics, line | _flat(scores))
                    accelerator.print(
                        f"  step {state.global_step}: val R@1 {scores['r_at_1']:.3f},"
                        f" mMP@5 {scores['mmp_at_5']:.3f}"
                    )
                if scores is None or scores["r_at_1"] > state.best_score:
                    state.best_score = scores["r_at_1"] if scores else -1.0
                    state.best_step, state.stale = state.global_step, 0
                    if accelerator.is_main_process:
                        task.save(folder, "model", size_px)
                else:
                    state.stale += 1
            if last or state.global_step % config.checkpoint_every_steps == 0:
                if accelerator.is_main_process:
                    scaler = accelerator.scaler
                    save_checkpoint(checkpoint, task, optimizer, state, scaler)
            if _exhausted(stage, state):
                break
        bar.close()

        # ------------------------------------------------------------ next stage, fresh optimiser
        task = accelerator.unwrap_model(model, keep_fp32_wrapper=False)
        accelerator.free_memory(model, optimizer)
        state.stage, state.step, state.stale = state.stage + 1, 0, 0

    accelerator.wait_for_everyone()
    accelerator.end_training()
    if accelerator.is_main_process:
        task.save(folder, "last", size_px)
        summary = {
            "best": {"val_r_at_1": state.best_score, "step": state.best_step},
            "steps": state.global_step,
            "seconds": round(time.monotonic() - began, 1),
            "peak_memory_mb": peak_memory_mb(),
            "classes": len(classes),
        }
        finish(folder, summary)
        print(f"{folder}: best {summary['best']}, {summary['seconds']:.0f} s")
    return folder


def _train_mode(task: Task, stage: StageConfig) -> None:
    """Train mode; a frozen backbone stays as it is scored, without dropout."""
    task.train()
    if not stage.lr.backbone:
        task.embedder.backbone.eval()


def _draw(*key: int) -> int:
    """One 63-bit seed out of several integers."""
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> 1)


def _to_device(batch: dict[str, Any], device: torch.device) -> dict[str, Any]:
    return {
        key: value.to(device, non_blocking=True) if torch.is_tensor(value) else value
        for key, value in batch.items()
    }


def _exhausted(stage: StageConfig, state: TrainState) -> bool:
    return stage.patience is not None and state.stale >= stage.patience


def _validate(
    accelerator: Accelerator,
    task: Task,
    manifest: Manifest,
    preprocess: Preprocess,
    config: RunConfig,
) -> dict[str, Any] | None:
    """R@1 and mMP@5 on the merged val index, mean over domains; None without a val split."""
    if "val" not in manifest.table["split"].unique():
        return None
    rows = manifest.split("val")
    files = [manifest.file(path) for path in rows["image_path"]]
    emb_ND = embed_files(
        accelerator, task.embedder, preprocess, files, workers=config.data.workers, title="val"
    )
    scores = quick_scores(emb_ND, rows) if accelerator.is_main_process else None
    return broadcast_object_list([scores])[0]  # every process decides alike


def _log(accelerator: Accelerator, metrics: MetricsLog, line: dict[str, Any]) -> None:
    """A line of metrics.jsonl and a point of every TensorBoard curve."""
    if accelerator.is_main_process:
        metrics.write(line)
    numbers = {key: value for key, value in line.items() if isinstance(value, float)}
    accelerator.log(numbers, step=line["step"])


def _flat(scores: dict[str, Any]) -> dict[str, float]:
    flat = {f"val_{key}": scores[key] for key in ("r_at_1", "mmp_at_5")}
    for domain, values in scores["domains"].items():
        flat[f"val_r_at_1/{domain}"] = values["r_at_1"]
    return flat


def _non_finite(
    loss: float, stage: StageConfig, state: TrainState, rates: dict, paths: list[str]
) -> str:
    return (
        f"loss is {loss} at step {state.step} of stage {stage.name}, learning rates {rates};"
        f" the last checkpoint is intact; images: {', '.join(paths[:8])} ..."
    )


if __name__ == "__main__":
    errors.run(main)
