"""Evaluate a model with mteb, an external benchmark: its image tasks and its scoring code.

    >>> import mteb
    >>> from guie.models import open_model
    >>> from guie.evaluation.mteb import RunEncoder
    >>> run = RunEncoder(open_model("runs/demo"))  # doctest: +SKIP
    >>> mteb.evaluate(run, mteb.get_tasks(tasks=["CUB200I2IRetrieval"]), num_proc=2)  # doctest: +SKIP

This needs the packages in requirements/judges.txt (`make judges` installs them). Only `validate.py --mteb`
imports this module.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import mteb
import numpy as np
from datasets import Dataset, Image
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.models import ModelMeta
from mteb.models.abs_encoder import AbsEncoder
from mteb.models.model_meta import ScoringFunction
from torch import Tensor

from guie.base.devices import make_accelerator
from guie.base.errors import UserError
from guie.data.dataset import Samples, as_batch, image_shapes
from guie.data.manifest import Manifest, load_manifest
from guie.models import LoadedModel, open_model
from guie.rows.embedding import embed_dataset, recipe

SHOWN = ("hit_rate_at_1", "map_at_5", "ndcg_at_10")  # the main metrics of these tasks


def score_by_mteb(args: argparse.Namespace) -> None:
    """Score a model as `validate.py --mteb` asks, and print the scores. Raises UserError."""
    if args.mteb:
        public = mteb.get_tasks(
            task_types=["Any2AnyRetrieval"], modalities=["image"], exclusive_modality_filter=True
        )
        known = {task.metadata.name: task for task in public}
        if unknown := [name for name in args.mteb if name not in known]:
            fault = f"{unknown[0]}: not an image-to-image retrieval task"
            raise UserError(f"{fault}; mteb has {', '.join(known)}")
        tasks = [known[name] for name in args.mteb]
    else:
        tasks = [ManifestTask(load_manifest(args.manifest, args.root), args.split)]
    try:
        scored = mteb.evaluate(
            RunEncoder(open_model(args.model)),
            tasks,
            encode_kwargs={"batch_size": args.batch_size or 128},
            cache=mteb.ResultCache(args.out),
            overwrite_strategy="only-missing" if args.mteb else "always",
            num_proc=(2 if args.workers is None else args.workers) or None,
        )
    except ConnectionError as error:
        raise UserError(f"--mteb: {error}") from error
    for result in scored.task_results:
        for split, (row, *_) in result.scores.items():
            message = ", ".join(f"{metric} {row[metric]:.4f}" for metric in SHOWN)
            print(f"{result.task_name} {split}: {message}")


class RunEncoder(AbsEncoder):
    """A run, an ensemble or a library's model as an mteb encoder, for images only.

    Embeddings equal those of embed.py but for decoding: mteb's loader rotates an image by its EXIF tag,
    which the challenge's scorer does not.
    """

    def __init__(self, model: LoadedModel):
        self.model = model
        self.accelerator = make_accelerator()
        model.embedder.to(self.accelerator.device)
        made_of = recipe(model, self.accelerator.mixed_precision)
        self.mteb_model_meta = ModelMeta.create_empty(
            {
                "name": f"guie/{Path(model.source).name.replace(':', '-')}",
                # mteb caches results by the revision: a hash of weights and preprocessing.
                "revision": sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:16],
                "n_parameters": sum(weight.numel() for weight in model.embedder.parameters()),
                "embed_dim": model.embedder.dim,
                "framework": ["PyTorch"],
                "similarity_fn_name": ScoringFunction.COSINE,
                "modalities": ["image"],
            }
        )

    def encode(
        self, inputs: Any, *, task_metadata: Any, prompt_type: Any = None, **kwargs: Any
    ) -> np.ndarray:
        """Embed the N rows of mteb's loader in order: (N, D) float32 of unit length.

        As many processes as the loader has (`num_proc`) read its data set. Raises UserError if the task needs
        more than images, for example texts.
        """
        needed = list(task_metadata.get_modalities(prompt_type))
        if needed != ["image"]:
            raise UserError(
                f"{task_metadata.name}: needs embeddings of {' and '.join(needed)};"
                f" {self.model.source} embeds only images; choose an image task"
            )
        return embed_dataset(
            self.accelerator,
            self.model.embedder,
            TaskImages(inputs.dataset, self.model.preprocess),
            batch_size=kwargs.get("batch_size", 128),
            workers=inputs.num_workers,
            title=task_metadata.name,
        )


class TaskImages(Samples):
    """The images of a task's rows, after the preprocessing that is exported."""

    def __init__(self, rows: Any, preprocess: Callable[[Tensor], Tensor]):
        self.rows, self.preprocess = rows, preprocess

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Return the network's input and the image's shape (3,), like `EvalDataset`. Raises UserError."""
        try:
            image = self.rows[index]["image"].convert("RGB")
        except Exception as error:  # Pillow raises many kinds for damaged files
            name = self.rows.select_columns("id")[index]["id"]
            raise UserError(f"{name}: cannot be decoded: {error}") from error
        image_1CHW = as_batch(np.asarray(image))
        return self.preprocess(image_1CHW)[0], image_shapes(image_1CHW)[0]


class ManifestTask(AbsTaskRetrieval):
    """One split of a manifest with one index over all domains, like the protocol `merged`.

    A query's own image is removed from its ranking by its path. Queries without a positive are left out.
    Raises UserError if there is no other.
    """

    ignore_identical_ids = True

    def __init__(self, manifest: Manifest, split: str):
        self.metadata = TaskMetadata(
            name=f"{manifest.path.stem}-{split}",
            description=f"Split {split} of {manifest.path}",
            type="Any2AnyRetrieval",
            category="i2i",
            modalities=["image"],
            dataset={"path": str(manifest.path), "revision": "local"},
            eval_splits=[split],
            eval_langs=["zxx-Zxxx"],  # no language
            main_score="hit_rate_at_1",
        )
        super().__init__()
        table = manifest.split(split)
        queries, index = (table[table["role"].isin([role, "both"])] for role in ("query", "index"))
        members = defaultdict(set)
        for path, labels in zip(index["image_path"], index["label"], strict=True):
            for label in labels.split("|"):
                members[label].add(path)
        positives = {}
        for path, labels in zip(queries["image_path"], queries["label"], strict=True):
            shared = set().union(*(members[label] for label in labels.split("|"))) - {path}
            positives[path] = dict.fromkeys(sorted(shared), 1)
        if not any(positives.values()):
            fault = f"no query of split {split} has a positive in its index"
            raise UserError(f"{manifest.path}: {fault}")
        of_queries, of_index = (
            Dataset.from_dict(
                {
                    "id": rows["image_path"].tolist(),
                    "image": [str(manifest.file(path)) for path in rows["image_path"]],
                }
            ).cast_column("image", Image())
            for rows in (queries, index)
        )
        data = RetrievalSplitData(
            queries=of_queries, corpus=of_index, relevant_docs=positives, top_ranked=None
        )
        self.dataset = {"default": {split: data}}
        self.data_loaded = True  # else mteb loads the data, then unloads it with the metadata
