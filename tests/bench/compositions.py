"""What each run and each composition of a study costs an image, in one run, against the study's baseline.

python tests/bench/compositions.py configs/studies/compositions.yaml --runs runs/studies/compositions

Real images of the study's test split, one at a time, as the challenge's scorer asks: uint8 of the original
size in, resize and all inside. The models take turns, and time is that of the cores at work, so that
neighbours on the machine count little; told are the mean over the images of each image's median over the
rounds, its ratio to the baseline, and the numbers an embedding has.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from common import arguments, in_turn, show
from torch import Tensor

from guie.config.loading import expanded
from guie.data.images import open_as_host
from guie.data.manifest import load_manifest
from guie.models import open_model
from guie.models.opening import ExportModule
from guie.studies.grid import Plan, read_plan


def main() -> None:
    args = arguments(__doc__, "study", runs=Path, images=24, rounds=5)
    torch.set_num_threads(1)
    plan = read_plan(args.study)
    models = {row: open_model(folder).scored for row, folder in made(plan, args.runs).items()}
    images = drawn(plan, args.images)
    with torch.inference_mode():
        seconds = timed(models, images, args.rounds)
        numbers = {row: model(images[0]).shape[1] for row, model in models.items()}
    own = seconds[plan.study.baseline] if plan.study.baseline else min(seconds.values())
    rows = ((row, 1000 * value, value / own, numbers[row]) for row, value in seconds.items())
    show(["", "core ms an image", "ratio", "numbers"], rows)


def made(plan: Plan, runs: Path) -> dict[str, Path]:
    """Folders of what is there, of seed 0 and without folds, by row."""
    found = {}
    for job in plan.chosen(None, [0]):
        folders = [p.parent for p in runs.glob(f"{job.slug()}_????????/summary.json")]
        if folders and job.fold is None:
            found[job.row] = max(folders, key=lambda folder: folder.stat().st_mtime)
    return found


def drawn(plan: Plan, count: int) -> list[Tensor]:
    """So many test images of the study, uint8 (1, 3, H, W)."""
    data = next(iter(plan.jobs.values())).config.data
    root = expanded(data.root, "data.root") if data.root else None
    manifest = load_manifest(expanded(data.manifest, "data.manifest"), root)
    rows = manifest.split("test").sample(count, random_state=0)
    pictures = [np.asarray(open_as_host(manifest.file(path))) for path in rows["image_path"]]
    return [torch.from_numpy(picture.copy()).permute(2, 0, 1)[None] for picture in pictures]


def timed(models: dict[str, ExportModule], images: list[Tensor], rounds: int) -> dict[str, float]:
    """Seconds of a core an image, by model: the mean over images of each one's median."""
    ways = {
        (row, place): partial(model, image)
        for row, model in models.items()
        for place, image in enumerate(images)
    }
    taken = in_turn(ways, rounds, time.process_time)
    medians = {
        row: [np.median(taken[row, place]) for place in range(len(images))] for row in models
    }
    return {row: float(np.mean(values)) for row, values in medians.items()}


if __name__ == "__main__":
    main()
