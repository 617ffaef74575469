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
import re
import subprocess
import sys
from pathlib import Path

import torch
from counting import GB, RESERVE, Frame, largest_batch, set_up, step

from guie.base import errors
from guie.base.errors import UserError
from guie.config import RunConfig, load_config
from guie.data.dataset import Classes
from guie.training.tasks import build_task

# glibc gives memory back at once: what is held is then what is used.
TIGHT = {"MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", required=True)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--card-gb", type=float, nargs="+", default=[80.0, 24.0])
    parser.add_argument("--classes", type=int, default=100_000)
    parser.add_argument(
        "--check", type=int, metavar="IMAGES", help="count for the CPU, and measure"
    )
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    config = load_config(args.config, RunConfig, args.set)
    if config.task.name != "classification":
        raise UserError(f"{args.config}: only task classification is counted")
    if args.measure is not None:
        print(real_peak(config, args.measure, args.check, args.classes))
    elif args.check:
        check(config, args)
    else:
        table(config, args)


def build(config: RunConfig, classes: int) -> torch.nn.Module:
    """The task with random weights and so many classes."""
    labels = [f"{number:08d}" for number in range(classes)]
    return build_task(config, Classes(labels, [10] * classes, ["one"] * classes), weights=False)


def table(config: RunConfig, args: argparse.Namespace) -> None:
    frame = Frame(build(config, args.classes), config)
    print(
        f"{args.config}, precision {config.precision}, {args.classes} classes; GB; images that fit"
    )
    print(f"a card at once, {RESERVE / GB:.0f} GB of it held back, and how often to accumulate")
    titles = ("stage", "px", "weights", "grads", "states", "checkpointing", "MB/image")
    cards = [f"{gb:g} GB" for gb in args.card_gb]
    print("".join(f"{title:>14}" for title in (*titles, *cards)))
    for stage in config.stages:
        for checkpointing in (False, True) if stage.lr.trains_features else (False,):
            used = {}

            def peak(batch: int, stage=stage, checkpointing=checkpointing, used=used) -> int:
                used[batch] = frame.usage(stage, batch, checkpointing)
                return used[batch].peak

            fits = [largest_batch(peak, gb * GB - RESERVE) for gb in args.card_gb]
            one = used[2]
            states = [f"{part / GB:.2f}" for part in (one.weights, one.gradients, one.optimizer)]
            a, b = sorted(used)[-2:]
            each_mb = (used[b].peak - used[a].peak) / (b - a) / 1e6
            shown = [_fit(batch, stage.batch_size) for batch in fits]
            size_px = stage.size_px or config.model.image.size_px
            row = (stage.name, size_px, *states, "yes" if checkpointing else "no", f"{each_mb:.1f}")
            print("".join(f"{cell!s:>14}" for cell in (*row, *shown)), flush=True)


def _fit(batch: int, wanted: int) -> str:
    return f"{batch} (x{-(-wanted // batch)})" if batch else "none"


def check(config: RunConfig, args: argparse.Namespace) -> None:
    frame = Frame(build(config, args.classes), config, cuda=False)
    print(f"{args.config}, {args.check} images, {args.classes} classes: MB counted and held")
    for number, stage in enumerate(config.stages):
        checkpointing = config.gradient_checkpointing
        counted = frame.usage(stage, args.check, checkpointing).peak / 1e6
        command = [sys.executable, __file__, "--config", args.config, "--check", str(args.check)]
        command += ["--classes", str(args.classes), "--measure", str(number)]
        command += [word for change in args.set for word in ("--set", change)]
        done = subprocess.run(
            command, check=True, env=os.environ | TIGHT, stdout=subprocess.PIPE, text=True
        )
        held = float(done.stdout) / 1e6
        print(f"{stage.name:>14}{counted:>10.0f}{held:>10.0f}{counted / held:>8.2f}", flush=True)


def real_peak(config: RunConfig, number: int, micro_batch: int, classes: int) -> int:
    """Bytes this process holds at most in a real second step of stage `number`, beyond its imports.

    Linux only: it asks the kernel.
    """
    stage = config.stages[number]
    size_px = stage.size_px or config.model.image.size_px

    def steps(images: int) -> int:
        before, task = peak_of_process(), build(config, classes)
        optimizer = set_up(task, config, stage, config.gradient_checkpointing)
        step(task, optimizer, (images, 3, size_px, size_px), config.precision)
        peak_of_process()
        step(task, optimizer, (images, 3, size_px, size_px), config.precision)
        return peak_of_process() - before

    steps(2)  # code is read into memory where it first runs
    gc.collect()
    peak_of_process()
    return steps(micro_batch)


def peak_of_process() -> int:
    """The most bytes held since the last call; the peak starts anew from what is held now."""
    status = Path("/proc/self/status").read_text()
    Path("/proc/self/clear_refs").write_text("5")
    return 1024 * int(re.search(r"VmHWM:\s+(\d+)", status)[1])


if __name__ == "__main__":
    errors.run(main)
