"""Choose the images of each training step as a pure function of (seed, step)."""

from guie.data.sampling.sampler import RankBatches, Sampler
from guie.data.sampling.streams import Stream

__all__ = ["RankBatches", "Sampler", "Stream"]
