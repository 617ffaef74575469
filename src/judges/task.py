"""Image-to-image retrieval: mteb's public tasks, and a split of a manifest as a task."""

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
    """Return the tasks of these names. Raises UserError for an unknown task, or one with texts."""
    tasks = mteb.get_tasks(
        task_types=["Any2AnyRetrieval"], modalities=["image"], exclusive_modality_filter=True
    )
    known = {task.metadata.name: task for task in tasks}
    for name in names:
        if name not in known:
            raise UserError(
                f"{name}: not an image-to-image retrieval task; mteb has {', '.join(known)}"
            )
    return [known[name] for name in names]


class ManifestTask(AbsTaskRetrieval):
    """One split of a manifest with one index over all domains, like the protocol `merged`.

    Images that share a label are relevant to each other. Images are identified by their paths, by
    which a query is removed from its own ranking. Queries without a positive are left out.

    Args:
        manifest: its images are opened when they are embedded.
        split: a split whose rows are queries and index.

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
        self.data_loaded = True  # else mteb loads the data, then unloads it with the metadata


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
    """Return, for each query, the index images that share a label with it, except itself."""
    members = defaultdict(set)
    for path, labels in zip(index["image_path"], index["label"], strict=True):
        for label in labels.split("|"):
            members[label].add(path)
    found = {}
    for path, labels in zip(queries["image_path"], queries["label"], strict=True):
        shared = set().union(*(members[label] for label in labels.split("|"))) - {path}
        found[path] = dict.fromkeys(sorted(shared), 1)
    return found
