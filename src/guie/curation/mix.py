"""Make a mix: run the steps of curation in order, and score a mix by a full training."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pandas as pd

from guie.config import MixConfig
from guie.config.data import SelectionConfig
from guie.curation.classes import oversample, split_validation
from guie.curation.cleaning import clean_rows, refuse_late_leaks
from guie.curation.duplicates.evidence import embed_for
from guie.curation.pipeline import (
    limit_classes,
    match_domains,
    pseudo_label,
    read_sources,
    refuse_illegal,
    select_rows,
)
from guie.curation.selection import Score
from guie.curation.summary import CurationReport
from guie.data.manifest import Sidecar, save_manifest
from guie.training.run_folder import METRICS_FILE, read_metrics

SLUG_CHARS = 80  # characters of a mix's name that its file names use
Train = Callable[[Sequence[str]], Path]  # from the arguments of train.py to the run folder


def curate(
    config: MixConfig, workers: int, account: CurationReport, train: Train
) -> tuple[pd.DataFrame, Sidecar]:
    """Run the steps of a mix in order; return its rows and the overlaps its sidecar declares.

    Args:
        train: `main` of train.py, for a selection by full trainings.
    """
    table, sidecar = read_sources(config, workers, account)
    embed = links = None
    if config.pseudo_labels:
        table = pseudo_label(table, config.pseudo_labels, config, workers, account)
    if config.clean:
        embed = embed_for(config.clean, config.image_root, Path(config.features), workers)
        table, links = clean_rows(table, config.clean, config, embed, workers, account)
    table = limit_classes(table, config, embed, account)
    if config.shares:
        table = match_domains(table, config.shares, config, workers, account)
    table = split_validation(table, config.val_fraction, config.seed, leave=sidecar.whole())
    if config.clean and links is not None:
        table = refuse_late_leaks(table, links, config.clean, account)
    if config.selection:
        evaluate = partial(
            score_by_training,
            config=config,
            selection=config.selection,
            sidecar=sidecar,
            train=train,
        )
        table = select_rows(table, config.selection, config, workers, account, evaluate)
    if config.clean and config.clean.oversample:
        table = oversample(table, config.clean.oversample)
    table = table.drop(columns="source")
    refuse_illegal(table, sidecar, config)
    return table, sidecar


def score_by_training(
    rows: pd.DataFrame,
    name: str,
    seed: int,
    trained: str,
    config: MixConfig,
    selection: SelectionConfig,
    sidecar: Sidecar,
    train: Train,
) -> Score:
    """Score a mix by a full run of train.py: the best val score of the metric.

    Args:
        trained: the folder's name, which changes with the rows and the training config.
        sidecar: the overlaps that the mix declares.
    """
    assert selection.full is not None  # the evaluator is `full`
    folder = config.beside(".selection") / trained
    slug = re.sub(r"[^\w.-]", "_", name)[:SLUG_CHARS]
    if slug != name:  # names of several sources or caps contain characters not allowed in a run's
        slug += f"_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    manifest = folder / f"{slug}.csv"
    save_manifest(rows, manifest, sidecar)
    words = [f"data.manifest={_text(manifest)}", f"data.root={_text(config.image_root)}"]
    words += [f"seed={seed}", f"name={slug}-{seed}", f"out={_text(folder)}"]
    done = train(
        ["--config", selection.full, "--resume", *(w for word in words for w in ("--set", word))]
    )
    lines = [line for line in read_metrics(done / METRICS_FILE) if "val_r_at_1" in line]
    best = max(lines, key=lambda line: line[f"val_{selection.metric}"])
    prefix = "val_r_at_1/"
    domains = {key.removeprefix(prefix): best[key] for key in best if key.startswith(prefix)}
    return Score(best[f"val_{selection.metric}"], domains)


def _text(path: Path) -> str:
    """Return a path as YAML text: without quotes `2024` is a number, and ` #1` a comment."""
    return json.dumps(str(path), ensure_ascii=False)
