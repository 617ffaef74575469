"""A frozen stage as train.py sets it up, and the same through the backbone."""

from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator

from guie.config import RunConfig, config_from
from guie.data.augmentation import Augment
from guie.data.dataset import TrainDataset, collated
from guie.data.manifest import Manifest
from guie.data.sampling import RankBatches, Sampler
from guie.data.sampling.streams import key
from guie.rows.embedding import embed_files, raise_fault
from guie.training.optim import build_optimizer, set_learning_rates
from guie.training.run import Run
from guie.training.stage import set_model, train_mode
from guie.training.stage_data import StageData
from guie.training.tasks import build_task

BATCH = 24


def run_config(out: Path, seed: int = 0, **stage: Any) -> RunConfig:
    return config_from(
        {
            "name": "t",
            "seed": seed,
            "out": str(out),
            "data": {"manifest": "mix.csv", "workers": 0},
            "model": {
                "backbone": {"library": "open_clip", "name": "guie-tiny"},
                "image": {"size_px": 32},
                "head": {"norm": "bn"},
            },
            "train": {
                "epochs": 4.0,
                "batch_size": BATCH,
                "cached_views": 3,
                "lr": {"head": 1e-3, "classes": 1e-2},
                "augment": {"flip": 0.5, "color": 0.3},
                **stage,
            },
        },
        RunConfig,
    )


class Stage:
    """A frozen stage as `train.py` sets it up, one process."""

    def __init__(self, manifest: Manifest, out: Path, seed: int = 0, **stage: Any):
        self.config, self.manifest = run_config(out, seed, **stage), manifest
        self.stage = self.config.stages[0]
        guard = SimpleNamespace(check=raise_fault)
        self.run = Run(Accelerator(), self.config, out / "t", guard, manifest, None)
        torch.manual_seed(0)
        self.task = build_task(self.config, self.run.classes)
        self.preprocess = set_model(self.task, self.config, 0, range(len(self.run.classes)))
        self.optimizer = build_optimizer(self.task, self.stage)
        self.backbone = self.task.embedder.backbone

    def data(self) -> StageData:
        return StageData(self.run, self.task, self.preprocess, {})

    @cached_property
    def dataset(self) -> TrainDataset:
        augment, rows = Augment(self.stage.augment), self.run.rows[0]
        labels, root = self.run.classes.labels, self.manifest.root
        return TrainDataset(rows, labels, root, augment, self.preprocess, (self.config.seed, 0))

    def draws(self, start: int, end: int) -> RankBatches:
        rows, seed = self.run.rows[0], (self.config.seed, 0)
        return RankBatches(Sampler(rows["domain"], "balanced", BATCH, seed), start, end, 0, 1)

    def images(self, start: int, end: int):
        """The same batches, made as for a stage that goes through the backbone."""
        for visits, rows in self.draws(start, end).draws():
            samples = [
                self.dataset[visit % 3, key(self.dataset.paths[row]), row]
                for visit, row in zip(visits.tolist(), rows.tolist(), strict=True)
            ]
            yield collated(samples).normalised(self.preprocess)

    def val_embeddings(self) -> np.ndarray:
        files = [self.manifest.file(p) for p in self.manifest.split("val")["image_path"]]
        embedder = self.task.embedder
        return embed_files(Accelerator(), embedder, self.preprocess, files, workers=0)

    def losses(self, batches) -> list[float]:
        found = []
        for step, batch in enumerate(batches):
            train_mode(self.task, self.stage)
            set_learning_rates(self.optimizer, self.stage, step, 40)
            loss, _ = self.task(batch)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            found.append(loss.item())
        return found
