"""The data of a stage: images, or stored features of a frozen backbone and of teachers.

Shapes: B images of a batch, N of a data set, D dimensions of an embedding, F features of a backbone, R
numbers of a row, which are the features and the shape of an image.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import methodcaller
from typing import Any, cast

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from guie.base.devices import from_main
from guie.config.model import ModelConfig
from guie.data.augmentation import Augment
from guie.data.dataset import Batch, TrainDataset
from guie.data.loader import (
    Prefetcher,
    TeacherFeatures,
    TrainLoader,
    add_generic,
    with_teachers,
)
from guie.data.preprocess import Preprocess
from guie.data.sampling import RankBatches, Sampler
from guie.evaluation.validation import flat_scores, quick_scores
from guie.models.backbones.base import Backbone
from guie.models.embedder import Embedder, build_preprocess
from guie.models.head import SHAPE
from guie.rows.embedding import BLOCK, Embeds, embed_files, recipe, stored_features
from guie.rows.store import Rows
from guie.rows.views import drawn_rows, stored_views
from guie.training.run import Run
from guie.training.tasks.base import Task
from guie.training.teachers import Teacher

FEATURES = ".cache/features"  # in the folder that has the runs


class StageData:
    """What a stage trains and validates on.

    With `cached_views`, stored features of the frozen backbone replace the images. They are read from
    `<out>/.cache/features`, or computed. Every process must make it.

    Attributes: `rows`, the training rows; `sampler`; `total_steps`; `dataset`, the training images;
    `views`, stored rows of each view of these; `val`, the val split; `val_rows`, its stored rows; `batches`,
    of this process, from the current step on. What the stage does not have is None.

    Args:
        preprocess: of the images that are scored.
        draws: state of a loss-driven sampler before the current step; empty at the start of a stage.

    Raises UserError if no batch can be formed, an image cannot be read, a feature overflows float16, or
    the disk is full.
    """

    def __init__(self, run: Run, task: Task, preprocess: Preprocess, draws: dict[str, Any]):
        config, number, manifest = run.config, run.state.stage, run.manifest
        self.run, self.config, self.preprocess = run, config.stages[number], preprocess
        self.rows, seed = run.rows[number], (config.seed, number)
        self.sampler = Sampler(
            self.rows["domain"],
            self.config.sampler,
            self.config.batch_size,
            seed,
            label_of_row=self.rows["label"],
            weight_of_row=self.rows.get("weight"),
            shard_of_row=self.rows.get("shard"),
        )
        self.sampler.load(draws)
        self.total_steps = max(1, round(self.config.epochs * self.sampler.steps_per_epoch))
        backbone, augment = task.embedder.backbone, self.config.augment
        self.dataset = TrainDataset(
            self.rows,
            run.classes.labels,
            manifest.root,
            Augment(augment),
            build_preprocess(config.model, backbone, preprocess.size_px, augment.fit),
            seed,
            manifest.sidecar.decode,
        )
        self.val = manifest.split("val") if "val" in manifest.table["split"].unique() else None
        self.views: Sequence[Rows] | None = None
        self.val_rows: Rows | None = None
        self.batches = self._open_batches(task)

    def _open_batches(self, task: Task) -> TrainLoader | Prefetcher[Batch]:
        accelerator, stage = self.run.accelerator, self.config
        images = RankBatches(
            self.sampler,
            self.run.state.step,
            self.total_steps,
            accelerator.process_index,
            accelerator.num_processes,
            stage.repeated_views,
            self.dataset.paths,
        )
        taught = self._teacher_features(task, images)
        if stage.cached_views:
            self._load_features(task.embedder.backbone, stage.cached_views)
            batches = with_teachers(self.feature_batches(images), taught)
            return Prefetcher(batches, methodcaller("to", accelerator.device))
        workers = self.run.config.data.workers
        load = partial(TrainLoader, workers=workers, device=accelerator.device)
        if stage.repeated_views:
            return load(self.dataset, images, taught=taught)
        if task.retention and (generic := task.retention.generic):
            assert self.run.generic  # loaded with the config
            add_generic(self.dataset, images, self.run.generic, generic.batch_size)
        return load(self.dataset, images)

    def _teacher_features(self, task: Task, images: RankBatches) -> TeacherFeatures | None:
        """Return the teachers' embeddings (B, T) for each batch if the stage has fixed views, else None."""
        views = self.config.cached_views or self.config.repeated_views
        if not views or self.run.config.task.name != "distillation":
            return None
        teachers = cast("list[Teacher]", task.teachers)
        each = teacher_views(self.run, teachers, self.dataset, views)

        def features() -> Iterator[Tensor]:
            for visits_B, rows_B in images.draws():
                found = [drawn_rows(stored, visits_B, place_N[rows_B]) for place_N, stored in each]
                yield torch.from_numpy(np.concatenate(found, axis=1))

        return features

    def _load_features(self, backbone: Backbone, views: int) -> None:
        run, accelerator = self.run, self.run.accelerator
        own = run.config.model.backbone.model_copy(update={"stride_px": backbone.stride_px})
        model = run.config.model.model_copy(update={"backbone": own, "head": None})
        tower = TowerModel(Tower(backbone), self.preprocess, model)
        # A copy, because loaders need the original on the CPU
        preprocess = copy.deepcopy(self.preprocess).to(accelerator.device)
        folder, workers = run.folder.parent / FEATURES, run.config.data.workers
        self.views = stored_views(
            accelerator,
            ViewEmbedder(tower.embedder, preprocess.normalised).to(accelerator.device),
            recipe(tower, accelerator.mixed_precision),
            self.dataset,
            views,
            folder,
            workers,
            check=run.guard.check,
        )
        if self.val is not None:
            self.val_rows = stored_features(
                accelerator,
                tower,
                self.val["image_path"],
                run.manifest.root,
                folder,
                workers=workers,
                check=run.guard.check,
                decode=run.manifest.sidecar.decode,
            )

    def feature_batches(self, images: RankBatches) -> Iterator[Batch]:
        """Yield the batches of `TrainLoader` on the CPU, with features in place of images."""
        assert self.views is not None
        for visits_B, rows_B in images.draws():
            features_BF, shapes_B3 = _split(drawn_rows(self.views, visits_B, rows_B))
            yield Batch(
                label_B=torch.from_numpy(self.dataset.labels[rows_B]).long(),
                row_B=torch.from_numpy(rows_B),
                shapes_B3=shapes_B3,
                feat_BF=features_BF,
            )

    def validate(self, embedder: Embedder) -> dict[str, float] | None:
        """Return R@1 and mMP@5, means over domains, and R@1 of each domain, the same in every process.

        In a frozen stage only the head runs, on stored features of the val images. Keys are those of
        metrics.jsonl: `val_r_at_1`, `val_mmp_at_5`, `val_r_at_1/<domain>`. Returns None if the manifest has
        no val split. Raises Stopped if the run is interrupted.
        """
        run, val = self.run, self.val
        if val is None:
            return None
        if self.val_rows is not None:
            emb_ND = embed_rows(run.accelerator, embedder, self.val_rows)
        else:
            emb_ND = embed_files(
                run.accelerator,
                embedder,
                self.preprocess,
                [run.manifest.file(path) for path in val["image_path"]],
                run.manifest.sidecar.decode,
                workers=run.config.data.workers,
                title="val",
                check=run.guard.check,
            )
        return flat_scores(from_main(run.accelerator, lambda: quick_scores(emb_ND, val)))


class Tower(nn.Module):
    """A backbone that returns rows."""

    cache_key = "Tower"

    def __init__(self, backbone: Backbone):
        super().__init__()
        self.backbone, self.dim = backbone, backbone.dim + SHAPE

    def forward(self, images_BCHW: Tensor, shapes_B3: Tensor) -> Tensor:
        """Map (B, 3, S, S) preprocessed images and their shapes (B, 3) to rows (B, R)."""
        return torch.cat([self.backbone(images_BCHW).float(), shapes_B3], dim=1)


@dataclass(frozen=True)
class TowerModel:
    """A backbone with the preprocessing and config that identify its features."""

    embedder: Tower
    preprocess: Preprocess
    config: ModelConfig


class ViewEmbedder(nn.Module):
    """An embedder of the images of `TrainDataset`, uint8, which `prepare` maps to its input."""

    def __init__(self, embedder: Embeds, prepare: Callable[[Tensor], Tensor]):
        super().__init__()
        self.embedder, self.prepare, self.dim = embedder, prepare, embedder.dim

    def forward(self, images_BCHW: Tensor, shapes_B3: Tensor) -> Tensor:
        """Map images (B, 3, S, S) to (B, dim); shapes (B, 3) are those of the original images."""
        return self.embedder(self.prepare(images_BCHW), shapes_B3)


@torch.inference_mode()
def embed_rows(accelerator: Accelerator, embedder: Embedder, rows: Rows) -> np.ndarray:
    """Map (N, R) rows through the head alone to (N, D) float32, in every process."""
    embedder.eval()
    found = [np.zeros((0, embedder.dim), np.float32)]
    for start in range(0, len(rows), BLOCK):
        features_BF, shapes_B3 = _split(rows[start : start + BLOCK])
        with accelerator.autocast():
            emb_BD = embedder.embed(
                features_BF.to(accelerator.device), shapes_B3.to(accelerator.device)
            )
        found.append(emb_BD.float().cpu().numpy())
    return np.concatenate(found)


def _split(rows_BR: np.ndarray) -> tuple[Tensor, Tensor]:
    """Split rows into features (B, F) and shapes (B, 3)."""
    rows = torch.from_numpy(rows_BR)
    return rows[:, :-SHAPE].contiguous(), rows[:, -SHAPE:].contiguous()


def teacher_views(
    run: Run, teachers: Sequence[Teacher], dataset: TrainDataset, views: int
) -> list[tuple[np.ndarray, Sequence[Rows]]]:
    """Embed every view with the teachers of its image, or read the embeddings from the cache.

    Every process must call it. Raises UserError as `stored_views`.

    Returns for each teacher the place (N,) of each training row in a view, -1 if it is not taught, and the
    embeddings of each view.
    """
    accelerator = run.accelerator
    each: list[tuple[np.ndarray, Sequence[Rows]]] = []
    for teacher in teachers:
        rows = np.flatnonzero(teacher.classes_C.cpu().numpy()[dataset.labels])
        place_N = np.full(len(dataset), -1)
        place_N[rows] = np.arange(len(rows))
        drawn, model = _drawn_for(teacher, dataset), teacher.model
        seen = {"seen": drawn.preprocess.recipe()}  # the teacher's input
        found = stored_views(
            accelerator,
            ViewEmbedder(model.embedder, model.preprocess).to(accelerator.device),
            recipe(model, accelerator.mixed_precision) | seen,
            drawn,
            views,
            run.folder.parent / FEATURES,
            run.config.data.workers,
            rows=rows,
            title=f"embeddings by {teacher.name}",
            check=run.guard.check,
        )
        each.append((place_N, found))
    return each


def _drawn_for(teacher: Teacher, dataset: TrainDataset) -> TrainDataset:
    """Return the data set of the same views, at the teacher's image size if that is larger."""
    theirs, own = teacher.model.preprocess.recipe(), dataset.preprocess.recipe()
    looks = theirs.get("looks", [theirs])
    own["size_px"] = max(own["size_px"], *(look.get("whole_px", look["size_px"]) for look in looks))
    larger = copy.copy(dataset)
    larger.preprocess = Preprocess(**own)
    return larger
