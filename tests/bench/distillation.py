"""What teachers cost a training step, live and known beforehand; and the search for a perplexity.

python tests/bench/distillation.py [--px 80] [--batch 64] [--steps 5] [--teachers 1 3 7] [--device cuda]

A student and teachers of ViT-Ti/16, random weights, each a run folder that is opened as any; SND
by a perplexity. Steps of all kinds in turn, in one run, on one thread of the CPU or on a card in bf16;
medians over a plain step of SupCon. Live teachers look at every image of the batch; where a teacher has
a domain of its own and batches are of one domain, a step asks one of them, however many there are.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import torch
from common import Way, arguments, in_turn, ratio, show, timm_model

from guie.config import RunConfig
from guie.config.loading import config_from, to_yaml
from guie.data.dataset import Batch, Classes
from guie.losses.distillation import entropy, precisions_of, squared_distances
from guie.models.embedder import build_embedder
from guie.models.weights import save_model
from guie.training.tasks import build_task
from guie.training.tasks.base import Task

PERPLEXITY = 16.0
SEARCHED = 1024  # images of the search
CLASSES = Classes([f"c{n}" for n in range(16)], [9] * 16, ["one"] * 16)


def main() -> None:
    args = arguments(__doc__, px=80, batch=64, steps=5, teachers=[1, 3, 7], device="cpu")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        seconds = in_turn(all_steps(Path(name), args), args.steps)
    rows = ((way, np.median(taken), ratio(seconds, way, "plain")) for way, taken in seconds.items())
    title = f"ViT-Ti/16, {args.px} px, batch {args.batch}, {args.device}"
    show(["", "step, s", "/ plain"], rows, title)
    emb_ND = torch.nn.functional.normalize(torch.randn(SEARCHED, 64, device=args.device), dim=1)
    squared_NM = squared_distances(emb_ND, emb_ND[:0])
    ways = {
        "distances": lambda: squared_distances(emb_ND, emb_ND[:0]),
        "search": lambda: precisions_of(squared_distances(emb_ND, emb_ND[:0]), PERPLEXITY),
    }
    found = {way: 1e3 * np.median(taken) for way, taken in in_turn(ways, args.steps).items()}
    off = entropy(squared_NM, precisions_of(squared_NM, PERPLEXITY)).exp() - PERPLEXITY
    print(
        f"perplexity {PERPLEXITY:g} of {SEARCHED} images: {found['search']:.0f} ms, distances"
        f" alone {found['distances']:.1f} ms; off by {off.abs().max():.1e} at most"
    )


def all_steps(folder: Path, args: argparse.Namespace) -> dict[str, Way]:
    """A plain step, and for each number of teachers a live one and one with what they say known."""
    count = max(args.teachers)
    for number in range(count):
        a_run(folder / f"teacher_{number}", args.px, seed=number)
    steps = {"plain": stepper(built(folder, args.px, 0, args.device), args, known=0)}
    for number in args.teachers:
        task = built(folder, args.px, number, args.device)
        steps[f"{number} live"] = stepper(task, args, known=0)
        steps[f"{number} known beforehand"] = stepper(task, args, known=number)
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


def a_run(folder: Path, px: int, seed: int) -> None:
    """A folder that is opened as a run's."""
    config = config_of(folder.parent, px, teachers=0)
    torch.manual_seed(seed)
    folder.mkdir()
    (folder / "config.yaml").write_text(to_yaml(config.model_dump()))
    save_model(build_embedder(config.model), folder / "model.safetensors")


def built(folder: Path, px: int, teachers: int, device: str) -> Task:
    task = build_task(config_of(folder, px, teachers), CLASSES).to(device)
    task.embedder.backbone.set_image_size(px, None)
    task.begin_stage(0, range(len(CLASSES)))
    return task.train()


def stepper(task: Task, args: argparse.Namespace, known: int) -> Way:
    """A forward and a backward pass. `known`: of so many teachers."""
    batch = Batch(
        label_B=torch.arange(args.batch) % len(CLASSES),
        row_B=torch.arange(args.batch),
        shapes_B3=torch.ones(args.batch, 3),
        images_BCHW=torch.randn(args.batch, 3, args.px, args.px),
        teacher_BT=torch.randn(args.batch, 64 * known) if known else None,
    ).to(torch.device(args.device))
    return partial(a_step, task, batch, args.device)


def a_step(task: Task, batch: Batch, device: str) -> None:
    task.zero_grad()
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        loss, _ = task(batch)
    loss.backward()


if __name__ == "__main__":
    main()
