"""What each run and each ensemble of a study costs an image, over the study's baseline.

python tests/bench/compositions.py [--study configs/studies/compositions.yaml]
                                   [--runs runs/studies/compositions] [--images 24] [--rounds 5]

Real images of the study's test split, one at a time, as the challenge's scorer embeds them: uint8 of the
original size, resized by the model. The models take turns, in CPU time on one thread. Shown are the mean
over images of each image's median over the rounds, its ratio, and the dimensions of an embedding.
"""

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
from guie.studies.grid import Plan, read_plan


def main() -> None:
    compositions = "studies/compositions"
    study, runs = Path("configs", f"{compositions}.yaml"), Path("runs", compositions)
    args = arguments(__doc__, study=study, runs=runs, images=24, rounds=5)
    torch.set_num_threads(1)
    plan = read_plan(args.study)
    models = {row: open_model(folder).scored for row, folder in made(plan, args.runs).items()}
    images = dict(enumerate(drawn(plan, args.images)))
    with torch.inference_mode():
        ways = {(r, i): partial(m, images[i]) for r, m in models.items() for i in images}
        taken = in_turn(ways, args.rounds, time.process_time)
        numbers = {row: model(images[0]).shape[1] for row, model in models.items()}
    seconds = {row: float(np.mean([np.median(taken[row, i]) for i in images])) for row in models}
    own = seconds[plan.study.baseline] if plan.study.baseline else min(seconds.values())
    rows = ((row, 1000 * value, value / own, numbers[row]) for row, value in seconds.items())
    show(["", "core ms an image", "ratio", "numbers"], rows)


def made(plan: Plan, runs: Path) -> dict[str, Path]:
    """The newest folder of seed 0 and without folds, by row."""
    found = {}
    for job in plan.chosen(None, [0]):
        folders = [p.parent for p in runs.glob(f"{job.slug()}_????????/summary.json")]
        if folders and job.fold is None:
            found[job.row] = max(folders, key=lambda folder: folder.stat().st_mtime)
    return found


def drawn(plan: Plan, count: int) -> list[Tensor]:
    """Test images of the study, uint8 (1, 3, H, W)."""
    data = next(iter(plan.jobs.values())).config.data
    root = expanded(data.root, "data.root") if data.root else None
    manifest = load_manifest(expanded(data.manifest, "data.manifest"), root)
    rows = manifest.split("test").sample(count, random_state=0)
    pictures = [np.asarray(open_as_host(manifest.file(path))) for path in rows["image_path"]]
    return [torch.from_numpy(picture.copy()).permute(2, 0, 1)[None] for picture in pictures]


if __name__ == "__main__":
    main()
