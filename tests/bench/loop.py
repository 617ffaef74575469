"""What the training loop costs beside the model: one epoch of train.py, timed from outside.

python tests/bench/loop.py [--images 512] [--batch-size 64] [--workers 2]

ViT-Ti/16 at 112 px, random weights, drawn photographs of 500 px, no validation. The first steps are
left out. Shares of the main process: wall time in which it waits for a batch, and CPU time that is
neither the model's nor the optimiser's. Loader processes need cores of their own: where they share
those of the model, the wait tells of the machine, not of the loop.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import torch
from common import arguments, photographs, show, timm_model, wall_and_cpu

import train
from guie.config.loading import to_yaml
from guie.data.loader import Prefetcher
from guie.data.manifest import save_manifest
from guie.training import loop as training_loop

WARM_UP = 2  # steps


class Watch:
    """Wall and CPU seconds of the main process, in all and in what it was told to time."""

    def __init__(self) -> None:
        self.spent: dict[str, np.ndarray] = {}

    def timed(self, name: str, call: Callable) -> Callable:
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = wall_and_cpu()
            try:
                return call(*args, **kwargs)
            finally:
                self.spent[name] = self.spent.get(name, 0.0) + wall_and_cpu() - began

        return timed

    def batches(self, following: Callable) -> Callable:
        """A loader's `__next__`, the wait for each batch timed; the clock starts after warm-up."""
        following, taken = self.timed("waiting for batches", following), count()

        def next_batch(batches: Prefetcher) -> dict[str, Any]:
            now = wall_and_cpu()
            if next(taken) == WARM_UP:
                self.spent.clear()
                self.began = now
            # Up to the last batch's start: nobody asks for one more.
            self.ended, self.counted = now, dict(self.spent)
            return following(batches)

        return next_batch


def configure(folder: Path, images: int, batch_size: int, workers: int) -> Path:
    """A run's config, its manifest and its images."""
    names = [file.name for file in photographs(folder, images, side=500)]
    table = pd.DataFrame({"image_path": names, "domain": "d", "split": "train", "role": "train"})
    table["label"] = [f"d/{number // 4}" for number in range(images)]
    save_manifest(table, folder / "mix.csv")
    config = {
        "name": "loop",
        "out": str(folder / "runs"),
        "data": {"manifest": str(folder / "mix.csv"), "workers": workers},
        "model": timm_model("vit_tiny_patch16_224", 112),
        "train": {
            "epochs": 1,
            "batch_size": batch_size,
            "lr": {"backbone": 1e-4, "head": 1e-3, "classes": 1e-2},
            "augment": {"flip": 0.5, "color": 0.2, "erase": 0.2},
        },
    }
    path = folder / "loop.yaml"
    path.write_text(to_yaml(config), encoding="utf-8")
    return path


def main() -> None:
    args = arguments(__doc__, images=512, batch_size=64, workers=2)
    watch = Watch()
    model, optimiser = training_loop.gradients_within_memory, torch.optim.AdamW.step
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(training_loop, "gradients_within_memory", watch.timed("model", model)),
        mock.patch.object(torch.optim.AdamW, "step", watch.timed("optimiser", optimiser)),
        mock.patch.object(Prefetcher, "__next__", watch.batches(Prefetcher.__next__)),
    ):
        train.main(["--config", str(configure(Path(folder), **vars(args)))])
    whole = watch.ended - watch.began
    watch.counted["the rest of the loop"] = whole - sum(watch.counted.values())
    rows = ((name, *(spent / whole)) for name, spent in watch.counted.items())
    show(["share of the main process", "wall", "CPU"], rows)


if __name__ == "__main__":
    main()
