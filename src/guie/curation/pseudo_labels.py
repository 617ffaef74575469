"""Pseudo-labels by CLIP: zero-shot labels, their calibration, and target proportions of domains."""

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
from guie.evaluation.feature_cache import Features

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


SOURCE = "clip"  # in the manifest's column label_source
BLOCK_LOGITS = 2**24  # float32: 64 MiB


class Guesses(NamedTuple):
    """The nearest class of each image, and how sure that is."""

    first_N: np.ndarray  # int: its place in the list of classes
    confidence_N: np.ndarray  # float32: its probability
    margin_N: np.ndarray  # float32: by which it exceeds the second's


def guess(emb_ND: np.ndarray | Features, text_CD: np.ndarray, scale: float) -> Guesses:
    """The nearest of at least two classes for each image.

    Args:
        emb_ND: unit-length image embeddings, of any float type.
        text_CD: unit-length class embeddings of the same CLIP.
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
    """Which guesses are kept, bool [N]: sure enough and, of each class, the most confident few.

    Confidence differs in kind between classes: a few images of each serve better than many of the
    easy ones (Huang et al., Unsupervised Prompt Learning, 2022, sec. 3.2).
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
    """The rows with a sure guess, with its label and domain; `label_source` tells them apart.

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
    """Which rows have a sure guess of another class than any of their labels, bool [N].

    A label that is not among `labels` could not have been guessed: such a row is left in peace.
    """
    guessed = np.asarray(labels)[guesses.first_N]
    known = set(labels)
    own = [set(label.split("|")) for label in table["label"]]
    agrees_N = np.array([g in o or not o <= known for g, o in zip(guessed, own, strict=True)])
    return sure_N & ~agrees_N


def match_shares(
    table: pd.DataFrame, domain_of_row: pd.Series, shares: Mapping[str, float], seed: int
) -> pd.DataFrame:
    """Drop train images until each domain has its share: the largest such mix.

    The largest classes of a domain lose images first, so that no class loses its last image while
    another has two; images are drawn by seed and path alone. Rows of val and test stay.

    Args:
        table: a manifest's rows, indexed from 0.
        domain_of_row: the domain that counts, by the table's index: its own, or one that a CLIP gives.
        shares: relative; a domain that is not named loses its train images.

    Raises:
        UserError: no train image is of a domain that should have a share.
    """
    train = table[table["split"] == "train"]
    domain = domain_of_row[train.index]
    images_of = _images(domain.value_counts().to_dict(), shares)
    chosen = [_thinned(train[domain == name], images, seed) for name, images in images_of.items()]
    stays = (table["split"] != "train") | table.index.isin(np.concatenate(chosen))
    return table[stays].reset_index(drop=True)


def _images(present: Mapping[str, int], shares: Mapping[str, float]) -> dict[str, int]:
    """Images of each domain in the largest mix of these shares; the scarcest keeps all of its."""
    missing = sorted(set(shares) - set(present))
    if missing:
        raise UserError(
            f"shares: no train image is of {', '.join(missing)}; found: {', '.join(sorted(present))}"
        )
    scale = min(present[name] / share for name, share in shares.items())
    return {name: round(scale * share) for name, share in shares.items()}


def _thinned(rows: pd.DataFrame, images: int, seed: int) -> np.ndarray:
    """Index of the rows that stay: first one image of each class, then a second of each, ..."""
    drawn = rows.assign(draw=seeded_draws(seed, rows["image_path"])).sort_values("draw")
    turn = drawn.groupby("label").cumcount()
    return turn.sort_values(kind="stable").index[:images].to_numpy()
