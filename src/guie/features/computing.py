"""Features of images under a model: computed by all processes, each image once.

A killed run goes on at the next shard, a changed file is computed again, new ones are added.
Shapes: B images of a batch, C channels, H height, W width, N images, D features.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from accelerate import Accelerator
from PIL import Image
from torch import Tensor, nn
from tqdm import tqdm

from guie.config.cleaning import CleaningConfig
from guie.curation.decoded import file_states
from guie.curation.links import Embed
from guie.curation.thumbnails import thumbnails
from guie.curation.views import VIEWS
from guie.data import as_batch
from guie.devices import from_main, make_accelerator
from guie.embedding import embed_files
from guie.errors import UserError
from guie.features.cache import FeatureCache, Features
from guie.model import LoadedModel, open_model

SHARD = 4096  # images: what a killed run computes again at the most
DECODER = "open_as_host"  # of EvalDataset


class Viewed(nn.Module):
    """A preprocessing behind a view: what it sees of a picture first."""

    def __init__(self, view: Callable[[Image.Image], Image.Image], preprocess: nn.Module):
        super().__init__()
        self.view, self.preprocess = view, preprocess

    def forward(self, images_1CHW: Tensor) -> Tensor:
        """(1, 3, H, W) uint8 -> as `preprocess`."""
        image = Image.fromarray(images_1CHW[0].permute(1, 2, 0).numpy())
        return self.preprocess(as_batch(np.asarray(self.view(image))))


def cached_features(
    accelerator: Accelerator,
    model: LoadedModel,
    paths: Sequence[str],
    root: str | Path,
    folder: str | Path,
    *,
    batch_size: int = 128,
    workers: int = 2,
    view: str = "whole",
) -> Features:
    """Features of `root / path` for each path, computed where the cache has none.

    Every process must call it, with the same paths, and gets all rows; the main one alone writes,
    to a folder that all can read.

    Args:
        view: `whole`, or a name of `guie.curation.views.VIEWS`.

    Raises:
        UserError: an image cannot be read, or the cache cannot be written.
    """
    model.embedder.to(accelerator.device)
    preprocess = model.preprocess if view == "whole" else Viewed(VIEWS[view], model.preprocess)
    cache = FeatureCache(folder, recipe(model, accelerator.mixed_precision) | {"view": view})
    files = absolute(root, paths)
    states = from_main(accelerator, lambda: readable_states(files, DECODER))
    missing = from_main(accelerator, lambda: cache.missing(states))

    def embed(block: np.ndarray) -> np.ndarray:
        return embed_files(
            accelerator,
            model.embedder,
            preprocess,
            [Path(files[row]) for row in block],
            batch_size=batch_size,
            workers=workers,
        )

    fill(accelerator, cache, states, missing, embed, f"features ({view})")
    return cache.open(states, model.embedder.dim)


def fill(
    accelerator: Accelerator,
    cache: FeatureCache,
    states: pd.DataFrame,
    missing: np.ndarray,
    embed: Callable[[np.ndarray], np.ndarray],
    title: str,
) -> None:
    """Compute what is missing, shard by shard.

    Args:
        states, missing: what `FeatureCache.missing` takes and gives.
        embed: positions in `states` -> their features, in every process alike.
    """
    hidden = None if accelerator.is_local_main_process else True
    blocks = range(0, len(missing), SHARD)
    for start in tqdm(blocks, desc=title, unit="shard", disable=hidden):
        block = missing[start : start + SHARD]
        features_ND = embed(block)
        from_main(accelerator, partial(cache.add, states.iloc[block], features_ND))


def embed_for(config: CleaningConfig, root: Path, folder: Path, workers: int) -> Embed:
    """The features that cleaning compares by: cached ones of its model, or thumbnails.

    The model is opened when features are first asked for: most mixes have no near-duplicates to
    confirm. Raises UserError where there is no such model.
    """
    if config.model is None:
        return partial(thumbnails, root=root, workers=workers)

    @lru_cache(maxsize=1)
    def opened() -> tuple[Accelerator, LoadedModel]:
        return make_accelerator(), open_model(config.model, config.size_px)

    return lambda paths, view: cached_features(
        *opened(), paths, root, folder, workers=workers, view=view
    )


def recipe(model: LoadedModel, mixed_precision: str) -> dict[str, Any]:
    """What a feature depends on but the image: architecture, weights, preprocessing, precision."""
    return {
        "gives": type(model.embedder).__name__,  # a headless Embedder has the weights of a Tower
        "model": model.config.model_dump(mode="json"),
        "weights_sha256": state_hash(model.embedder),
        "preprocess": model.preprocess.recipe(),
        "mixed_precision": mixed_precision,
    }


def state_hash(module: nn.Module) -> str:
    """SHA-256 of all weights and buffers, by name: those of a run change with every training."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        values = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(values.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def absolute(root: str | Path, paths: Sequence[str]) -> list[str]:
    """The files of image paths, by the names that caches know them by."""
    inside = os.path.abspath(root)
    return [os.path.join(inside, path) for path in paths]


def readable_states(files: Sequence[str], decoder: str) -> pd.DataFrame:
    """`file_states`. Raises UserError where a file cannot be read."""
    states = file_states(files, decoder)
    absent = states.loc[states["size_bytes"] < 0, "file"]
    if len(absent):
        raise UserError(
            f"{absent.iloc[0]}: no such image, or no permission to read it ({len(absent):,} of"
            f" {len(files):,}); is the root the folder that image_path starts from?"
        )
    return states
