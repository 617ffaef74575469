"""Compute a part of what a mix needs from each image, as one of several jobs, into the stores."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from guie.config import MixConfig
from guie.config.data import ClipConfig, ProxyEvaluatorConfig
from guie.curation.duplicates.candidates import images_of, measured
from guie.curation.duplicates.evidence import embed_for
from guie.curation.duplicates.pixels import Pixels
from guie.curation.pipeline import checks_of, combine, features_of, prefix_of, read_one


def compute_shard(config: MixConfig, part: tuple[int, int], workers: int) -> str:
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
    said = f"{done:,} images checked"
    if missing:
        return (
            f"{said}; {missing:,} of other parts are not yet: run all parts again for the features"
        )
    table = combine(good)
    _compute_features(config, table, workers, part)
    if config.clean is None or config.clean.near is None:
        return f"{said}, features computed"
    images = images_of(table).drop_duplicates("pixels").reset_index(drop=True)
    embed = embed_for(config.clean, config.image_root, Path(config.features), workers)
    digests = dict(zip(images["image_path"], images["pixels"], strict=True))
    pixels = Pixels(config.image_root, workers, digests)
    pairs = measured(images, config.clean.near, embed, pixels, part)
    return f"{said}, features computed, {len(pairs):,} pairs of similar images compared"


def _compute_features(
    config: MixConfig, table: pd.DataFrame, workers: int, part: tuple[int, int]
) -> None:
    """Compute a part of the features that the steps of curation ask for, of the rows that need them."""

    def compute(by: ClipConfig | ProxyEvaluatorConfig, rows: pd.DataFrame) -> None:
        paths = rows["image_path"].drop_duplicates()
        features_of(by, paths, config.image_root, config, workers, part)

    train = table[table["split"] == "train"]
    if labels := config.pseudo_labels:
        compute(labels.clip, train[train["domain"].isin(labels.domains)])
    clean = config.clean
    if clean and clean.model:
        if clean.outliers or clean.cap == "diverse" or clean.suggest_merges is not None:
            embed = embed_for(clean, config.image_root, Path(config.features), workers, part)
            embed(train["image_path"].drop_duplicates().tolist(), "whole")
    if config.shares and config.shares.domain_source:
        compute(config.shares.domain_source.clip, train)
    if config.selection and config.selection.evaluator == "proxy":
        assert config.selection.proxy is not None  # checked with the config
        compute(config.selection.proxy, table)
