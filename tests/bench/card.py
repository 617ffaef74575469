"""A stage's training step on the device at hand: images/s, share of its peak, memory, what feeds it.

python tests/bench/card.py --config configs/vit_h14.yaml --stage full --batch 128 [--set compile=true]

Steps are those of train.py, on images that lie on the device already. FLOPs are counted, also what
gradient_checkpointing computes again; the peak is that of a large matrix product in the run's
precision, measured in the same run. Of the loader a process's share is measured, on one core.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import torch
from accelerate import Accelerator
from counting import PRECISIONS
from loader import draw, ours
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from guie.base import errors
from guie.base.devices import make_accelerator
from guie.base.errors import UserError
from guie.config import RunConfig, load_config
from guie.data.dataset import Batch, classes_of
from guie.training.checkpoint import TrainState
from guie.training.optim import build_optimizer, set_learning_rates
from guie.training.run_folder import peak_memory_mb
from guie.training.stage import set_model
from guie.training.step import gradients_within_memory, train_mode
from guie.training.tasks import build_task

LOADED = 128  # photographs of 667 x 500 px


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", required=True)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--stage", help="by name; default: the last")
    parser.add_argument("--batch", type=int, help="images a step; default: the stage's batch_size")
    parser.add_argument("--classes", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args(argv)
    config = load_config(args.config, RunConfig, args.set)
    names = [stage.name for stage in config.stages]
    if args.stage not in (None, *names):
        raise UserError(f"--stage {args.stage}: the stages are {', '.join(names)}")
    number = names.index(args.stage) if args.stage else len(names) - 1
    accelerator = make_accelerator(mixed_precision=config.precision)
    step, size_px, images = a_step(accelerator, config, number, args.batch, args.classes)
    step()
    with FlopCounterMode(display=False) as counter:
        step()
    if accelerator.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()  # the counter keeps what checkpointing would let go
    seconds, held_gb = timed(accelerator, step, args.steps), memory_gb(accelerator)
    peak = matrix_flops(accelerator, config.precision)
    rate = counter.get_total_flops() / seconds
    feed = loader_rate(size_px)
    print(f"{args.config}, stage {names[number]}, {size_px} px, {images} images a step")
    print(f"  on {device_name(accelerator)}, {config.precision}")
    print(f"  {images / seconds:,.1f} images/s, {seconds * 1e3:,.1f} ms a step")
    print(
        f"  {rate / 1e12:,.2f} TFLOP/s, {rate / peak:.0%} of a matrix product's {peak / 1e12:,.2f}"
    )
    print(f"  {held_gb:.1f} GB at most")
    print(
        f"  fed by {images / seconds / feed:,.1f} cores, at {feed:,.0f} images/s each (500 px files)"
    )


def a_step(
    accelerator: Accelerator, config: RunConfig, number: int, batch: int | None, classes: int
) -> tuple[Callable[[], None], int, int]:
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


def timed(accelerator: Accelerator, work: Callable[[], object], times: int) -> float:
    """Seconds of one of so many."""
    work()
    wait(accelerator)
    began = time.perf_counter()
    for _ in range(times):
        work()
    wait(accelerator)
    return (time.perf_counter() - began) / times


def matrix_flops(accelerator: Accelerator, precision: str) -> float:
    """FLOP/s of a large matrix product."""
    side = 8192 if accelerator.device.type == "cuda" else 2048
    dtype = PRECISIONS.get(precision, torch.float32)
    a: Tensor = torch.randn(side, side, device=accelerator.device, dtype=dtype)
    return 2 * side**3 / timed(accelerator, lambda: a @ a, 20)


def loader_rate(size_px: int) -> float:
    """Images/s that a loader process makes on one core."""
    with tempfile.TemporaryDirectory() as folder:
        run = ours(draw(Path(folder), LOADED, 500), size_px, normalised=False)
        run()
        began = time.process_time()
        run()
        return LOADED / (time.process_time() - began)


def memory_gb(accelerator: Accelerator) -> float:
    if accelerator.device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 1e9
    return peak_memory_mb() / 1e3


def device_name(accelerator: Accelerator) -> str:
    if accelerator.device.type == "cuda":
        return torch.cuda.get_device_name()
    return f"{torch.get_num_threads()} CPU threads"


def wait(accelerator: Accelerator) -> None:
    if accelerator.device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    errors.run(main)
