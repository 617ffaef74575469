"""Rankings that somebody has made, scored without embeddings (ILIAS)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from guie.base.errors import UserError
from guie.evaluation.graded import map_at_1k, recall_at_1k
from guie.evaluation.protocols.base import Part
from guie.evaluation.protocols.retrieval import Scores, groups_of
from guie.evaluation.rankings import Rankings
from guie.evaluation.searching import Images

# Of rankings, positives and scores; equal scores are one step of ILIAS's AP.
METRICS: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]] = {
    "map_at_1000": map_at_1k,
    "found_at_1000": lambda relevant_QK, positives_Q, _: recall_at_1k(relevant_QK, positives_Q),
}


def ranked_scores(part: Part, table: pd.DataFrame, rankings: Rankings) -> Scores:
    """What each query of the rankings scores. Raises UserError for a part that asks for more than them."""
    if part.index != "merged" or not set(part.metrics) <= set(METRICS):
        raise UserError("--results: rankings are scored by --protocol ilias, and by no other")
    images, query_Q = Images.of(table), rankings.query_Q
    positives_Q = images.count_positives(query_Q, np.flatnonzero(images.is_index_T))
    relevant_QK = images.labels.shared(query_Q, rankings.found_QK) & (rankings.found_QK >= 0)
    found = {key: METRICS[key](relevant_QK, positives_Q, rankings.score_QK) for key in part.metrics}
    values = pd.DataFrame(found, index=query_Q)
    cluster_Q, path_Q = (table[c].to_numpy()[query_Q] for c in ("label", "image_path"))
    return Scores(part, values, groups_of(part, table)[query_Q], cluster_Q, path_Q)
