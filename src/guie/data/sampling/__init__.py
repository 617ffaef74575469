"""Choose the images of each training step as a pure function of (seed, step)."""

from __future__ import annotations

from guie.data.sampling.sampler import RankBatches, RankViews, Sampler
from guie.data.sampling.streams import Stream

__all__ = ["RankBatches", "RankViews", "Sampler", "Stream"]
