"""A frozen stage as train.py sets it up, and the same through the backbone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator

from guie.config import RunConfig, config_from
from guie.data.augmentation import Augment
from guie.data.dataset import TrainDataset, classes_of, collated, training_rows
from guie.data.manifest import Manifest
from guie.data.sampling import RankDraws, Sampler
from guie.data.sampling.streams import key
from guie.models.embedder import build_preprocess
from guie.rows.embedding import embed_files
from guie.training.frozen import FrozenData, frozen_data
from guie.training.optim import build_optimizer, freeze, set_learning_rates
from guie.training.step import train_mode
from guie.training.tasks import build_task

SEED = (0, 0)
BATCH = 24


def run_config(out: Path, **stage: Any) -> RunConfig:
    return config_from(
        {
            "name": "t",
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

    def __init__(self, manifest: Manifest, out: Path, seed: tuple[int, int] = SEED, **stage: Any):
        self.config, self.manifest = run_config(out, **stage), manifest
        self.stage = self.config.stages[0]
        rows = training_rows(manifest)
        torch.manual_seed(0)
        self.task = build_task(self.config, classes_of(rows))
        freeze(self.task, self.stage.lr)
        self.optimizer = build_optimizer(self.task, self.stage)
        self.backbone = self.task.embedder.backbone
        self.backbone.set_image_size(32)
        self.preprocess = build_preprocess(self.config.model, self.backbone, 32)
        augment = Augment(self.stage.augment)
        self.dataset = TrainDataset(
            rows, classes_of(rows).labels, manifest.root, augment, self.preprocess, seed
        )
        self.sampler = Sampler(rows["domain"], "balanced", BATCH, seed)

    def data(self) -> FrozenData:
        return frozen_data(
            Accelerator(),
            self.config,
            self.stage,
            self.backbone,
            self.preprocess,
            self.dataset,
            self.manifest,
        )

    def draws(self, start: int, end: int) -> RankDraws:
        return RankDraws(self.sampler, start, end, 0, 1)

    def images(self, start: int, end: int):
        """The same batches, made as for a stage that goes through the backbone."""
        for visits, rows in self.draws(start, end):
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
