"""Features of images under a model: computed by all processes, each image once.

A killed run goes on at the next shard, a changed file is computed again, new ones are added.
Shapes: B images of a batch, C channels, H height, W width, N images, D features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd
import torch
from accelerate import Accelerator
from PIL import Image
from pydantic import BaseModel
from torch import Tensor, nn

from guie.base.devices import from_main, make_accelerator
from guie.base.errors import UserError
from guie.batches.dataset import EvalDataset, as_batch
from guie.config.cleaning import CleaningConfig
from guie.data.images import decoder_key, open_as_host
from guie.data.looks.boxes import Box
from guie.data.looks.decoded import absolute, file_states
from guie.data.looks.thumbnails import thumbnails
from guie.data.looks.views import VIEWS
from guie.evaluation.extract import Embeds, embed_blocks
from guie.evaluation.features.cache import FeatureCache, Features
from guie.model import LoadedModel, open_model
from guie.model.looks import AnyPreprocess
from guie.model.weights import state_hash

DECODER = decoder_key(open_as_host)  # of EvalDataset, if by no other


class Embedding(Embeds, Protocol):
    """One whose embeddings can be kept: by its weights they are known."""

    cache_key: str

    def to(self, device: torch.device) -> Any: ...

    def state_dict(self) -> Mapping[str, Tensor]: ...


class Model(Protocol):
    """What features are computed by and known by: of a `LoadedModel`, or of a stage's tower."""

    @property
    def embedder(self) -> Embedding: ...

    @property
    def preprocess(self) -> AnyPreprocess: ...

    @property
    def config(self) -> BaseModel: ...


class Viewed(nn.Module):
    """A preprocessing behind a view: what it sees of a picture first."""

    def __init__(self, view: Callable[[Image.Image], Image.Image], preprocess: nn.Module):
        super().__init__()
        self.view, self.preprocess = view, preprocess

    def forward(self, images_1CHW: Tensor) -> Tensor:
        """(1, 3, H, W) uint8 -> as `preprocess`."""
        image = Image.fromarray(images_1CHW[0].permute(1, 2, 0).numpy())
        return self.preprocess(as_batch(np.asarray(self.view(image))))


# Paths and the name of a view -> (N, D) features of unit length.
Embed = Callable[[Sequence[str], str], np.ndarray | Features]


def cached_features(
    accelerator: Accelerator,
    model: Model,
    paths: Sequence[str],
    root: str | Path,
    folder: str | Path,
    *,
    view: str = "whole",
    **settings: Any,
) -> Features:
    """Features of `root / path` for each path, computed where the cache has none.

    Every process must call it, with the same paths, and gets all rows; the main one alone writes,
    to a folder that all can read.

    Args:
        view: `whole`, or a name of `guie.data.looks.views.VIEWS`.
        settings: of `embed_blocks`.

    Raises:
        UserError: an image cannot be read, or the cache cannot be written.
    """
    model.embedder.to(accelerator.device)
    preprocess = model.preprocess if view == "whole" else Viewed(VIEWS[view], model.preprocess)
    cache = FeatureCache(folder, recipe(model, accelerator.mixed_precision) | {"view": view})
    files, title = absolute(root, paths), f"features ({view})"
    made_by = (accelerator, model.embedder, preprocess)
    states = embed_into(cache, *made_by, files, title=title, **settings)
    return cache.open(states, model.embedder.dim)


def embed_into(
    cache: FeatureCache,
    accelerator: Accelerator,
    embedder: Embeds,
    preprocess: Callable[[Tensor], Tensor],
    files: Sequence[str],
    boxes: Sequence[Box | None] | None = None,
    open_image: Callable[[Path], Image.Image] = open_as_host,
    **settings: Any,
) -> pd.DataFrame:
    """Compute what the cache has none of, in all processes; returns what `FeatureCache.open` takes.

    Args:
        boxes: what each image is cropped to, None for the whole; the cache keeps them apart.
        open_image: how they are decoded; the cache keeps that apart too.
        settings: of `embed_blocks`.

    Raises UserError as `cached_features`.
    """
    boxes = boxes or [None] * len(files)
    decoder = decoder_key(open_image)
    states = from_main(accelerator, lambda: readable_states(files, decoder))
    decoders = [f"{decoder} {tuple(box)}" if box else decoder for box in boxes]
    states = states.assign(decoder=pd.Series(decoders, states.index, dtype=str))
    missing = from_main(accelerator, lambda: cache.missing(states))
    wanted, crops = [Path(files[row]) for row in missing], [boxes[row] for row in missing]
    dataset = EvalDataset(wanted, preprocess, crops, open_image)
    blocks = embed_blocks(accelerator, embedder, dataset, **settings)
    fill(accelerator, cache, states, missing, blocks)
    return states


def fill(
    accelerator: Accelerator,
    cache: FeatureCache,
    states: pd.DataFrame,
    missing: np.ndarray,
    blocks: Iterable[np.ndarray],
) -> None:
    """Keep what was missing, block by block: what a killed run computes again at the most.

    Args:
        states, missing: what `FeatureCache.missing` takes and gives.
        blocks: features of what is missing, in its order, in every process alike.
    """
    if len(missing):  # where no file can be written, that is known before hours of computing
        from_main(accelerator, cache.begin)
    done = 0
    for features_ND in blocks:
        rows = missing[done : done + len(features_ND)]
        from_main(accelerator, partial(cache.add, states.iloc[rows], features_ND))
        done += len(rows)


def embed_for(config: CleaningConfig, root: Path, folder: Path, workers: int) -> Embed:
    """The features that cleaning compares by: cached ones of its model, or thumbnails.

    The model is opened when features are first asked for: most mixes have no near-duplicates to
    confirm. Raises UserError where there is no such model.
    """
    word = config.model
    if word is None:
        return partial(thumbnails, root=root, workers=workers)

    @lru_cache(maxsize=1)
    def opened() -> tuple[Accelerator, LoadedModel]:
        return make_accelerator(), open_model(word, config.size_px)

    return lambda paths, view: cached_features(
        *opened(), paths, root, folder, workers=workers, view=view
    )


def recipe(model: Model, mixed_precision: str) -> dict[str, Any]:
    """What a feature depends on but the image: architecture, weights, preprocessing, precision."""
    return {
        "gives": model.embedder.cache_key,  # a headless Embedder has the weights of a Tower
        "model": model.config.model_dump(mode="json"),
        "weights_sha256": state_hash(model.embedder.state_dict()),
        "preprocess": model.preprocess.recipe(),
        "mixed_precision": mixed_precision,
    }


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
