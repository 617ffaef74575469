"""Make a mix: run the steps of curation in order, or compute one part of what they need."""

from __future__ import annotations

import pandas as pd

from guie.config.data import MixConfig
from guie.curation.classes import oversample
from guie.curation.cleaning import clean_rows, drop_late_leaks
from guie.curation.duplicates.comparing import Pixels
from guie.curation.duplicates.links import images_of, measured
from guie.curation.features import Embedder, Job, embed_for
from guie.curation.pipeline import (
    cap_classes,
    checks_of,
    combine,
    drop_rare_classes,
    prefix_of,
    read_one,
    read_sources,
    refuse_illegal,
)
from guie.curation.pseudo_labels import pseudo_label
from guie.curation.selection import select_rows
from guie.curation.shares import match_domains
from guie.curation.splits import split_validation
from guie.data.manifest import Sidecar


def curate(job: Job) -> tuple[pd.DataFrame, Sidecar]:
    """Run the steps of a mix in order; return its rows and the overlaps its sidecar declares.

    Raises UserError for whatever a step refuses.
    """
    config, after = job.config, job.report.after
    table, sidecar = read_sources(job)
    embed = links = None
    if config.pseudo_labels:
        table = pseudo_label(table, config.pseudo_labels, job)
        after("pseudo_labels", table)
    if config.clean:
        embed = job.embed(config.clean)
        table, links = clean_rows(table, config.clean, embed, job)
    table = drop_rare_classes(table, config)
    after("min_images", table)
    table = cap_classes(table, config, embed)
    after("max_images", table)
    if config.shares:
        table = match_domains(table, config.shares, job)
        after("shares", table)
    table = split_validation(table, config.val_fraction, config.seed, leave=sidecar.whole())
    if config.clean and links is not None:
        table = drop_late_leaks(table, links, config.clean, job.report)
        after("leaks into val", table)
    if config.selection:
        table = select_rows(table, config.selection, job, sidecar)
        after("selection", table)
    if config.clean and config.clean.oversample:
        table = oversample(table, config.clean.oversample)
    table = table.drop(columns="source")
    refuse_illegal(table, sidecar, config)
    return table, sidecar


def compute_part(config: MixConfig, part: tuple[int, int], workers: int) -> str:
    """Compute part n of m of what curating reads from stores, and return what was done.

    Every job checks its images. If all images of the mix are checked by then, it also computes its part of
    the features and compares its part of the similar pictures. Later steps may drop an image that got
    features here. Raises UserError.
    """
    done, missing, good = 0, 0, []
    for source in config.sources:
        read, _ = read_one(source, config.seed, workers)
        prefix = prefix_of(read.root, config.image_root)
        rows = read.table
        if config.verify:
            checks = checks_of(config, rows["image_path"].unique(), prefix)
            done += len(checks.fill(workers, str(source.path), part))
            missing += len(checks.missing())
            if missing:
                continue
            found = checks.table()
            rows = rows.merge(found, left_on="image_path", right_index=True, suffixes=("_", ""))
            rows = rows[rows["reason"] == ""]
        good.append(rows.assign(image_path=prefix + rows["image_path"]))
    checked = f"{done:,} images checked"
    if missing:
        return f"{checked}; {missing:,} of other parts are not yet: run all parts again for the features"
    table, folder = combine(good), config.features
    for by, rows in _embedded(config, table):
        embed = embed_for(by, config.image_root, folder, workers, part)
        embed(rows["image_path"].unique().tolist(), "whole")
    if config.clean is None or config.clean.near is None:
        return f"{checked}, features computed"
    images = images_of(table).drop_duplicates("pixels").reset_index(drop=True)
    embed = embed_for(config.clean, config.image_root, folder, workers)
    pixels = Pixels(config.image_root, workers, images)
    pairs = measured(images, config.clean.near, embed, pixels, part)
    return f"{checked}, features computed, {len(pairs):,} pairs of similar images compared"


def _embedded(config: MixConfig, table: pd.DataFrame) -> list[tuple[Embedder, pd.DataFrame]]:
    """Return the models whose features the steps need, each with the rows that it embeds."""
    train = table[table["split"] == "train"]
    wanted: list[tuple[Embedder, pd.DataFrame]] = []
    if labels := config.pseudo_labels:
        wanted.append((labels.clip, train[train["domain"].isin(labels.domains)]))
    if (clean := config.clean) and clean.model:
        if clean.outliers or clean.cap == "diverse" or clean.suggest_merges is not None:
            wanted.append((clean, train))
    if config.shares and config.shares.domain_source:
        wanted.append((config.shares.domain_source.clip, train))
    if config.selection and config.selection.evaluator == "proxy":
        assert config.selection.proxy is not None  # checked with the config
        wanted.append((config.selection.proxy, table))
    return wanted
