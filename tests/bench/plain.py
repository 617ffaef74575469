"""train.py against a plain loop of the same model, images and views: images a second, wall and CPU.

python tests/bench/plain.py [--steps 30] [--batch-size 64] [--rounds 3]

The plain loop is what you would write instead: timm, torchvision's transforms with Pillow, a DataLoader, an
ArcFace with the whole logits, AdamW in groups, a one-cycle schedule. Both train a ViT-Ti/16 at 112 px on the
images of mini-uned below GUIE_REAL, with random crops and flips, in processes of their own that take turns.
The first steps are left out. CPU time is that of the process and its two loaders.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import psutil
import timm
import torch
from common import RATES, arguments, in_own_process, real_benchmark, show, timm_model
from PIL import Image
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

import train
from guie.config.loading import to_yaml
from guie.data.manifest import save_manifest
from guie.training import loop as training_loop

WARM_UP, WORKERS = 5, 2
SIZE_PX, DIM, MARGIN_RAD, SCALE = 112, 64, 0.3, 30.0


class Clock:
    """Wall and CPU seconds of this process and its children, from step `warm_up` to the last."""

    def __init__(self, steps: int, warm_up: int = WARM_UP):
        self.steps, self.warm_up, self.begun = steps, warm_up, 0

    def step_begins(self) -> None:
        """Call it as each step begins; the last step is not counted."""
        if self.begun == self.warm_up:
            self.began = self._now()
        self.begun += 1
        if self.begun == self.steps:
            self.spent = self._now() - self.began

    def _now(self) -> np.ndarray:
        own = psutil.Process()
        times = [process.cpu_times() for process in (own, *own.children(recursive=True))]
        return np.array([time.perf_counter(), sum(one.user + one.system for one in times)])


class Views(Dataset):
    """Random views of images, as torchvision makes them."""

    def __init__(self, files: list[Path], labels: np.ndarray):
        self.files, self.labels = files, labels
        self.transform = transforms.Compose(
            [
                transforms.RandomResizedCrop(SIZE_PX, (0.5, 1.0), (0.8, 1.25), interpolation=3),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize([0.5] * 3, [0.5] * 3),
            ]
        )

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.files[index]) as image:
            return self.transform(image.convert("RGB")), self.labels[index]


def plain_loop(manifest: Path, root: Path, args: argparse.Namespace) -> np.ndarray:
    table = pd.read_csv(manifest)
    names = table["label"].unique()
    labels = pd.Index(names).get_indexer(table["label"])
    loader = DataLoader(
        Views([root / path for path in table["image_path"]], labels),
        batch_size=args.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=WORKERS,
    )
    backbone = timm.create_model("vit_tiny_patch16_224", img_size=SIZE_PX, num_classes=0)
    head = nn.Linear(backbone.num_features, DIM)
    classes = nn.Parameter(functional.normalize(torch.randn(len(names), DIM), dim=1))
    parameters = {
        "backbone": backbone.parameters(),
        "head": head.parameters(),
        "classes": [classes],
    }
    groups = [{"params": list(parameters[name]), "lr": rate} for name, rate in RATES.items()]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, list(RATES.values()), args.steps)
    backbone.train()
    clock = Clock(args.steps)
    batches = (batch for _ in cycle([0]) for batch in loader)
    for images, label in islice(batches, args.steps):
        clock.step_begins()
        emb = functional.normalize(head(backbone(images)), dim=1)
        cos = (emb @ functional.normalize(classes, dim=1).T).clamp(-1 + 1e-7, 1 - 1e-7)
        angle = torch.acos(cos[torch.arange(len(label)), label]) + MARGIN_RAD
        cos[torch.arange(len(label)), label] = torch.cos(angle.clamp(max=math.pi))
        loss = functional.cross_entropy(SCALE * cos, label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return clock.spent


def by_train(manifest: Path, root: Path, args: argparse.Namespace) -> np.ndarray:
    model = timm_model("vit_tiny_patch16_224", SIZE_PX) | {"head": {"dim": DIM}}
    model["image"] |= {"mean": [0.5] * 3, "std": [0.5] * 3}
    config = {
        "name": "plain",
        "out": str(manifest.parent),
        "data": {"manifest": str(manifest), "root": str(root), "workers": WORKERS},
        "model": model,
        "task": {"loss": {"name": "arcface", "margin_rad": MARGIN_RAD, "scale": SCALE}},
        "train": {
            "epochs": 1,
            "batch_size": args.batch_size,
            "lr": RATES,
            "augment": {"fit": "squash", "flip": 0.5},
        },
    }
    return timed_training(manifest.parent, config, args.steps)


def timed_training(folder: Path, config: dict, steps: int, warm_up: int = WARM_UP) -> np.ndarray:
    """Wall and CPU seconds of train.py from step `warm_up` to this one."""
    clock, train_mode = Clock(steps, warm_up), training_loop.train_mode

    def timed(*given: object) -> None:
        clock.step_begins()
        train_mode(*given)

    path = folder / "timed.yaml"
    path.write_text(to_yaml(config), encoding="utf-8")
    with mock.patch.object(training_loop, "train_mode", timed):
        train.main(["--config", str(path), "--overwrite"])
    return clock.spent


def main() -> None:
    args = arguments(__doc__, steps=30, batch_size=64, rounds=3)
    real, _ = real_benchmark()
    table = real.split("train").sample(frac=1.0, random_state=0)
    loops: dict[str, Callable] = {"plain loop": plain_loop, "train.py": by_train}
    taken: dict[str, list[np.ndarray]] = {name: [] for name in loops}
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict("os.environ", GUIE_CACHE=folder):
        manifest = Path(folder) / "mix.csv"
        save_manifest(table[: (args.steps + 1) * args.batch_size], manifest)
        for _ in range(args.rounds):
            for name, one in loops.items():
                taken[name].append(in_own_process(one, manifest, real.root, args))
    images = (args.steps - WARM_UP - 1) * args.batch_size
    seconds = {name: np.array(rounds) for name, rounds in taken.items()}
    rows = [(name, *(images / np.median(each, axis=0))) for name, each in seconds.items()]
    show(["images a second", "wall", "CPU"], rows)
    gain = seconds["plain loop"] / seconds["train.py"]
    for kind, ratios in zip(("wall", "CPU"), gain.T, strict=True):
        least, most = ratios.min(), ratios.max()
        print(f"\nby {kind} {np.median(ratios):.2f} times as fast ({least:.2f} to {most:.2f})")


if __name__ == "__main__":
    main()
