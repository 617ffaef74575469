"""What teachers cost a training step, live and cached.

python tests/bench/distillation.py [--px 80] [--batch 64] [--steps 5] [--teachers 1 3 7] [--device cuda]

A student and teachers of ViT-Ti/16 with random weights; SND by a perplexity. Steps of all kinds in turn, on
one thread of the CPU or on a GPU in bf16; medians over a plain step of SupCon. Live teachers embed every
image of the batch. If teachers have a domain each and batches are of one domain, a step runs one teacher.
"""

import argparse
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import torch
from common import Way, arguments, in_turn, ratio, show, timm_model

from guie.config import RunConfig, config_from
from guie.data.dataset import Batch, Classes
from guie.models.embedder import build_embedder
from guie.models.weights import save_model
from guie.training.run_folder import write_record
from guie.training.tasks import build_task
from guie.training.tasks.base import Task

PERPLEXITY = 16.0
CLASSES = Classes([f"c{n}" for n in range(16)], [9] * 16, ["one"] * 16)


def main() -> None:
    args = arguments(__doc__, px=80, batch=64, steps=5, teachers=[1, 3, 7], device="cpu")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        seconds = in_turn(all_steps(Path(name), args), args.steps)
    rows = ((way, np.median(taken), ratio(seconds, way, "plain")) for way, taken in seconds.items())
    title = f"ViT-Ti/16, {args.px} px, batch {args.batch}, {args.device}"
    show(["", "step, s", "/ plain"], rows, title)


def all_steps(folder: Path, args: argparse.Namespace) -> dict[str, Way]:
    """A plain step, and for each number of teachers one with live and one with cached outputs."""
    for number in range(max(args.teachers)):
        config, run = config_of(folder, args.px, teachers=0), folder / f"teacher_{number}"
        torch.manual_seed(number)
        write_record(run, config)
        save_model(build_embedder(config.model), run / "model.safetensors")
    steps = {"plain": stepper(built(folder, args.px, 0, args.device), args, cached=0)}
    for number in args.teachers:
        task = built(folder, args.px, number, args.device)
        steps[f"{number} live"] = stepper(task, args, cached=0)
        steps[f"{number} cached"] = stepper(task, args, cached=number)
    return steps


def config_of(folder: Path, px: int, teachers: int) -> RunConfig:
    task = {"loss": {"name": "supcon"}}
    if teachers:
        models = [{"model": str(folder / f"teacher_{n}")} for n in range(teachers)]
        snd = {"name": "snd", "sigma": {"perplexity": PERPLEXITY}}
        task = {"name": "distillation", "teachers": models, "criteria": [{"relation": snd}]}
    values = {
        "name": "student",
        "out": str(folder),
        "data": {"manifest": "none.csv"},
        "model": timm_model("vit_tiny_patch16_224", px),
        "task": task,
        "stages": [{"epochs": 1, "lr": {"backbone": 1e-4, "head": 1e-3}}],
    }
    return config_from(values, RunConfig)


def built(folder: Path, px: int, teachers: int, device: str) -> Task:
    task = build_task(config_of(folder, px, teachers), CLASSES).to(device)
    task.embedder.backbone.set_image_size(px, None)
    task.begin_stage(0, range(len(CLASSES)))
    return task.train()


def stepper(task: Task, args: argparse.Namespace, cached: int) -> Way:
    """A forward and a backward pass, with the outputs of this number of teachers in the batch."""
    batch = Batch(
        label_B=torch.arange(args.batch) % len(CLASSES),
        row_B=torch.arange(args.batch),
        shapes_B3=torch.ones(args.batch, 3),
        images_BCHW=torch.randn(args.batch, 3, args.px, args.px),
        teacher_BT=torch.randn(args.batch, 64 * cached) if cached else None,
    ).to(torch.device(args.device))
    return partial(a_step, task, batch, args.device)


def a_step(task: Task, batch: Batch, device: str) -> None:
    task.zero_grad()
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        loss, _ = task(batch)
    loss.backward()


if __name__ == "__main__":
    main()
