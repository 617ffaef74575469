"""Retrieval of images by images: mteb's public tasks, and a split of a manifest as one more."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import mteb
import pandas as pd
from datasets import Dataset, Image
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData
from mteb.abstasks.task_metadata import TaskMetadata

from guie.base.errors import UserError
from guie.data.manifest import Manifest


def public_tasks(names: Sequence[str]) -> list[Any]:
    """The tasks of these names. Raises UserError for one that mteb has not, or that takes texts."""
    tasks = mteb.get_tasks(
        task_types=["Any2AnyRetrieval"], modalities=["image"], exclusive_modality_filter=True
    )
    known = {task.metadata.name: task for task in tasks}
    for name in names:
        if name not in known:
            raise UserError(
                f"{name}: not retrieval of images by images; mteb has {', '.join(known)}"
            )
    return [known[name] for name in names]


class ManifestTask(AbsTaskRetrieval):
    """Queries and index of one split, in one index over all domains: our `merged`.

    Relevant is what shares a label. An image is known by its path, and by that a query is taken out
    of its own ranking. Queries without a positive are left out, as ours are.

    Args:
        manifest: its images are opened when they are embedded.
        split: one whose rows are queries and index.

    Raises:
        UserError: no query of the split has a positive.
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
        self.dataset = {"default": {split: _data(manifest, split)}}
        self.data_loaded = True  # mteb unloads what it has loaded itself, and the metadata with it


def _data(manifest: Manifest, split: str) -> RetrievalSplitData:
    table = manifest.split(split)
    queries = table[table["role"].isin(["query", "both"])]
    index = table[table["role"].isin(["index", "both"])]
    positives = relevant(queries, index)
    if not any(positives.values()):
        raise UserError(f"{manifest.path}: no query of split {split} has a positive in its index")
    return RetrievalSplitData(
        queries=_images(manifest, queries),
        corpus=_images(manifest, index),
        relevant_docs=positives,
        top_ranked=None,
    )


def _images(manifest: Manifest, rows: pd.DataFrame) -> Dataset:
    paths = rows["image_path"].tolist()
    files = [str(manifest.file(path)) for path in paths]
    return Dataset.from_dict({"id": paths, "image": files}).cast_column("image", Image())


def relevant(queries: pd.DataFrame, index: pd.DataFrame) -> dict[str, dict[str, int]]:
    """For each query the images of the index that share a label with it, but for itself."""
    members = defaultdict(set)
    for path, labels in zip(index["image_path"], index["label"], strict=True):
        for label in labels.split("|"):
            members[label].add(path)
    found = {}
    for path, labels in zip(queries["image_path"], queries["label"], strict=True):
        shared = set().union(*(members[label] for label in labels.split("|"))) - {path}
        found[path] = dict.fromkeys(sorted(shared), 1)
    return found
