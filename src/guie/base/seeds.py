"""Random choices that depend only on the seed and the item's name, not on other items."""

import hashlib
from collections.abc import Iterable

import numpy as np


def seeded_draws(seed: int, names: Iterable[str]) -> np.ndarray:
    """Return one uniform 64-bit number per name; sorting by it shuffles independently of row order.

    With a generator, each choice would depend on the order and number of earlier rows. One more image
    would then change the whole mix.
    """
    digests = (hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8) for name in names)
    return np.fromiter((int.from_bytes(d.digest(), "big") for d in digests), dtype=np.uint64)
