"""A stage's training step on the device at hand: images/s, share of its peak, memory, what feeds it.

python tests/bench/card.py --config configs/vit_h14.yaml --stage full --batch 128 [--set compile=true]

Steps are those of train.py, on images that lie on the device already. FLOPs are counted, also what
gradient_checkpointing computes again; the peak is that of a large matrix product in the run's
precision, measured in the same run. Of the loader a process's share is measured, on one core.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import pandas as pd
import torch
from accelerate import Accelerator
from common import Way, arguments, peak_gb, photographs, seconds_of
from counting import PRECISIONS
from loader import ours
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from guie.base import errors
from guie.base.devices import make_accelerator
from guie.base.errors import UserError
from guie.config import RunConfig, load_config
from guie.data.dataset import Batch, classes_of
from guie.training.checkpoint import TrainState
from guie.training.optim import build_optimizer, set_learning_rates
from guie.training.stage import set_model
from guie.training.step import gradients_within_memory, train_mode
from guie.training.tasks import build_task

LOADED = 128  # photographs of 667 x 500 px


def main(_: object = None) -> None:
    args = arguments(
        __doc__,
        config=str,
        set=[],
        stage=str | None,
        batch=int | None,
        classes=100_000,
        steps=20,
    )
    config = load_config(args.config, RunConfig, args.set)
    names = [stage.name for stage in config.stages]
    if args.stage not in (None, *names):
        raise UserError(f"--stage {args.stage}: the stages are {', '.join(names)}")
    number = names.index(args.stage) if args.stage else len(names) - 1
    accelerator = make_accelerator(mixed_precision=config.precision)
    on_gpu = accelerator.device.type == "cuda"
    step, size_px, images = a_step(accelerator, config, number, args.batch, args.classes)
    step()
    with FlopCounterMode(display=False) as counter:
        step()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()  # the counter keeps what checkpointing would let go
    seconds = mean_seconds(step, args.steps)
    held_gb = torch.cuda.max_memory_allocated() / 1e9 if on_gpu else peak_gb()
    peak = matrix_flops(accelerator, config.precision)
    rate = counter.get_total_flops() / seconds
    feed = loader_rate(size_px)
    device = torch.cuda.get_device_name() if on_gpu else f"{torch.get_num_threads()} CPU threads"
    print(f"{args.config}, stage {names[number]}, {size_px} px, {images} images a step")
    print(f"  on {device}, {config.precision}")
    print(f"  {images / seconds:,.1f} images/s, {seconds * 1e3:,.1f} ms a step")
    print(
        f"  {rate / 1e12:,.2f} TFLOP/s, {rate / peak:.0%} of a matrix product's {peak / 1e12:,.2f}"
    )
    print(f"  {held_gb:.1f} GB at most")
    cores = images / seconds / feed
    print(f"  fed by {cores:,.1f} cores, at {feed:,.0f} images/s each (500 px files)")


def a_step(
    accelerator: Accelerator, config: RunConfig, number: int, batch: int | None, classes: int
) -> tuple[Way, int, int]:
    """A training step of a stage, its image size, and its images."""
    labels = [f"bench/{label:07d}" for label in range(classes)]
    rows = pd.DataFrame({"image_path": labels, "label": labels, "domain": "bench"})
    task = build_task(config, classes_of(rows), weights=False).to(accelerator.device)
    size_px = set_model(task, config, number, range(classes)).size_px
    stage, state = config.stages[number], TrainState(stage=number)
    model, optimizer = accelerator.prepare(task, build_optimizer(task, stage))
    images = batch or stage.batch_size
    drawn = Batch(
        label_B=torch.randint(classes, (images,)),
        row_B=torch.zeros(images, dtype=torch.int64),
        shapes_B3=torch.ones(images, 3),
        images_BCHW=torch.randn(images, 3, size_px, size_px),
    ).to(accelerator.device)

    def step() -> None:
        train_mode(task, stage)
        set_learning_rates(optimizer, stage, 0, 1000)
        gradients_within_memory(accelerator, model, drawn, config, state, (0, 0, 0, 0))
        if stage.clip_grad_norm:
            accelerator.clip_grad_norm_(model.parameters(), stage.clip_grad_norm)
        optimizer.step()
        optimizer.zero_grad()

    return step, size_px, images


def mean_seconds(work: Way, times: int) -> float:
    """Seconds of one of so many: on a GPU they are queued, as in training."""
    seconds_of(work)
    return seconds_of(lambda: [work() for _ in range(times)]) / times


def matrix_flops(accelerator: Accelerator, precision: str) -> float:
    """FLOP/s of a large matrix product."""
    side = 8192 if accelerator.device.type == "cuda" else 2048
    dtype = PRECISIONS.get(precision, torch.float32)
    a: Tensor = torch.randn(side, side, device=accelerator.device, dtype=dtype)
    return 2 * side**3 / mean_seconds(lambda: a @ a, 20)


def loader_rate(size_px: int) -> float:
    """Images/s that a loader process makes on one core."""
    with tempfile.TemporaryDirectory() as folder:
        run = ours(photographs(Path(folder), LOADED, 500), size_px, normalised=False)
        run()
        return LOADED / seconds_of(run, time.process_time)


if __name__ == "__main__":
    errors.run(main)
