"""CLIP's word as a step of a mix: labels for its images, or their domains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from guie.base.devices import make_accelerator
from guie.base.errors import UserError
from guie.config import MixConfig
from guie.config.zero_shot import ClipConfig, DomainShares, PseudoLabelConfig
from guie.curation.labels.calibration import fit_scale, least_confidence, precision_curve, thinned
from guie.curation.labels.shares import match_shares
from guie.curation.labels.zero_shot import contradicted, guess, relabelled, sure
from guie.curation.steps.account import Account
from guie.data.manifest import load_manifest
from guie.evaluation.features import Features, cached_features
from guie.evaluation.text import ClassTexts, class_texts
from guie.model import open_model


def pseudo_label(
    table: pd.DataFrame,
    settings: PseudoLabelConfig,
    config: MixConfig,
    workers: int,
    account: Account,
) -> pd.DataFrame:
    """Zero-shot labels for the train images of the config's domains; the unsure ones go.

    Raises UserError if no such image is there, or no confidence reaches the precision asked for.
    """
    train = table[(table["split"] == "train") & table["domain"].isin(settings.domains)]
    if train.empty:
        raise UserError(
            f"pseudo_labels.domains: no train image is of {', '.join(settings.domains)};"
            f" the mix has: {', '.join(sorted(table['domain'].unique()))}"
        )
    texts = class_texts(settings.clip, settings.classes)
    labels = list(settings.classes)
    scale, least, measured = _calibrated(settings, texts, config, workers)
    emb_ND = _features(settings.clip, train["image_path"], config.image_root, config, workers)
    guesses = guess(emb_ND, texts.emb_CD, scale)
    sure_N = sure(guesses, least, settings.min_margin, settings.max_images)
    if settings.mode == "label":
        remaining = relabelled(train, guesses, sure_N, labels)
    else:
        remaining = train[~contradicted(train, guesses, sure_N, labels)]
    account.details["pseudo_labels"] = {
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
    account.after("pseudo_labels", table)
    return table


def match_domains(
    table: pd.DataFrame,
    shares: DomainShares,
    config: MixConfig,
    workers: int,
    account: Account,
) -> pd.DataFrame:
    """Thin the train images until their domains have the shares that the config wishes for."""
    domain_of_row = _domains_by_clip(table, shares, config, workers)
    table = match_shares(table, domain_of_row, shares.shares, config.seed)
    account.after("shares", table)
    return table


def _domains_by_clip(
    table: pd.DataFrame, shares: DomainShares, config: MixConfig, workers: int
) -> pd.Series:
    """The domain of every row: the manifest's, or, for train images, the one that a CLIP gives."""
    domain_of_row = table["domain"].copy()
    if shares.told_by is not None:
        train = table.index[table["split"] == "train"]
        clip, names = shares.told_by.clip, shares.told_by.names
        texts = class_texts(clip, names)
        paths = table["image_path"][train]
        emb_ND = _features(clip, paths, config.image_root, config, workers)
        domain_of_row[train] = np.asarray(list(names))[
            guess(emb_ND, texts.emb_CD, texts.scale).first_N
        ]
    return domain_of_row


def _calibrated(
    settings: PseudoLabelConfig, texts: ClassTexts, config: MixConfig, workers: int
) -> tuple[float, float, dict[str, Any]]:
    """The inverse temperature and the least confidence; measured, and how, where there is a sample."""
    sample = settings.calibration
    if sample is None:
        return texts.scale, settings.min_confidence, {"calibrated_on": 0, "calibration": []}
    manifest = load_manifest(sample.manifest, sample.root)
    labels = list(settings.classes)
    rows = manifest.table[manifest.table["label"].isin(labels)]
    if rows.empty:
        raise UserError(f"{sample.manifest}: no label of it is among pseudo_labels.classes")
    emb_ND = _features(settings.clip, rows["image_path"], manifest.root, config, workers)
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
            f"pseudo_labels.calibration.precision: no confidence keeps {sample.precision} on"
            f" {len(rows):,} images; the best is {curve['at_least'].max():.3f}, with 95 % certainty"
        )
    return scale, max(least, settings.min_confidence), measured


def _features(
    clip: ClipConfig, paths: pd.Series, root: Path, config: MixConfig, workers: int
) -> Features:
    model = open_model(clip.model, clip.size_px, clip.fit)
    return cached_features(
        make_accelerator(), model, paths.tolist(), root, config.features, workers=workers
    )
