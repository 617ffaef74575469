"""A class-disjoint split of our own, for datasets that were made to be classified."""

from __future__ import annotations

import numpy as np
import pandas as pd

from guie.base.errors import UserError
from guie.base.seeds import seeded_draws


def class_disjoint(label: pd.Series, test_classes: int, seed: int) -> pd.Series:
    """`test` for the images of `test_classes` random classes, else `train`.

    Which classes depends on the seed and their names alone, so that a missing one changes no
    other. Raises UserError if that would leave no class to train.
    """
    names = np.array(sorted(label.unique()), dtype=object)
    if test_classes >= len(names):
        raise UserError(f"test_classes {test_classes}: only {len(names)} classes are there")
    chosen = names[np.argsort(seeded_draws(seed, names))[:test_classes]]
    return label.isin(chosen).map({True: "test", False: "train"})
