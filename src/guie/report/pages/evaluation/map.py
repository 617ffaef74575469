"""A map of queries: who lies beside whom, with the pictures to look at.

Shape legend: N points, D dimensions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from tqdm import tqdm

from guie.evaluation.components import balanced_sample
from guie.evaluation.diagnosis import Nearest
from guie.evaluation.searching import Embedded
from guie.report.figures import project
from guie.report.pages.evaluation.sheet import Sheet, picture_sheet

POINTS = 720  # each brings two pictures: its own, and that of its first answer
LEAST = 10
SIDE = 1000  # of the map, in its own units
MARGIN = 20


class Map(NamedTuple):
    """Points, and the sheet on which picture 2 i is that of point i, 2 i + 1 that of its answer.

    Attributes:
        points: x, y (0 to SIDE), domain, label, path, right, answer (label), distance.
        asked: how many queries the points are a sample of.
    """

    points: list[dict[str, Any]]
    sheet: Sheet | None
    asked: int


def query_map(
    near: Nearest, table: pd.DataFrame, embedded: Embedded, root: Path | None, bar: tqdm
) -> Map | None:
    """t-SNE of a sample of queries, as many of each domain as there are.

    Args:
        root: folder of the images; None leaves the pictures out.

    Returns None where there is no common space (a specialist for each domain), or too few queries.
    """
    if not isinstance(embedded, np.ndarray) or len(near.query_Q) < LEAST:
        return None
    place_of = pd.Series(range(len(near.query_Q)), index=near.query_Q)
    asked = table.iloc[near.query_Q].assign(row=near.query_Q)
    sample = balanced_sample(asked, max(1, POINTS // asked["domain"].nunique()), seed=0)
    sample = sample.head(POINTS)
    rows_N = sample["row"].to_numpy()
    place_N = place_of[rows_N].to_numpy()
    answer_N = near.found_QK[place_N, 0]
    xy_N2 = _scaled(project(embedded[rows_N]))
    points = [
        {
            "x": x,
            "y": y,
            "domain": row.domain,
            "label": row.label,
            "path": row.image_path,
            "right": bool(near.right_Q[place]),
            "answer": table["label"].iloc[answer],
            "distance": round(float(near.distance_QK[place, 0]), 3),
        }
        for (x, y), row, place, answer in zip(
            xy_N2.tolist(), sample.itertuples(), place_N, answer_N, strict=True
        )
    ]
    sheet = None
    if root is not None:
        answers = table["image_path"].iloc[answer_N]
        pairs = zip(sample["image_path"], answers, strict=True)
        sheet = picture_sheet([path for pair in pairs for path in pair], root, bar)
    return Map(points, sheet, len(near.query_Q))


def _scaled(xy_N2: np.ndarray) -> np.ndarray:
    """Within the map, both axes alike, in tenths."""
    low, high = xy_N2.min(axis=0), xy_N2.max(axis=0)
    scale = (SIDE - 2 * MARGIN) / max(float((high - low).max()), 1e-9)
    middle = (low + high) / 2
    placed_N2 = (xy_N2 - middle).astype(np.float64) * scale + SIDE / 2
    return placed_N2.round(1)
