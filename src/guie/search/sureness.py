"""How sure a neighbour is: its similarity beside what the index knows of its own pictures.

Where labels are known, the nearest other picture of some of its pictures tells how often so near a
neighbour is of the same label; where none are, how near neighbours usually are.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from sklearn.isotonic import IsotonicRegression

from guie.search.engines import Engine
from guie.search.index import Sureness

SAMPLE = 2000
STEPS = 50
FEWEST = 20  # pictures that something is said by


def sureness_of(
    files: pd.DataFrame, vectors_ND: np.ndarray, engine: Engine, seed: int = 0
) -> Sureness | None:
    """What `sure` needs, as JSON; None of too few pictures.

    Only pictures that share their label with another one count: of the others no neighbour is right.
    """
    labels = files["label"].to_numpy(object)
    sizes = files["label"].value_counts()
    known = files["label"].ne("") & (files["label"].map(sizes) > 1)
    labelled = int(known.sum()) >= FEWEST
    rows = np.flatnonzero(known) if labelled else np.arange(len(files))
    if len(rows) < FEWEST:
        return None
    rows = np.sort(np.random.default_rng(seed).permutation(rows)[:SAMPLE])
    found_B1, score_B1 = engine.search(np.asarray(vectors_ND[rows]), 1, rows.tolist())
    score_B = score_B1[:, 0].astype(float)
    grid = np.quantile(score_B, np.linspace(0, 1, STEPS))
    if not labelled:
        return {"labelled": False, "pictures": len(rows), "similarity": grid.round(5).tolist()}
    right_B = [
        _share(labels[row], labels[found]) for row, found in zip(rows, found_B1[:, 0], strict=True)
    ]
    fitted = IsotonicRegression(out_of_bounds="clip").fit(score_B, right_B)
    shares = fitted.predict(grid)
    return {
        "labelled": True,
        "pictures": len(rows),
        "right": round(float(np.mean(right_B)), 4),
        "similarity": grid.round(5).tolist(),
        "share": shares.round(4).tolist(),
    }


def sure(sureness: Sureness | None, similarity: float) -> float | None:
    """From 0 to 1; None where nothing is known.

    Of labels known: the share of pictures whose nearest neighbour was so near and had their label. Else
    the share of pictures whose own nearest neighbour lies farther away.
    """
    if sureness is None:
        return None
    grid = sureness["similarity"]
    values = sureness["share"] if sureness["labelled"] else np.linspace(0, 1, len(grid))
    return float(np.interp(similarity, grid, values))


def told(sureness: Sureness | None) -> str:
    """What `sure` says, in words."""
    if sureness is None:
        return "too few pictures to say how sure a neighbour is"
    if sureness["labelled"]:
        return f"share of {sureness['pictures']:,} pictures with so near a neighbour that had its label"
    return f"share of {sureness['pictures']:,} pictures whose own nearest neighbour is farther away"


def _share(label: str, other: str) -> bool:
    return not set(label.split("|")).isdisjoint(other.split("|"))
