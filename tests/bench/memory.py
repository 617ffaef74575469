"""Which batch fits a card, stage by stage of a config, counted without a card.

python tests/bench/memory.py --config configs/vit_h14.yaml [--card-gb 80 24] [--classes 100000]
python tests/bench/memory.py --config configs/real_vit_tiny.yaml --check 32   # against this CPU

GB are 10^9 bytes, of a single process; where several train together (DDP), each holds its gradients
twice. --check runs a real step of each stage on the CPU with so many images, and prints what the
process held next to what was counted for the CPU.
"""

from __future__ import annotations

import argparse
import gc
import os
from collections.abc import Iterator

import torch
from common import apart, arguments, forget_peak, peak_gb, show
from counting import GB, RESERVE, Frame, Usage, largest_batch, set_up, step

from guie.base import errors
from guie.base.errors import UserError
from guie.config import RunConfig, load_config
from guie.data.dataset import Classes
from guie.training.tasks import build_task

# glibc gives memory back at once: what is held is then what is used.
TIGHT = {"MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}


def main(_: object = None) -> None:
    args = arguments(
        __doc__, config=str, set=[], card_gb=[80.0, 24.0], classes=100_000, check=int | None
    )
    config = load_config(args.config, RunConfig, args.set)
    if config.task.name != "classification":
        raise UserError(f"{args.config}: only task classification is counted")
    if args.check:
        rows = checked(config, args.check, args.classes)
        title = f"{args.config}, {args.check} images, {args.classes} classes: MB"
        return show(["stage", "counted", "held", "ratio"], rows, title)
    title = (
        f"{args.config}, precision {config.precision}, {args.classes} classes; GB; images that fit"
        f" a GPU at once, {RESERVE / GB:.0f} GB of it held back, and how often to accumulate"
    )
    heads = ["stage", "px", "weights", "grads", "states", "checkpointing", "MB/image"]
    show([*heads, *(f"{gb:g} GB" for gb in args.card_gb)], fitting(config, args), title)


def build(config: RunConfig, classes: int) -> torch.nn.Module:
    """The task with random weights and so many classes."""
    labels = [f"{number:08d}" for number in range(classes)]
    return build_task(config, Classes(labels, [10] * classes, ["one"] * classes), pretrained=False)


def fitting(config: RunConfig, args: argparse.Namespace) -> Iterator[list]:
    """A row for each stage, where it trains features also with gradient checkpointing."""
    frame = Frame(build(config, args.classes), config)
    for stage in config.stages:
        for checkpointing in (False, True) if stage.lr.trains_features else (False,):
            used: dict[int, Usage] = {}

            def peak(batch: int, stage=stage, checkpointing=checkpointing, used=used) -> int:
                used[batch] = frame.usage(stage, batch, checkpointing)
                return used[batch].peak

            fits = [largest_batch(peak, gb * GB - RESERVE) for gb in args.card_gb]
            states = (used[2].weights / GB, used[2].gradients / GB, used[2].optimizer / GB)
            a, b = sorted(used)[-2:]
            each_mb = (used[b].peak - used[a].peak) / (b - a) / 1e6
            size_px = stage.size_px or config.model.image.size_px
            words = [f"{n} (x{-(-stage.batch_size // n)})" if n else "none" for n in fits]
            yield [stage.name, size_px, *states, checkpointing, each_mb, *words]


def checked(config: RunConfig, images: int, classes: int) -> Iterator[tuple]:
    """MB of each stage, as counted for the CPU and as held by a process that trains."""
    frame = Frame(build(config, classes), config, cuda=False)
    os.environ |= TIGHT  # of the processes that are started
    for number, stage in enumerate(config.stages):
        counted = frame.usage(stage, images, config.gradient_checkpointing).peak / 1e6
        held = apart(real_peak_mb, config, number, images, classes)
        yield stage.name, counted, held, counted / held


def real_peak_mb(config: RunConfig, number: int, micro_batch: int, classes: int) -> float:
    """What this process holds at most in a real second step of stage `number`, beyond its imports."""
    stage = config.stages[number]
    size_px = stage.size_px or config.model.image.size_px

    def steps(images: int) -> float:
        forget_peak()
        before_gb, task = peak_gb(), build(config, classes)
        optimizer = set_up(task, config, stage, config.gradient_checkpointing)
        step(task, optimizer, (images, 3, size_px, size_px), config.precision)
        forget_peak()
        step(task, optimizer, (images, 3, size_px, size_px), config.precision)
        return 1e3 * (peak_gb() - before_gb)

    steps(2)  # code is read into memory where it first runs
    gc.collect()
    return steps(micro_batch)


if __name__ == "__main__":
    errors.run(main)
