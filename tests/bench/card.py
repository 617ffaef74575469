"""A stage's training step on this device: images/s, share of its peak, memory, loaders that it needs.

python tests/bench/card.py --config configs/vit_h14.yaml --stage full --batch 128 [--set compile=true]
python tests/bench/card.py --config configs/vit_h14.yaml --batch 32 --batch 64 --embed

The steps are those of train.py, on images that are on the device already. FLOPs are counted, also those that
gradient_checkpointing repeats. The peak is that of a large matrix product in the run's precision, measured in
the same run. `GB counted` is the estimate of tests/bench/memory.py. The loader's rate is measured on one
core. --embed also embeds, on the device and from files.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from accelerate import Accelerator
from common import (
    Way,
    arguments,
    exhaust,
    manifest_of,
    peak_gb,
    photographs,
    seconds_of,
    show,
    train_loader,
)
from memory import GB, PRECISIONS, Frame, build
from threadpoolctl import threadpool_limits
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from guie.base import errors
from guie.base.devices import make_accelerator
from guie.base.errors import UserError
from guie.base.processes import usable_cores
from guie.config import RunConfig, load_config
from guie.data.dataset import Batch, classes_of
from guie.data.preprocess import Preprocess
from guie.rows.embedding import embed_files
from guie.training.checkpoint import TrainState
from guie.training.optim import build_optimizer, set_learning_rates
from guie.training.stage import set_model, train_mode
from guie.training.step import gradients_within_memory
from guie.training.tasks import build_task
from guie.training.tasks.base import Task

LOADED = 128  # photographs of 667 x 500 px


def main(_: object = None) -> None:
    many = {"set": [], "batch": []}
    args = arguments(
        __doc__, config=str, stage=str | None, **many, classes=100_000, steps=20, embed=False
    )
    config = load_config(args.config, RunConfig, args.set)
    names = [stage.name for stage in config.stages]
    if args.stage not in (None, *names):
        raise UserError(f"--stage {args.stage}: the stages are {', '.join(names)}")
    number = names.index(args.stage) if args.stage else len(names) - 1
    batches = [int(word) for word in args.batch] or [config.stages[number].batch_size]
    accelerator = make_accelerator(mixed_precision=config.precision)
    on_gpu = accelerator.device.type == "cuda"
    device = torch.cuda.get_device_name() if on_gpu else f"{torch.get_num_threads()} CPU threads"
    made = a_step(accelerator, config, number, args.classes)
    peak, feed = matrix_flops(accelerator, config.precision), loader_rate(made.size_px)
    print(
        f"{args.config}, stage {names[number]}, {made.size_px} px, {config.precision}, on {device}"
    )
    print(f"a matrix product: {peak / 1e12:,.2f} TFLOP/s; a loader: {feed:,.0f} images/s (500 px)")
    counted = ["not counted"] * len(batches)
    if on_gpu and config.task.name == "classification":
        frame, stage = Frame(build(config, args.classes), config), config.stages[number]
        checkpointing = config.gradient_checkpointing
        counted = [frame.usage(stage, images, checkpointing).peak / GB for images in batches]
    rows = (
        [images, *measured(made, images, args.steps, peak, feed), counted_gb]
        for images, counted_gb in zip(batches, counted, strict=True)
    )
    heads = ["images a step", "images/s", "ms", "TFLOP/s", "of product", "cores", "GB held"]
    show([*heads, "GB counted"], rows)
    if args.embed:
        rows = ((n, *embedding_rates(accelerator, made, n)) for n in batches)
        show(["images embedded at once", "images/s", "from files"], rows)


class Made(NamedTuple):
    """A stage's task on the device, and its steps by their number of images."""

    task: Task
    size_px: int
    step: Callable[[int], Way]


def measured(made: Made, images: int, steps: int, peak: float, feed: float) -> Sequence[Any]:
    """What a step of these images takes; `out of memory` if it does not fit."""
    try:
        step = made.step(images)
        step()
        with torch.compiler.set_stance("force_eager"), FlopCounterMode(display=False) as counter:
            step()
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()  # the counter keeps what checkpointing would free
        seconds = mean_seconds(step, steps)
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return ["out of memory", *[""] * 5]
    held = torch.cuda.max_memory_allocated() / GB if torch.cuda.is_available() else peak_gb()
    rate, speed = counter.get_total_flops() / seconds, images / seconds
    return [speed, seconds * 1e3, rate / 1e12, rate / peak, speed / feed, held]


def a_step(accelerator: Accelerator, config: RunConfig, number: int, classes: int) -> Made:
    """The training steps of a stage."""
    labels = [f"bench/{label:07d}" for label in range(classes)]
    rows = pd.DataFrame({"image_path": labels, "label": labels, "domain": "bench"})
    task = build_task(config, classes_of(rows), pretrained=False).to(accelerator.device)
    size_px = set_model(task, config, number, range(classes)).size_px
    stage, state = config.stages[number], TrainState(stage=number)
    model, optimizer = accelerator.prepare(task, build_optimizer(task, stage))

    def of(images: int) -> Way:
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

        return step

    return Made(task, size_px, of)


def embedding_rates(accelerator: Accelerator, made: Made, batch: int) -> tuple[float, float]:
    """Images/s that the model embeds: on the device already; from files, by a loader a core."""
    embedder = made.task.embedder.eval()
    shape = (batch, 3, made.size_px, made.size_px)
    images_BCHW = torch.randn(shape, device=accelerator.device)

    @torch.inference_mode()
    def on_device() -> None:
        with torch.compiler.set_stance("force_eager"), accelerator.autocast():
            embedder(images_BCHW, torch.ones(batch, 3, device=accelerator.device))

    preprocess = Preprocess(made.size_px, [0.5] * 3, [0.5] * 3)
    workers = usable_cores()
    with tempfile.TemporaryDirectory() as folder, torch.compiler.set_stance("force_eager"):
        files = photographs(Path(folder), LOADED, 500) * (4 * workers)
        job = partial(embed_files, accelerator, embedder, preprocess, batch_size=batch)
        job(files[:batch], workers=workers)
        from_files = len(files) / seconds_of(lambda: job(files, workers=workers))
    return batch / mean_seconds(on_device, 10), from_files


def mean_seconds(work: Way, times: int) -> float:
    """Mean seconds of this many: on a GPU they are queued, as in training."""
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
    with tempfile.TemporaryDirectory() as folder, threadpool_limits(1):
        loader = train_loader(manifest_of(photographs(Path(folder), LOADED, 500)), size_px).loader
        exhaust(loader)
        return LOADED / seconds_of(lambda: exhaust(loader), time.process_time)


if __name__ == "__main__":
    errors.run(main)
