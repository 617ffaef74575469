"""What the steps of a mix share: its config, its report, and features of its images."""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from accelerate import Accelerator

from guie.base.devices import make_accelerator
from guie.config.data import CleaningConfig, ClipConfig, MixConfig, ProxyEvaluatorConfig
from guie.curation.summary import CurationReport
from guie.models.opening import LoadedModel, open_model
from guie.rows.comparison import VIEWS
from guie.rows.embedding import stored_features
from guie.rows.fingerprints import thumbnails
from guie.rows.store import Rows

# Paths, and `whole` or the name of a view in VIEWS -> (N, D) features of unit length.
Embed = Callable[[Sequence[str], str], np.ndarray | Rows]
EmbedderConfig = CleaningConfig | ClipConfig | ProxyEvaluatorConfig  # settings that name a model


class Job(NamedTuple):
    """A run of curate.py: its config, and what its steps report."""

    config: MixConfig
    workers: int
    report: CurationReport

    def embed(
        self, by: EmbedderConfig, root: Path | None = None, part: tuple[int, int] = (0, 1)
    ) -> Embed:
        """Return `embed_for` of images below `root`, by default the mix's."""
        root = root or self.config.image_root
        return embed_for(by, root, self.config.features, self.workers, part)


def embed_for(
    config: EmbedderConfig,
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


def unit(rows_ND: np.ndarray) -> np.ndarray:
    """Scale rows to unit length; a zero row stays zero."""
    length_N1 = np.linalg.norm(rows_ND, axis=1, keepdims=True)
    return rows_ND / np.where(length_N1 > 0, length_N1, 1.0)
