"""Compute a part of what a mix needs from each image, as one of several jobs, into the caches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from guie.config import MixConfig
from guie.config.data import ClipConfig, ProxyEvaluatorConfig
from guie.curation.duplicates.candidates import images_of, measured
from guie.curation.duplicates.evidence import embed_for
from guie.curation.duplicates.pixels import Pixels
from guie.curation.pipeline import combine, features_of, prefix_of, read_one
from guie.data.image_checks.cache import CheckCache
from guie.data.image_checks.decoding import VERIFY
from guie.data.image_checks.hashes import FINGERPRINTS
from guie.data.images import open_as_seen
from guie.data.manifest import Manifest, rows_of_shard


def compute_shard(config: MixConfig, shard: tuple[int, int], workers: int) -> str:
    """Compute part N of M of what curating reads from caches, and return what was done.

    Every job checks its images and computes their features. If all images of the mix are checked by then, it
    also compares its part of the similar pictures. Later steps may drop an image that got features here.
    Raises UserError.
    """
    cache = CheckCache(FINGERPRINTS if config.clean else VERIFY, config.image_root)
    sources = [read_one(source, config.seed, workers)[0] for source in config.sources]
    own = [rows_of_shard(source.table, shard) for source in sources]
    table = _checked(config, cache, sources, own, workers)
    _compute_features(config, table, workers)
    done = f"{table['image_path'].nunique():,} good images"
    if config.clean is None or config.clean.near is None:
        return done
    if not all(
        cache.are_cached(source.table["image_path"].unique(), source.root, open_as_seen)
        for source in sources
    ):
        return f"{done}; run all parts again to share the comparison of similar images"
    everything = _checked(config, cache, sources, [source.table for source in sources], workers)
    images = images_of(everything).drop_duplicates("pixels").reset_index(drop=True)
    embed = embed_for(config.clean, config.image_root, Path(config.features), workers)
    digests = dict(zip(images["image_path"], images["pixels"], strict=True))
    pixels = Pixels(config.image_root, workers, digests)
    pairs = measured(images, config.clean.near, embed, pixels, shard)
    return f"{done}, {len(pairs):,} pairs of similar images"


def _checked(
    config: MixConfig,
    cache: CheckCache,
    sources: Sequence[Manifest],
    tables: Sequence[pd.DataFrame],
    workers: int,
) -> pd.DataFrame:
    """Return the good rows of all sources in one table, with their checks."""
    checked = []
    for source, rows in zip(sources, tables, strict=True):
        if config.verify:
            paths = rows["image_path"].unique()
            found = cache.rows(paths, source.root, open_as_seen, workers, str(source.path))
            rows = rows.merge(found, left_on="image_path", right_index=True, suffixes=("_", ""))
            rows = rows[rows["reason"] == ""]
        prefix = prefix_of(source.root, config.image_root)
        checked.append(rows.assign(image_path=prefix + rows["image_path"]))
    return combine(checked)


def _compute_features(config: MixConfig, table: pd.DataFrame, workers: int) -> None:
    """Compute the features that the steps of curation ask for, of the rows that need them."""

    def compute(by: ClipConfig | ProxyEvaluatorConfig, rows: pd.DataFrame) -> None:
        paths = rows["image_path"].drop_duplicates()
        features_of(by, paths, config.image_root, config, workers)

    train = table[table["split"] == "train"]
    if labels := config.pseudo_labels:
        compute(labels.clip, train[train["domain"].isin(labels.domains)])
    clean = config.clean
    if clean and clean.model:
        if clean.outliers or clean.cap == "diverse" or clean.suggest_merges is not None:
            embed = embed_for(clean, config.image_root, Path(config.features), workers)
            embed(train["image_path"].drop_duplicates().tolist(), "whole")
    if config.shares and config.shares.domain_source:
        compute(config.shares.domain_source.clip, train)
    if config.selection and config.selection.evaluator == "proxy":
        assert config.selection.proxy is not None  # checked with the config
        compute(config.selection.proxy, table)
