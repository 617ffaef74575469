"""Samplers of every kind over three domains, and what they are counted by."""

from __future__ import annotations

from collections import Counter

import pandas as pd
import pytest

from guie.data.sampling import Sampler

SIZES = {"cars": 120, "toys": 40, "art": 5}  # art is smaller than a batch
DOMAINS = pd.Series([name for name, size in SIZES.items() for _ in range(size)])
# 5 images a class; of the first two classes of cars, one has 1 and one 9
LABELS = DOMAINS + "/" + pd.Series([str(max(row // 5, 1) if row else 0) for row in range(165)])
STEPS = {"cars": 20, "toys": 60, "art": 20}
PK = {"images_per_class": 4, "rare_classes": "repeat"}
KINDS = {
    "mixed": "mixed",
    "mixed by temperature": {"name": "mixed", "temperature": 2.0},
    "dataset_size": "dataset_size",
    "temperature": {"name": "dataset_size", "temperature": 2.0},
    "balanced": "balanced",
    "factors": {"name": "balanced", "factors": {"art": 2.0}},
    "round_robin": "round_robin",
    "specialist_steps": {"name": "specialist_steps", "steps": STEPS},
    "loss_driven": {"name": "loss_driven", "period": "100 steps"},
    "mixed P x K": {"name": "mixed", **PK},
    "mixed P x K by temperature": {"name": "mixed", **PK, "temperature": 2.0},
    "P x K": {"name": "dataset_size", **PK},
}
each_kind = pytest.mark.parametrize("kind", KINDS)


def sampler(kind: str | dict, seed: int = 0, batch_size: int = 8, **more) -> Sampler:
    config = KINDS.get(kind, kind) if isinstance(kind, str) else kind
    return Sampler(DOMAINS, config, batch_size, (seed, 0), label_of_row=LABELS, **more)


def domain_counts(one: Sampler, steps: int) -> Counter:
    """How many batches were of each domain."""
    return Counter(DOMAINS[one.batch(step)[0]] for step in range(steps))
