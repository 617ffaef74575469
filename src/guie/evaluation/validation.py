"""Validate during training: the merged val index, with the preprocessing that is exported."""

from typing import Any

import numpy as np
import pandas as pd

from guie.base.errors import UserError
from guie.data.manifest import Manifest
from guie.evaluation.knn import unit_vectors
from guie.evaluation.metrics import plain
from guie.evaluation.search import Images, Ranking, score_queries, searches, unanswerable

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


def quick_scores(embeddings_TD: np.ndarray, table: pd.DataFrame) -> dict[str, Any]:
    """Return R@1 and mMP@5 of the merged index as `evaluate` does: means over domains, and each domain's."""
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
