"""How fast a frozen stage trains from cached features, against running the backbone, in one run.

python tests/bench/frozen.py [--images 512]

Draws photograph-like JPEGs into a temporary folder. A ViT-Ti/16 of random weights at 112 px, 4,000 classes,
batches of 256, two loader processes. Prints images per second, and of what a cached step consists.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
from accelerate import Accelerator
from common import Way, arguments, photographs, seconds_of, show, timm_model

from guie.config import RunConfig, config_from
from guie.data.augmentation import Augment
from guie.data.dataset import Batch, TrainDataset, classes_of
from guie.data.loader import TrainLoader
from guie.data.manifest import Manifest, Sidecar
from guie.data.sampling import RankBatches, RankDraws, Sampler
from guie.rows.embedding import raise_fault
from guie.training.optim import build_optimizer, set_learning_rates
from guie.training.run import Run
from guie.training.stage import set_model
from guie.training.stage_data import StageData
from guie.training.step import train_mode
from guie.training.tasks import build_task

SIZE_PX, CLASSES, BATCH, WORKERS, VIEWS = 112, 4000, 256, 2, 2


class Bench:
    """A frozen stage over photographs."""

    def __init__(self, folder: Path, images: int):
        values = {
            "name": "bench",
            "out": str(folder),
            "data": {"manifest": "none", "workers": WORKERS},
            "model": timm_model("vit_tiny_patch16_224", SIZE_PX),
            "train": {
                "epochs": 1.0,
                "batch_size": BATCH,
                "cached_views": VIEWS,
                "lr": {"head": 1e-3, "classes": 1e-2},
                "augment": {"flip": 0.5, "color": 0.2},
            },
        }
        config = config_from(values, RunConfig)
        names = [file.name for file in photographs(folder, images, 375)]
        labels = [f"d/{number:06d}" for number in range(CLASSES)]
        self.rows = pd.DataFrame({"image_path": names, "label": labels[:images], "domain": "d"})
        self.rows["split"] = "train"
        self.stage, self.accelerator = config.stages[0], Accelerator()
        manifest = Manifest(self.rows, folder, folder / "none", Sidecar())
        guard = SimpleNamespace(check=raise_fault)
        self.run = Run(self.accelerator, config, folder / "bench", guard, manifest, None)
        known = pd.DataFrame({"image_path": labels, "label": labels, "domain": "d"})
        self.run.classes = classes_of(known)
        self.task = build_task(config, self.run.classes).to(self.accelerator.device)
        self.preprocess = set_model(self.task, config, 0, range(CLASSES))
        self.optimizer = build_optimizer(self.task, self.stage)
        augment = Augment(self.stage.augment)
        self.dataset = TrainDataset(self.rows, labels, folder, augment, self.preprocess, (0, 0))
        self.sampler = Sampler(self.rows["domain"], "mixed", BATCH, (0, 0))

    def computed(self) -> StageData:
        return StageData(self.run, self.task, self.preprocess, {})

    def images(self) -> Iterator[Batch]:
        batches = RankBatches(self.sampler, 0, 10**6, 0, 1)
        return iter(TrainLoader(self.dataset, batches, WORKERS))

    def step(self, batch: Batch) -> None:
        """A step as `train.py` takes it."""
        train_mode(self.task, self.stage)
        set_learning_rates(self.optimizer, self.stage, 0, 1000)
        self.task(batch.to(self.accelerator.device))[0].backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def rate(self, work: Way, steps: int) -> float:
        """Images per second of so many batches, the first left out."""
        seconds_of(work)
        return steps * BATCH / seconds_of(lambda: [work() for _ in range(steps)])


def compare(bench: Bench) -> dict[str, float]:
    """Images per second of everything."""
    made: list[StageData] = []
    seconds = seconds_of(lambda: made.append(bench.computed()))
    data, rates = made[0], {"computing the features": VIEWS * len(bench.rows) / seconds}
    images = bench.images()
    rates["through the backbone"] = bench.rate(lambda: bench.step(next(images)), 4)
    batch = next(images)
    rates["  the same, images ready in memory"] = bench.rate(lambda: bench.step(batch), 4)
    cached = data.feature_batches(RankDraws(bench.sampler, 0, 10**6, 0, 1))
    rates["from cached features"] = bench.rate(lambda: bench.step(next(cached)), 100)
    rates["  drawing and reading alone"] = bench.rate(lambda: next(cached), 100)
    batch = next(cached)
    rates["  head, loss and optimiser alone"] = bench.rate(lambda: bench.step(batch), 100)
    return rates


def main() -> None:
    args = arguments(__doc__, images=512)
    with tempfile.TemporaryDirectory() as folder:
        rates = compare(Bench(Path(folder), args.images))
    through = rates["through the backbone"]
    rows = ((name, rate, rate / through) for name, rate in rates.items())
    show(["", "images/s", "ratio"], rows, f"{CLASSES} classes, batches of {BATCH}")
    reading = rates["from cached features"] / rates["  drawing and reading alone"]
    print(f"of a cached step, drawing and reading take {reading:.0%}; the rest is arithmetic")


if __name__ == "__main__":
    main()
