"""Features of images for curation: of a model, stored, or of thumbnails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
from accelerate import Accelerator

from guie.base.devices import make_accelerator
from guie.config.data import CleaningConfig, ClipConfig, ProxyEvaluatorConfig
from guie.models.opening import LoadedModel, open_model
from guie.rows.checks import thumbnails
from guie.rows.comparison import VIEWS
from guie.rows.embedding import stored_features
from guie.rows.store import Rows

# Paths, and `whole` or the name of a view in VIEWS -> (N, D) features of unit length.
Embed = Callable[[Sequence[str], str], np.ndarray | Rows]


def embed_for(
    config: CleaningConfig | ClipConfig | ProxyEvaluatorConfig,
    root: Path,
    folder: str | Path,
    workers: int,
    part: tuple[int, int] = (0, 1),
) -> Embed:
    """Return what computes features of images below `root`: those of the config's model, or thumbnails.

    The model is opened at first use, because most mixes have no near-duplicates to confirm. Its features are
    stored in `folder`, and only missing ones of part n of m are computed. Raises UserError if there is no
    such model.
    """
    model = config.model
    if model is None:
        return partial(thumbnails, root=root, workers=workers)
    fit = "squash" if isinstance(config, CleaningConfig) else config.fit
    reopen = partial(open_model, model, config.size_px, fit)

    @lru_cache(maxsize=1)
    def opened() -> tuple[Accelerator, LoadedModel]:
        return make_accelerator(), reopen()

    def embed(paths: Sequence[str], view: str) -> Rows:
        accelerator, loaded = opened()
        return stored_features(
            accelerator,
            loaded,
            paths,
            root,
            folder,
            view=None if view == "whole" else (view, VIEWS[view]),
            part=part,
            reopen=reopen,
            workers=workers,
        )

    return embed
