"""CLIP's zero-shot labels: label or check the train images of a mix, or predict their domains."""

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp, softmax

from guie.base.errors import UserError
from guie.config.data import DomainNames, PseudoLabelConfig
from guie.curation.features import Job
from guie.data.manifest import load_manifest
from guie.evaluation.text import ClassTexts, class_texts
from guie.rows.store import Rows

Z_95 = 1.645  # 95 % quantile of the standard normal distribution
SOURCE = "clip"  # in the manifest's column label_source
BLOCK_LOGITS = 2**24  # float32: 64 MiB
CURVE_POINTS = 12  # of the calibration curve that the summary has


def pseudo_label(table: pd.DataFrame, settings: PseudoLabelConfig, job: Job) -> pd.DataFrame:
    """Label the train images of the config's domains by CLIP, and drop the unsure ones. Raises UserError."""
    train = table[(table["split"] == "train") & table["domain"].isin(settings.domains)]
    if train.empty:
        raise UserError(
            f"pseudo_labels.domains: no train image in {', '.join(settings.domains)};"
            f" domains of the mix: {', '.join(sorted(table['domain'].unique()))}"
        )
    texts, labels = class_texts(settings.clip, settings.classes), list(settings.classes)
    scale, least, measured = _calibrated(settings, texts, job)
    features = job.embed(settings.clip)(train["image_path"].tolist(), "whole")
    guesses = guess(features, texts.emb_CD, scale, labels).set_index(train.index)
    certain = most_certain(guesses, least, settings.min_margin, settings.max_images)
    if settings.mode == "label":
        label = certain["label"]
        remaining = train.loc[certain.index].assign(
            label=label, domain=label.str.partition("/")[0], label_source=SOURCE
        )
    else:
        remaining = train.drop(contradicted(train["label"], certain["label"], labels))
    job.report.details["pseudo_labels"] = {
        "looked_at": len(train),
        "sure": len(certain),
        "kept": len(remaining),
        "min_confidence": round(least, 6),
        "scale": round(scale, 4),
        **measured,
    }
    table = pd.concat([table.drop(train.index), remaining]).sort_index(kind="stable")
    if "label_source" in table:
        table["label_source"] = table["label_source"].fillna("")
    return table.reset_index(drop=True)


def domains_of(table: pd.DataFrame, by: DomainNames, job: Job) -> pd.Series:
    """Return the domain of each row: the manifest's, and CLIP's prediction for train images."""
    train = table.index[table["split"] == "train"]
    texts = class_texts(by.clip, by.names)
    features = job.embed(by.clip)(table["image_path"][train].tolist(), "whole")
    guesses = guess(features, texts.emb_CD, texts.scale, list(by.names))
    domain_of_row = table["domain"].copy()
    domain_of_row[train] = guesses["label"].to_numpy()
    return domain_of_row


def _calibrated(
    settings: PseudoLabelConfig, texts: ClassTexts, job: Job
) -> tuple[float, float, dict[str, Any]]:
    """Return the inverse temperature, the minimum confidence, and how they were calibrated."""
    sample = settings.calibration
    if sample is None:
        return texts.scale, settings.min_confidence, {"calibrated_on": 0, "calibration": []}
    manifest, labels = load_manifest(sample.manifest, sample.root), list(settings.classes)
    rows = manifest.table[manifest.table["label"].isin(labels)]
    if rows.empty:
        raise UserError(f"{sample.manifest}: none of its labels is in pseudo_labels.classes")
    emb_ND = job.embed(settings.clip, manifest.root)(rows["image_path"].tolist(), "whole")
    truth_N = pd.Index(labels).get_indexer(rows["label"])
    scale = fit_scale(np.asarray(emb_ND, np.float32) @ texts.emb_CD.T, truth_N, texts.scale)
    guesses = guess(emb_ND, texts.emb_CD, scale, labels)
    right_N = (guesses["label"] == rows["label"].to_numpy()).to_numpy()
    curve = precision_curve(guesses["confidence"].to_numpy(), right_N)
    # Up to CURVE_POINTS of its rows, evenly by coverage, including the last
    wanted = np.linspace(curve["coverage"].iloc[0], 1.0, CURVE_POINTS)
    shown = curve.iloc[np.unique(np.searchsorted(curve["coverage"], wanted - 1e-9))]
    measured = {"calibrated_on": len(rows), "calibration": shown.round(6).to_dict("records")}
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
    changes confidences, but never which class comes first. The result is within a factor of 100 of `start`.
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
    (share of the kept images that are right), at_least (its lower 95 % bound: Wilson 1927).
    """
    order = np.argsort(-confidence_N, kind="stable")
    kept = np.arange(1, len(order) + 1)
    precision = right_N[order].astype(np.float64).cumsum() / kept
    z2 = Z_95**2
    spread = np.sqrt(precision * (1 - precision) / kept + z2 / (4 * kept**2))
    at_least = (precision + z2 / (2 * kept) - Z_95 * spread) / (1 + z2 / kept)
    curve = pd.DataFrame(
        {
            "confidence": confidence_N[order],
            "coverage": kept / len(order),
            "precision": precision,
            "at_least": at_least,
        }
    )
    return curve.drop_duplicates("confidence", keep="last", ignore_index=True)  # ties go together


def least_confidence(curve: pd.DataFrame, precision: float) -> float | None:
    """Return the lowest threshold that reaches `precision` with 95 % certainty, or None."""
    enough = curve.loc[curve["at_least"] >= precision, "confidence"]
    return float(enough.iloc[-1]) if len(enough) else None


def guess(
    emb_ND: np.ndarray | Rows, text_CD: np.ndarray, scale: float, labels: Sequence[str]
) -> pd.DataFrame:
    """Predict the nearest of at least two classes for each image, by unit vectors of one CLIP.

    `scale` is the inverse temperature of the softmax over cosines. Returns N rows with columns label,
    confidence (float32, its probability) and margin (float32, that minus the second largest probability).
    """
    step, names = max(1, BLOCK_LOGITS // len(text_CD)), np.array(labels, object)
    blocks = []
    for start in range(0, len(emb_ND), step):
        emb_BD = emb_ND[start : start + step].astype(np.float32)
        prob_BC = softmax(scale * (emb_BD @ text_CD.T), axis=1)
        second_B, first_B = np.partition(prob_BC, -2, axis=1)[:, -2:].T
        label = names[prob_BC.argmax(axis=1)]
        columns = {"label": label, "confidence": first_B, "margin": first_B - second_B}
        blocks.append(pd.DataFrame(columns))
    return pd.concat(blocks, ignore_index=True)


def most_certain(
    guesses: pd.DataFrame,
    min_confidence: float = 0.0,
    min_margin: float = 0.0,
    max_images: int | None = None,
) -> pd.DataFrame:
    """Return the guesses that reach both thresholds, and of each class the most confident ones.

    Confidences are not comparable between classes. A few images of each class work better than
    many of the easy classes (Huang et al., Unsupervised Prompt Learning, 2022, sec. 3.2).
    """
    reached = guesses["confidence"].ge(min_confidence) & guesses["margin"].ge(min_margin)
    certain = guesses[reached]
    if max_images is None:
        return certain
    ranked = certain.sort_values("confidence", ascending=False, kind="stable")
    return ranked.groupby("label").head(max_images).sort_index()


def contradicted(own: pd.Series, guessed: pd.Series, known: Collection[str]) -> list[int]:
    """Return the rows whose guess is none of their own labels, such as `a|b`, if all of these are `known`."""
    labels = own[guessed.index].str.split("|")
    return [
        row
        for row, guess in guessed.items()
        if guess not in labels[row] and set(labels[row]) <= set(known)
    ]
