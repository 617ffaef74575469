"""Compute a part of what a mix needs from each image, as one of several jobs, into the caches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from guie.base.devices import make_accelerator
from guie.config import MixConfig
from guie.curation.duplicates.candidates import images_of, measured
from guie.curation.duplicates.evidence import embed_for
from guie.curation.duplicates.pixels import Pixels
from guie.curation.pipeline import combine, prefix_of, read_one
from guie.data.image_checks.cache import CheckCache
from guie.data.image_checks.decoding import VERIFY
from guie.data.image_checks.hashes import FINGERPRINTS
from guie.data.images import open_as_seen
from guie.data.manifest import Manifest, rows_of_shard
from guie.evaluation.feature_cache import cached_features
from guie.models.loading import LoadedModel, open_model


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
    for model, rows in _features(config, table):
        paths = rows["image_path"].drop_duplicates().tolist()
        root, folder = config.image_root, config.features
        cached_features(make_accelerator(), model, paths, root, folder, workers=workers)
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


def _features(config: MixConfig, table: pd.DataFrame) -> Iterator[tuple[LoadedModel, pd.DataFrame]]:
    """Yield each model whose features the steps of curation ask for, and the rows that need them."""
    train = table[table["split"] == "train"]
    if labels := config.pseudo_labels:
        clip = labels.clip
        model = open_model(clip.model, clip.size_px, clip.fit)
        yield model, train[train["domain"].isin(labels.domains)]
    clean = config.clean
    if clean and clean.model:
        if clean.outliers or clean.cap == "diverse" or clean.suggest_merges is not None:
            yield open_model(clean.model, clean.size_px), train
    if config.shares and config.shares.domain_source:
        clip = config.shares.domain_source.clip
        yield open_model(clip.model, clip.size_px, clip.fit), train
    proxy = config.selection.proxy if config.selection else None
    if proxy and config.selection and config.selection.evaluator == "proxy":
        yield open_model(proxy.model, proxy.size_px, proxy.fit), table
