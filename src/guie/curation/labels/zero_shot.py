"""Zero-shot labels: which text an image is nearest to, how surely, and what to do with it.

Radford et al., CLIP, ICML 2021, sec. 3.1. Shapes: N images, C classes, D dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import softmax

from guie.evaluation.features import Features

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
