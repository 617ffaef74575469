"""The challenge's public and private leaderboards."""

from __future__ import annotations

import hashlib

import numpy as np

from guie.evaluation.protocols.retrieval import Scores, plain

PUBLIC_SHARE = 0.3


def public_and_private(scores: Scores) -> dict[str, dict[str, float | None]]:
    """The means over the 30 % of the queries that are public, and over the rest."""
    public_Q = np.array([is_public(path) for path in scores.path_Q], dtype=bool)
    return {
        name: plain(scores.values[own_Q].mean())
        for name, own_Q in (("public", public_Q), ("private", ~public_Q))
    }


def is_public(image_path: str) -> bool:
    """Tell whether a query belongs to the public 30 %, by a hash of its path, as score.py does."""
    digest = hashlib.sha256(image_path.encode()).digest()
    return int.from_bytes(digest[:8], "big") < PUBLIC_SHARE * 2**64
