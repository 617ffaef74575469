"""Candidates for a mix, and scores that are known beforehand."""

from __future__ import annotations

import math

import numpy as np

from guie.config.data import SelectionRule
from guie.curation.selection import Candidate, mix_name

CERTAIN = SelectionRule(seeds=2, confirm_seeds=0, min_standard_errors=0.0)
WORTH = {"a": 0.3, "b": 0.1, "c": 0.05, "d": -0.02, "e": 0.0}


def candidates(names: str = "abcde", caps: tuple[int, ...] = (0,)) -> list[Candidate]:
    return [Candidate(name, cap) for name in names for cap in caps]


def noise(mix, seed: int, size: float) -> float:
    """A normal draw that belongs to this mix and seed."""
    key = [seed, *mix_name(mix).encode()]
    return size * float(np.random.default_rng(key).normal())


def additive(size: float = 0.0):
    """Scores that add what each source is worth, with noise of its own for each mix and seed."""

    def scores(mix, seeds):
        value = math.fsum(WORTH[c.source] for c in mix)  # in any order the same
        return np.array([value + noise(mix, seed, size) for seed in seeds])

    return scores
