"""Which domains a step is of. Shapes: D domains, S steps.

A plan gives away units: batches, where a batch is of one domain; images, or K images of one class,
where a batch mixes domains. `at(step)` says in O(D) how many units of each domain the step takes,
and how many were taken before it: where in the domain's stream the step goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np

from guie.batches.sampling.shares import apportion
from guie.batches.sampling.streams import key

Units = tuple[np.ndarray, np.ndarray]  # of each domain: taken by the step, and before it


class Plan(Protocol):
    """What `Sampler` asks of a plan."""

    def at(self, step: int) -> Units:
        """Units of each domain (D,): taken by this step, and by all steps before it."""

    def shares(self, step: int) -> np.ndarray:
        """The share of each domain (D,) around this step."""


class Cyclic:
    """One unit a step, of the domains in turn."""

    def __init__(self, domains: int):
        self.domains = np.arange(domains)

    def at(self, step: int) -> Units:
        turn, place = divmod(step, len(self.domains))
        return (self.domains == place).astype(int), turn + (self.domains < place)

    def shares(self, step: int) -> np.ndarray:
        return np.full(len(self.domains), 1 / len(self.domains))


class Shuffled:
    """Units in fixed shares, dealt to the steps of an epoch in a new order each time.

    Over any number of epochs every domain gets its share, give or take one unit, and in each step
    of an epoch as many units as in any other, give or take one.

    Args:
        share_D: of sum 1.
        steps: S, steps of an epoch.
        units: what a step takes, of all domains together; `steps * units` is at least D.
        seed: integers that tell this plan from all others.
    """

    def __init__(self, share_D: np.ndarray, steps: int, units: int, seed: Sequence[int]):
        self.share_D, self.steps, self.units, self.seed = share_D, steps, units, tuple(seed)
        self.given_ED, self.owed_D = [np.zeros(len(share_D), int)], np.zeros(len(share_D))
        self._before = lru_cache(maxsize=2)(self._deal)

    def at(self, step: int) -> Units:
        epoch, offset = divmod(step, self.steps)
        before_SD = self._before(epoch)
        taken_D = before_SD[offset + 1] - before_SD[offset]
        return taken_D, self.given_ED[epoch] + before_SD[offset]

    def shares(self, step: int) -> np.ndarray:
        return self.share_D

    def _deal(self, epoch: int) -> np.ndarray:
        while len(self.given_ED) < epoch + 2:
            quota_D, self.owed_D = apportion(self.share_D, self.steps * self.units, self.owed_D)
            self.given_ED.append(self.given_ED[-1] + quota_D)
        rng = np.random.default_rng([*self.seed, key("plan"), epoch])
        return deal(self.given_ED[epoch + 1] - self.given_ED[epoch], self.steps, rng)


def deal(quota_D: np.ndarray, steps: int, rng: np.random.Generator) -> np.ndarray:
    """Deal units to steps like cards, domain by domain, and shuffle the steps.

    Returns: (S + 1, D), units of each domain that were dealt before a step.
    """
    end_D = np.cumsum(quota_D)
    step_S1 = np.arange(steps)[:, None]

    def dealt_SD(card_D: np.ndarray) -> np.ndarray:  # to step s go cards s, s + S, s + 2S ...
        return (card_D - step_S1 + steps - 1) // steps

    taken_SD = (dealt_SD(end_D) - dealt_SD(end_D - quota_D))[rng.permutation(steps)]
    return np.concatenate([np.zeros((1, len(quota_D)), int), np.cumsum(taken_SD, axis=0)])
