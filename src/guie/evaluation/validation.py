"""Validate during training: the merged val index, with the preprocessing that is exported."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from accelerate import Accelerator

from guie.base.devices import from_main
from guie.base.errors import UserError
from guie.data.manifest import Manifest
from guie.evaluation.embedding import Check, embed_files, raise_fault
from guie.evaluation.frozen import FrozenData, embed_rows
from guie.evaluation.knn import unit_vectors
from guie.evaluation.metrics import plain
from guie.evaluation.search import Images, Ranking, score_queries, searches, unanswerable
from guie.models.embedder import Embedder
from guie.models.ensemble import Ensemble
from guie.models.views import AnyPreprocess

QUICK = ("r_at_1", "mmp_at_5")


def refuse_unscorable(manifest: Manifest) -> None:
    """Raise UserError if no val query has a positive, so that `validate` would fail for any model."""
    rows = manifest.table[manifest.table["split"] == "val"]
    if rows.empty:
        return
    images = Images.of(rows)
    (search,) = searches("merged", images, images.domain_T)
    if not images.count_positives(search.query_Q, search.index_I).any():
        error = unanswerable(len(search.query_Q))
        raise UserError(f"{manifest.path}: split val: {error}")


def validate(
    accelerator: Accelerator,
    embedder: Embedder | Ensemble,
    manifest: Manifest,
    preprocess: AnyPreprocess,
    workers: int | None,
    frozen: FrozenData | None = None,
    check: Check = raise_fault,
) -> dict[str, float] | None:
    """Return R@1 and mMP@5, means over domains, and R@1 of each domain, the same in every process.

    With the data of a frozen stage, only the head runs, on cached features of the val images. Keys are
    those of metrics.jsonl: `val_r_at_1`, `val_mmp_at_5`, `val_r_at_1/<domain>`. Returns None if the
    manifest has no val split. For `check` see `embed_blocks`.
    """
    if "val" not in manifest.table["split"].unique():
        return None
    rows = manifest.split("val")
    if frozen:
        # A stage trains one model, and `frozen` was made from the same manifest.
        assert isinstance(embedder, Embedder) and frozen.val is not None
        emb_ND = embed_rows(accelerator, embedder, frozen.val)
    else:
        files = [manifest.file(path) for path in rows["image_path"]]
        emb_ND = embed_files(
            accelerator, embedder, preprocess, files, workers=workers, title="val", check=check
        )
    return flat_scores(from_main(accelerator, lambda: quick_scores(emb_ND, rows)))


def quick_scores(embeddings_TD: np.ndarray, table: pd.DataFrame) -> dict[str, Any]:
    """Return R@1 and mMP@5 over the merged index: the means over the domains, and of each domain.

    They equal those of `guie.evaluation.protocols.evaluating.evaluate`, which also raises the same errors.

    Returns {"r_at_1", "mmp_at_5", "domains": {name: {"r_at_1", "mmp_at_5"}}}.
    """
    images = Images.of(table)
    (search,) = searches("merged", images, images.domain_T)
    unit_TD = unit_vectors(embeddings_TD, table["image_path"].to_numpy())
    scores = score_queries([Ranking(images, unit_TD, search)], search, QUICK)
    if scores.isna().all(axis=None):
        raise unanswerable(len(scores))
    by_domain = scores.groupby(images.domain_T[search.query_Q]).mean()
    domains = {name: plain(by_domain.loc[name]) for name in by_domain.index}
    return {**plain(by_domain.mean()), "domains": domains}


def flat_scores(scores: dict[str, Any]) -> dict[str, float]:
    """Return means, and R@1 of each domain, by the keys of metrics.jsonl."""
    flat = {f"val_{key}": scores[key] for key in QUICK}
    for domain, values in scores["domains"].items():
        flat[f"val_r_at_1/{domain}"] = values["r_at_1"]
    return flat
