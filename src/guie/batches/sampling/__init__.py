"""Which images a step trains on: a pure function of (seed, step), whatever came before.

A plan says which domains a step is of (`plans`, `loss_driven`); a stream says which images of a
domain come next (`streams`); `Sampler` puts the two together. Nothing has state, so a resumed run
needs the step alone, and the global batch is the same for any number of processes and workers.
The one exception is the loss-driven plan, whose state is handed in and out.
"""

from guie.batches.sampling.ranks import RankBatches, RankDraws, RankViews
from guie.batches.sampling.sampler import Sampler
from guie.batches.sampling.streams import Stream

__all__ = ["RankBatches", "RankDraws", "RankViews", "Sampler", "Stream"]
