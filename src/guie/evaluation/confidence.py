"""Measure how sure a neighbour is: of images with an equally close one, the share whose label is the same."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

SAMPLE = 2000
STEPS = 50
FEWEST = 20  # images for a measurement


def to_measure(label_N: np.ndarray) -> tuple[np.ndarray, bool]:
    """Return a sample of rows, in order, and whether labels ("" for unknown) can be compared.

    If so, all of the sample share their label with another image: others have no right neighbour.
    """
    labels = pd.Series(label_N, dtype=object)
    known = (labels.ne("") & labels.duplicated(keep=False)).to_numpy()
    labelled = int(known.sum()) >= FEWEST
    rows = np.flatnonzero(known) if labelled else np.arange(len(labels))
    return np.sort(np.random.default_rng(0).permutation(rows)[:SAMPLE]), labelled


def measure(
    label_B: Sequence[str], found_B: Sequence[str], similarity_B: Sequence[float], labelled: bool
) -> dict[str, Any] | None:
    """Return what `sure` needs; None for too few images.

    Args:
        label_B: of those images of `to_measure` that have a neighbour; several are joined by `|`.
        found_B, similarity_B: label and similarity of each one's nearest other image.
    """
    if len(label_B) < FEWEST:
        return None
    score_B = np.asarray(similarity_B, float)
    grid = np.quantile(score_B, np.linspace(0, 1, STEPS))
    made = {"labelled": labelled, "pictures": len(label_B), "similarity": grid.round(5).tolist()}
    if not labelled:
        return made
    pairs = zip(label_B, found_B, strict=True)
    right_B = [not set(own.split("|")).isdisjoint(other.split("|")) for own, other in pairs]
    # Imported here, as a query does not need it, and scikit-learn takes a second.
    from sklearn.isotonic import IsotonicRegression

    share = IsotonicRegression(out_of_bounds="clip").fit(score_B, right_B).predict(grid)
    right = round(float(np.mean(right_B)), 4)
    return made | {"right": right, "share": share.round(4).tolist()}


def sure(confidence: dict[str, Any] | None, similarity: float) -> float | None:
    """Return the confidence of a neighbour, 0 to 1; None if it was not measured.

    Without labels, it is the fraction of images whose own nearest neighbour is farther away.
    """
    if confidence is None:
        return None
    grid = confidence["similarity"]
    return float(
        np.interp(similarity, grid, confidence.get("share") or np.linspace(0, 1, len(grid)))
    )


def describe(confidence: dict[str, Any] | None) -> str:
    """Describe the value of `sure` in words."""
    if confidence is None:
        return "too few images to measure confidence"
    if confidence["labelled"]:
        count = f"{confidence['pictures']:,}"
        return f"share of {count} images with an equally close neighbour of the same label"
    return f"share of {confidence['pictures']:,} images whose own nearest neighbour is farther away"
