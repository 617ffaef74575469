"""CLIP pseudo-labels: zero-shot labels, their calibration, and subsampling to domain shares."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp, softmax

from guie.base.errors import UserError
from guie.base.seeds import seeded_draws
from guie.config import MixConfig
from guie.config.data import DomainShares, PseudoLabelConfig
from guie.curation.features import embed_for
from guie.curation.summary import CurationReport
from guie.data.manifest import load_manifest
from guie.evaluation.text import ClassTexts, class_texts
from guie.rows.store import Rows

Z_95 = 1.645  # 95 % quantile of the standard normal distribution
SOURCE = "clip"  # in the manifest's column label_source
BLOCK_LOGITS = 2**24  # float32: 64 MiB


class Guesses(NamedTuple):
    """The nearest class of each image, and its confidence."""

    first_N: np.ndarray  # int: index of the nearest class
    confidence_N: np.ndarray  # float32: probability of that class
    margin_N: np.ndarray  # float32: that probability minus the second largest


def pseudo_label(
    table: pd.DataFrame,
    settings: PseudoLabelConfig,
    config: MixConfig,
    workers: int,
    report: CurationReport,
) -> pd.DataFrame:
    """Label the train images of the config's domains by zero-shot CLIP; drop the unsure ones.

    Raises UserError if there is no such image, or if no confidence reaches the required precision.
    """
    train = table[(table["split"] == "train") & table["domain"].isin(settings.domains)]
    if train.empty:
        raise UserError(
            f"pseudo_labels.domains: no train image in {', '.join(settings.domains)};"
            f" domains of the mix: {', '.join(sorted(table['domain'].unique()))}"
        )
    texts = class_texts(settings.clip, settings.classes)
    labels = list(settings.classes)
    scale, least, measured = _calibrated(settings, texts, config, workers)
    embed = embed_for(settings.clip, config.image_root, config.features, workers)
    guesses = guess(embed(train["image_path"].tolist(), "whole"), texts.emb_CD, scale)
    sure_N = sure(guesses, least, settings.min_margin, settings.max_images)
    if settings.mode == "label":
        remaining = relabelled(train, guesses, sure_N, labels)
    else:
        remaining = train[~contradicted(train, guesses, sure_N, labels)]
    report.details["pseudo_labels"] = {
        "looked_at": len(train),
        "sure": int(sure_N.sum()),
        "kept": len(remaining),
        "min_confidence": round(least, 6),
        "scale": round(scale, 4),
        **measured,
    }
    table = pd.concat([table.drop(train.index), remaining]).sort_index(kind="stable")
    if "label_source" in table:
        table["label_source"] = table["label_source"].fillna("")
    table = table.reset_index(drop=True)
    report.after("pseudo_labels", table)
    return table


def _calibrated(
    settings: PseudoLabelConfig, texts: ClassTexts, config: MixConfig, workers: int
) -> tuple[float, float, dict[str, Any]]:
    """Return the inverse temperature, the minimum confidence, and how they were calibrated."""
    sample = settings.calibration
    if sample is None:
        return texts.scale, settings.min_confidence, {"calibrated_on": 0, "calibration": []}
    manifest = load_manifest(sample.manifest, sample.root)
    labels = list(settings.classes)
    rows = manifest.table[manifest.table["label"].isin(labels)]
    if rows.empty:
        raise UserError(f"{sample.manifest}: none of its labels is in pseudo_labels.classes")
    embed = embed_for(settings.clip, manifest.root, config.features, workers)
    emb_ND = embed(rows["image_path"].tolist(), "whole")
    truth_N = rows["label"].map({label: row for row, label in enumerate(labels)}).to_numpy()
    scale = fit_scale(np.asarray(emb_ND, np.float32) @ texts.emb_CD.T, truth_N, texts.scale)
    guesses = guess(emb_ND, texts.emb_CD, scale)
    curve = precision_curve(guesses.confidence_N, guesses.first_N == truth_N)
    measured = {"calibrated_on": len(rows), "calibration": thinned(curve)}
    if sample.precision is None:
        return scale, settings.min_confidence, measured
    least = least_confidence(curve, sample.precision)
    if least is None:
        raise UserError(
            f"pseudo_labels.calibration.precision: no confidence reaches {sample.precision} on"
            f" {len(rows):,} images; the best is {curve['at_least'].max():.3f}, with 95 % certainty"
        )
    return scale, max(least, settings.min_confidence), measured


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


def guess(emb_ND: np.ndarray | Rows, text_CD: np.ndarray, scale: float) -> Guesses:
    """Predict the nearest of at least two classes for each image.

    Args:
        emb_ND: unit-length image embeddings, any float type.
        text_CD: unit-length class embeddings of the same CLIP model.
        scale: inverse temperature of the softmax over cosines.
    """
    step = max(1, BLOCK_LOGITS // len(text_CD))
    found = []
    for start in range(0, len(emb_ND), step):
        emb_BD = emb_ND[start : start + step].astype(np.float32)
        prob_BC = softmax(scale * (emb_BD @ text_CD.T), axis=1)
        second_B, confidence_B = np.partition(prob_BC, -2, axis=1)[:, -2:].T
        found.append(Guesses(prob_BC.argmax(axis=1), confidence_B, confidence_B - second_B))
    return Guesses(*(np.concatenate(column) for column in zip(*found, strict=True)))


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


def match_domains(
    table: pd.DataFrame,
    shares: DomainShares,
    config: MixConfig,
    workers: int,
    report: CurationReport,
) -> pd.DataFrame:
    """Subsample the train images to the config's target shares of the domains.

    The domain of a row is the manifest's, or CLIP's prediction for train images.
    """
    domain_of_row = table["domain"].copy()
    if shares.domain_source is not None:
        train = table.index[table["split"] == "train"]
        clip, names = shares.domain_source.clip, shares.domain_source.names
        texts = class_texts(clip, names)
        embed = embed_for(clip, config.image_root, config.features, workers)
        guesses = guess(
            embed(table["image_path"][train].tolist(), "whole"), texts.emb_CD, texts.scale
        )
        domain_of_row[train] = np.asarray(list(names))[guesses.first_N]
    table = match_shares(table, domain_of_row, shares.shares, config.seed)
    report.after("shares", table)
    return table


def match_shares(
    table: pd.DataFrame, domain_of_row: pd.Series, shares: Mapping[str, float], seed: int
) -> pd.DataFrame:
    """Drop train images until each domain has its share, keeping as many images as possible.

    The scarcest domain keeps all its images. The largest classes of a domain lose images first: no class
    loses its last image while another has two. The choice of images depends only on the seed and their
    paths. Rows of val and test are kept.

    Args:
        table: a manifest's rows, indexed from 0.
        domain_of_row: the domain of each row, by the table's index: its own, or CLIP's prediction.
        shares: relative shares; a domain that is not listed loses its train images.

    Raises:
        UserError: a domain in `shares` has no train image.
    """
    train = table[table["split"] == "train"]
    domain = domain_of_row[train.index]
    present = domain.value_counts().to_dict()
    if missing := sorted(set(shares) - set(present)):
        raise UserError(
            f"shares: no train image in {', '.join(missing)}; found: {', '.join(sorted(present))}"
        )
    scale = min(present[name] / share for name, share in shares.items())
    drawn = train.assign(draw=seeded_draws(seed, train["image_path"])).sort_values("draw")
    chosen = []
    for name, share in shares.items():
        # One image of each class, then a second of each, ...
        turn = drawn[domain[drawn.index] == name].groupby("label").cumcount()
        chosen.append(turn.sort_values(kind="stable").index[: round(scale * share)])
    stays = (table["split"] != "train") | table.index.isin(np.concatenate(chosen))
    return table[stays].reset_index(drop=True)
