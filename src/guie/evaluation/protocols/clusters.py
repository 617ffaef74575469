"""Clustering of a group's index by k-means, beside its recalls: NMI."""

from __future__ import annotations

import numpy as np
import pandas as pd

from guie.evaluation.clustering import nmi
from guie.evaluation.protocols.base import Part
from guie.evaluation.searching import Embedded


def cluster_scores(
    part: Part, table: pd.DataFrame, embedded: Embedded
) -> dict[str, dict[str, float]]:
    """NMI of each group's images, queries and index alike; an image of two rows counts once."""
    column = part.by if part.by in table else "domain"
    found = {}
    for name, rows in table.groupby(column, sort=False):
        rows = rows.drop_duplicates("image_path")
        unit_TD = embedded if isinstance(embedded, np.ndarray) else embedded[rows["domain"].iloc[0]]
        labels = pd.factorize(rows["label"])[0]
        found[str(name)] = {"nmi": nmi(unit_TD[rows.index.to_numpy()], labels)}
    return found
