"""What each run and each composition of a study costs an image, in one run, against the study's baseline.

python tests/bench/compositions.py configs/studies/compositions.yaml --runs runs/studies/compositions

Real images of the study's test split, one at a time, as the challenge's scorer asks: uint8 of the original
size in, resize and all inside. The models take turns, and time is that of the cores at work, so that
neighbours on the machine count little; told are the mean over the images of each image's median over the
rounds, its ratio to the baseline, and the numbers an embedding has.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from guie.config.base import expanded
from guie.data.images import open_as_host
from guie.data.manifest import load_manifest
from guie.models import Scored, open_model
from guie.studies.grid import Plan, read_plan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", type=Path)
    parser.add_argument("--runs", type=Path, required=True, help="folder of its runs")
    parser.add_argument("--images", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    plan = read_plan(args.study)
    models = {row: open_model(folder).scored for row, folder in made(plan, args.runs).items()}
    images = drawn(plan, args.images)
    seconds = timed(models, images, args.rounds)
    own = seconds[plan.study.baseline] if plan.study.baseline else min(seconds.values())
    print("| | core ms an image | ratio | numbers |\n|---|---|---|---|")
    for row, value in seconds.items():
        with torch.inference_mode():
            numbers = models[row](images[0]).shape[1]
        print(f"| {row} | {1000 * value:.1f} | {value / own:.2f} | {numbers} |")


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


def timed(models: dict[str, Scored], images: list[Tensor], rounds: int) -> dict[str, float]:
    """Seconds of a core an image, by model."""
    taken = {row: np.zeros((rounds + 1, len(images))) for row in models}
    with torch.inference_mode():
        for number in tqdm(range(rounds + 1), desc="rounds"):  # the first one warms up
            for row, model in models.items():
                for place, image in enumerate(images):
                    began = time.process_time()
                    model(image)
                    taken[row][number, place] = time.process_time() - began
    return {row: float(np.median(values[1:], axis=0).mean()) for row, values in taken.items()}


if __name__ == "__main__":
    main()
