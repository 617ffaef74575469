"""Make a mix: run the steps of curation in order, or compute one part of what they need."""

from collections.abc import Iterator

import pandas as pd

from guie.config.data import MixConfig
from guie.curation import sources
from guie.curation.classes import match_shares, oversample, split_validation
from guie.curation.cleaning import clean_rows, drop_late_leaks
from guie.curation.duplicates.differences import PixelDifferences
from guie.curation.duplicates.links import images_of, measured
from guie.curation.features import EmbedderConfig, Job
from guie.curation.pseudo_labels import domains_of, pseudo_label
from guie.curation.selection import select_rows
from guie.data.manifest import Sidecar


def curate(job: Job) -> tuple[pd.DataFrame, Sidecar]:
    """Run the steps of a mix in order; return its rows and its sidecar. Raises UserError as they do."""
    config, after = job.config, job.report.after
    table, sidecar = sources.read_sources(job)
    embed = links = None
    if config.pseudo_labels:
        table = pseudo_label(table, config.pseudo_labels, job)
        after("pseudo_labels", table)
    if config.clean:
        embed = job.embed(config.clean)
        table, links = clean_rows(table, config.clean, embed, job)
    table = sources.drop_rare_classes(table, config)
    after("min_images", table)
    table = sources.cap_classes(table, config, embed)
    after("max_images", table)
    if config.shares:
        by = config.shares.domain_source
        domains = domains_of(table, by, job) if by else table["domain"]
        table = match_shares(table, domains, config.shares.shares, config.seed)
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
    sources.refuse_illegal(table, sidecar, config)
    return table, sidecar


def compute_part(job: Job, part: tuple[int, int]) -> str:
    """Compute part n of m of what curating reads from stores; return what was done. Raises UserError.

    Every job checks its images. Once all images of the mix are checked, it also computes its part of the
    features, even of images that later steps drop. Then it compares its part of the similar pictures.
    """
    config, workers, _ = job
    done, missing, good = 0, 0, []
    for source in config.sources:
        read, _ = sources.read_one(source, config.seed, workers)
        prefix = sources.prefix_of(read.root, config.image_root)
        rows = read.table
        if config.verify:
            checks = sources.checks_of(config, rows["image_path"].unique(), prefix)
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
    table = sources.combine(good)
    for by, rows in _embedded(config, table):
        job.embed(by, part=part)(rows["image_path"].unique().tolist(), "whole")
    if config.clean is None or config.clean.near is None:
        return f"{checked}, features computed"
    images = images_of(table).drop_duplicates("pixels").reset_index(drop=True)
    pixels = PixelDifferences(config.image_root, workers, images)
    pairs = measured(images, config.clean.near, job.embed(config.clean), pixels, part)
    return f"{checked}, features computed, {len(pairs):,} pairs of similar images compared"


def _embedded(
    config: MixConfig, table: pd.DataFrame
) -> Iterator[tuple[EmbedderConfig, pd.DataFrame]]:
    """Yield the models whose features the steps need, each with the rows that it embeds."""
    train = table[table["split"] == "train"]
    if labels := config.pseudo_labels:
        yield labels.clip, train[train["domain"].isin(labels.domains)]
    if (clean := config.clean) and clean.model:
        if clean.outliers or clean.cap == "diverse" or clean.suggest_merges is not None:
            yield clean, train
    if config.shares and config.shares.domain_source:
        yield config.shares.domain_source.clip, train
    if config.selection and config.selection.evaluator == "proxy":
        assert config.selection.proxy is not None  # checked with the config
        yield config.selection.proxy, table
