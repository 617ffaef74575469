"""How far a confidence can be believed, measured on labelled images.

Shapes: N images, C classes, K images kept.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp

Z_95 = 1.645  # of the standard normal: 95 % lie below


def fit_scale(cos_NC: np.ndarray, truth_N: np.ndarray, start: float) -> float:
    """The inverse temperature under which the true classes are likeliest.

    Temperature scaling (Guo et al., On Calibration of Modern Neural Networks, ICML 2017, sec. 4.2):
    it changes confidences, never which class comes first.

    Args:
        cos_NC: cosines of labelled images to all classes.
        truth_N: the true class's place.
        start: the CLIP's own; the answer lies within a factor of 100 of it.
    """
    cos_NC = cos_NC.astype(np.float64)
    own_N = cos_NC[np.arange(len(truth_N)), truth_N]

    def loss(log_scale: float) -> float:
        scale = math.exp(log_scale)
        return float((logsumexp(scale * cos_NC, axis=1) - scale * own_N).mean())

    middle, reach = math.log(start), math.log(100)
    found = minimize_scalar(loss, bounds=(middle - reach, middle + reach), method="bounded")
    return math.exp(found.x)


def calibration_error(confidence_N: np.ndarray, right_N: np.ndarray, bins: int = 15) -> float:
    """Mean distance of confidence and accuracy over equal bins of confidence (Guo et al., eq. 3)."""
    bin_N = np.minimum((confidence_N * bins).astype(int), bins - 1)
    table = pd.DataFrame({"gap": right_N - confidence_N.astype(np.float64), "bin": bin_N})
    return float(table.groupby("bin")["gap"].sum().abs().sum() / len(table))


def precision_curve(confidence_N: np.ndarray, right_N: np.ndarray) -> pd.DataFrame:
    """Precision and coverage under each threshold on confidence, from strict to lax.

    Columns: confidence (keep what reaches it), coverage (share kept), precision (share right of
    what is kept), at_least (that precision with 95 % certainty).
    """
    order = np.argsort(-confidence_N, kind="stable")
    confidence, right = confidence_N[order], right_N[order].astype(np.float64)
    kept = np.arange(1, len(order) + 1)
    precision = right.cumsum() / kept
    curve = pd.DataFrame(
        {
            "confidence": confidence,
            "coverage": kept / len(order),
            "precision": precision,
            "at_least": wilson_bound(precision, kept),
        }
    )
    return curve.drop_duplicates("confidence", keep="last", ignore_index=True)  # ties go together


def thinned(curve: pd.DataFrame, points: int = 12) -> list[dict[str, float]]:
    """So many rows of a `precision_curve`, evenly by coverage, the last among them."""
    wanted = np.linspace(curve["coverage"].iloc[0], 1.0, points)
    rows = np.unique(np.searchsorted(curve["coverage"], wanted - 1e-9))
    return curve.iloc[rows].round(6).to_dict("records")


def wilson_bound(share: np.ndarray, count: np.ndarray) -> np.ndarray:
    """What a share seen among `count` is at least, with 95 % certainty (Wilson 1927)."""
    z2 = Z_95**2
    spread = np.sqrt(share * (1 - share) / count + z2 / (4 * count**2))
    return (share + z2 / (2 * count) - Z_95 * spread) / (1 + z2 / count)


def least_confidence(curve: pd.DataFrame, precision: float) -> float | None:
    """The lowest threshold that keeps `precision` with 95 % certainty; None where none does."""
    enough = curve.loc[curve["at_least"] >= precision, "confidence"]
    return float(enough.iloc[-1]) if len(enough) else None
