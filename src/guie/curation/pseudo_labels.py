"""CLIP pseudo-labels: zero-shot labels, their calibration, and subsampling to domain shares."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp, softmax

from guie.base.errors import UserError
from guie.base.seeds import seeded_draws
from guie.rows.store import Rows

Z_95 = 1.645  # 95 % quantile of the standard normal distribution


def fit_scale(cos_NC: np.ndarray, truth_N: np.ndarray, start: float) -> float:
    """Fit the inverse temperature that maximizes the likelihood of the true classes.

    Temperature scaling (Guo et al., On Calibration of Modern Neural Networks, ICML 2017, sec. 4.2)
    changes confidences, but never which class comes first.

    Args:
        cos_NC: cosines of labelled images to all classes.
        truth_N: index of the true class.
        start: CLIP's own value; the result is within a factor of 100 of it.
    """
    cos_NC = cos_NC.astype(np.float64)
    own_N = cos_NC[np.arange(len(truth_N)), truth_N]

    def loss(log_scale: float) -> float:
        scale = math.exp(log_scale)
        return float((logsumexp(scale * cos_NC, axis=1) - scale * own_N).mean())

    middle, reach = math.log(start), math.log(100)
    found = minimize_scalar(loss, bounds=(middle - reach, middle + reach), method="bounded")
    return math.exp(found.x)


def precision_curve(confidence_N: np.ndarray, right_N: np.ndarray) -> pd.DataFrame:
    """Return precision and coverage at each confidence threshold, from strict to lax.

    Columns: confidence (the threshold, inclusive), coverage (share of images kept), precision
    (share of the kept images that are right), at_least (lower 95 % bound of that precision).
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
    """Choose up to `points` rows of a `precision_curve`, evenly by coverage, including the last."""
    wanted = np.linspace(curve["coverage"].iloc[0], 1.0, points)
    rows = np.unique(np.searchsorted(curve["coverage"], wanted - 1e-9))
    return curve.iloc[rows].round(6).to_dict("records")


def wilson_bound(share: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Return the lower 95 % confidence bound of a share observed on `count` items (Wilson 1927)."""
    z2 = Z_95**2
    spread = np.sqrt(share * (1 - share) / count + z2 / (4 * count**2))
    return (share + z2 / (2 * count) - Z_95 * spread) / (1 + z2 / count)


def least_confidence(curve: pd.DataFrame, precision: float) -> float | None:
    """Return the lowest threshold that reaches `precision` with 95 % certainty, or None."""
    enough = curve.loc[curve["at_least"] >= precision, "confidence"]
    return float(enough.iloc[-1]) if len(enough) else None


SOURCE = "clip"  # in the manifest's column label_source
BLOCK_LOGITS = 2**24  # float32: 64 MiB


class Guesses(NamedTuple):
    """The nearest class of each image, and its confidence."""

    first_N: np.ndarray  # int: index of the nearest class
    confidence_N: np.ndarray  # float32: probability of that class
    margin_N: np.ndarray  # float32: that probability minus the second largest


def guess(emb_ND: np.ndarray | Rows, text_CD: np.ndarray, scale: float) -> Guesses:
    """Predict the nearest of at least two classes for each image.

    Args:
        emb_ND: unit-length image embeddings, any float type.
        text_CD: unit-length class embeddings of the same CLIP model.
        scale: inverse temperature of the softmax over cosines.
    """
    step = max(1, BLOCK_LOGITS // len(text_CD))
    starts = range(0, len(emb_ND), step)
    parts = [_guess_block(emb_ND[i : i + step], text_CD, scale) for i in starts]
    return Guesses(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _guess_block(emb_BD: np.ndarray, text_CD: np.ndarray, scale: float) -> Guesses:
    prob_BC = softmax(scale * (emb_BD.astype(np.float32) @ text_CD.T), axis=1)
    second_B, confidence_B = np.partition(prob_BC, -2, axis=1)[:, -2:].T
    return Guesses(prob_BC.argmax(axis=1), confidence_B, confidence_B - second_B)


def sure(
    guesses: Guesses,
    min_confidence: float = 0.0,
    min_margin: float = 0.0,
    max_images: int | None = None,
) -> np.ndarray:
    """Return a mask, bool [N], of the guesses to keep: sure ones, the most confident of each class.

    Confidences are not comparable between classes. A few images of each class work better than
    many of the easy classes (Huang et al., Unsupervised Prompt Learning, 2022, sec. 3.2).
    """
    first_N, confidence_N, margin_N = guesses
    sure_N = (confidence_N >= min_confidence) & (margin_N >= min_margin)
    if max_images is None:
        return sure_N
    sure_guesses = pd.DataFrame({"first": first_N, "confidence": confidence_N})[sure_N]
    sure_guesses = sure_guesses.sort_values("confidence", ascending=False, kind="stable")
    chosen = sure_guesses.index[sure_guesses.groupby("first").cumcount() < max_images]
    return np.isin(np.arange(len(sure_N)), chosen)


def relabelled(
    table: pd.DataFrame, guesses: Guesses, sure_N: np.ndarray, labels: Sequence[str]
) -> pd.DataFrame:
    """Return the rows with a sure guess, with its label and domain; `label_source` marks them.

    Args:
        table: N rows of a manifest.
        labels: `domain/class` of each class.
    """
    label = pd.Series(np.asarray(labels)[guesses.first_N], table.index)[sure_N]
    return table[sure_N].assign(
        label=label, domain=label.str.partition("/")[0], label_source=SOURCE
    )


def contradicted(
    table: pd.DataFrame, guesses: Guesses, sure_N: np.ndarray, labels: Sequence[str]
) -> np.ndarray:
    """Return a mask, bool [N], of the rows whose sure guess is none of their labels.

    A row with a label outside `labels` never counts, because that label cannot be guessed.
    """
    guessed = np.asarray(labels)[guesses.first_N]
    known = set(labels)
    own = [set(label.split("|")) for label in table["label"]]
    agrees_N = np.array([g in o or not o <= known for g, o in zip(guessed, own, strict=True)])
    return sure_N & ~agrees_N


def match_shares(
    table: pd.DataFrame, domain_of_row: pd.Series, shares: Mapping[str, float], seed: int
) -> pd.DataFrame:
    """Drop train images until each domain has its share, keeping as many images as possible.

    The largest classes of a domain lose images first: no class loses its last image while another
    has two. The choice of images depends only on the seed and their paths. Rows of val and test
    are kept.

    Args:
        table: a manifest's rows, indexed from 0.
        domain_of_row: the domain of each row, by the table's index: its own, or CLIP's prediction.
        shares: relative shares; a domain that is not listed loses its train images.

    Raises:
        UserError: a domain in `shares` has no train image.
    """
    train = table[table["split"] == "train"]
    domain = domain_of_row[train.index]
    images_of = _images(domain.value_counts().to_dict(), shares)
    chosen = [_thinned(train[domain == name], images, seed) for name, images in images_of.items()]
    stays = (table["split"] != "train") | table.index.isin(np.concatenate(chosen))
    return table[stays].reset_index(drop=True)


def _images(present: Mapping[str, int], shares: Mapping[str, float]) -> dict[str, int]:
    """Count each domain's images in the largest mix of these shares; the scarcest keeps them all."""
    missing = sorted(set(shares) - set(present))
    if missing:
        raise UserError(
            f"shares: no train image in {', '.join(missing)}; found: {', '.join(sorted(present))}"
        )
    scale = min(present[name] / share for name, share in shares.items())
    return {name: round(scale * share) for name, share in shares.items()}


def _thinned(rows: pd.DataFrame, images: int, seed: int) -> np.ndarray:
    """Return the index of the kept rows: one image of each class, then a second of each, ..."""
    drawn = rows.assign(draw=seeded_draws(seed, rows["image_path"])).sort_values("draw")
    turn = drawn.groupby("label").cumcount()
    return turn.sort_values(kind="stable").index[:images].to_numpy()
