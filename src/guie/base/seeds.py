"""Random choices that depend on the seed and the thing itself, not on what stands around it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np


def seeded_draws(seed: int, names: Iterable[str]) -> np.ndarray:
    """One uniform 64-bit number a name: sorting by it is a shuffle that row order cannot change.

    A generator would tie each choice to the order and the number of all rows before it, so that
    one image more would change the mix everywhere.
    """
    digests = (hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8) for name in names)
    return np.fromiter((int.from_bytes(d.digest(), "big") for d in digests), dtype=np.uint64)
