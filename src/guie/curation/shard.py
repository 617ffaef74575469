"""Compute a part of what a mix needs of each image, as one of several jobs; curating then finds all of it."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from guie.base.devices import make_accelerator
from guie.config import MixConfig
from guie.config.data import CleaningConfig, ClipConfig, ProxyEvaluatorConfig
from guie.curation.pipeline import combine, prefix_of, read_one
from guie.data.image_checks.cache import CheckCache
from guie.data.image_checks.decoding import VERIFY
from guie.data.image_checks.hashes import FINGERPRINTS
from guie.data.images import open_as_seen
from guie.data.manifest import rows_of_shard
from guie.evaluation.feature_cache import cached_features
from guie.models.loading import open_model

Extractor = ClipConfig | CleaningConfig | ProxyEvaluatorConfig  # each names a model


def compute_shard(config: MixConfig, shard: tuple[int, int], workers: int) -> int:
    """Check part N of M of each source's images, compute their features, and return their number.

    Results go into the caches that `curate` reads: checks with fingerprints in `GUIE_CACHE`, features in the
    config's `features`. Later steps may drop an image that got features here. Raises UserError.
    """
    cache = CheckCache(FINGERPRINTS if config.clean else VERIFY, config.image_root)
    tables = []
    for source in config.sources:
        read, _ = read_one(source, config.seed, workers)
        rows = rows_of_shard(read.table, shard)
        if config.verify:
            assert source.path is not None  # `with_path` has found it
            paths = rows["image_path"].unique()
            checked = cache.rows(paths, read.root, open_as_seen, workers, source.path)
            rows = rows[rows["image_path"].map(checked["reason"]) == ""]
        prefix = prefix_of(read.root, config.image_root)
        tables.append(rows.assign(image_path=prefix + rows["image_path"]))
    table = combine(tables)
    for extractor, rows in _features(config, table):
        assert extractor.model is not None
        model = open_model(extractor.model, extractor.size_px, getattr(extractor, "fit", "squash"))
        paths = rows["image_path"].drop_duplicates().tolist()
        root, folder = config.image_root, config.features
        cached_features(make_accelerator(), model, paths, root, folder, workers=workers)
    return table["image_path"].nunique()


def _features(config: MixConfig, table: pd.DataFrame) -> Iterator[tuple[Extractor, pd.DataFrame]]:
    """Yield each model whose features the steps of curation ask for, and the rows that need them."""
    train = table[table["split"] == "train"]
    if labels := config.pseudo_labels:
        yield labels.clip, train[train["domain"].isin(labels.domains)]
    clean = config.clean
    if clean and (clean.outliers or clean.cap == "diverse" or clean.suggest_merges is not None):
        yield clean, train
    if config.shares and config.shares.domain_source:
        yield config.shares.domain_source.clip, train
    if config.selection and config.selection.evaluator == "proxy" and config.selection.proxy:
        yield config.selection.proxy, table
