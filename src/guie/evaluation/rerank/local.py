"""Re-rank the first candidates by patches that match one another, with a geometric check.

Shapes: B queries, C candidates, P patches of an image, row by row, F features of a patch, M matches.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import cv2
import numpy as np

DEPTH = 50  # candidates that are compared patch by patch
WEIGHT = 1.0  # of the share of consistent patches, added to a cosine
TOLERANCE = 1.0  # largest error of a consistent match, in patches
FEWEST = 3  # matches: two fit any similarity transform
DRAWS = 200  # of RANSAC

# Return the patches of rows of the index: unit vectors (C, P, F).
PatchesOf = Callable[[np.ndarray], np.ndarray]


def consistent_shares(query_PF: np.ndarray, image_CPF: np.ndarray) -> np.ndarray:
    """Return the share of the query's patches with a consistent match in each image: float32 [C].

    A match is a pair of patches, each the other's nearest in its image. It is consistent if it fits the
    similarity transform (shift, rotation, scale) that RANSAC finds. Candidates are ordered by such matches
    in Noh et al., Large-Scale Image Retrieval with Attentive Deep Local Features, ICCV 2017.

    Args:
        query_PF, image_CPF: unit vectors of patches on a square grid.
    """
    side = math.isqrt(len(query_PF))
    place_P2 = np.stack(np.divmod(np.arange(len(query_PF)), side), axis=1).astype(np.float32)
    cosine_CPP = np.einsum("qf,cif->cqi", query_PF, image_CPF, optimize=True)
    nearest_CP, back_CP = cosine_CPP.argmax(axis=2), cosine_CPP.argmax(axis=1)
    shares = []
    for nearest_P, back_P in zip(nearest_CP, back_CP, strict=True):
        matched_M = np.flatnonzero(back_P[nearest_P] == np.arange(len(query_PF)))
        here_M2, there_M2 = place_P2[matched_M], place_P2[nearest_P[matched_M]]
        shares.append(_consistent(here_M2, there_M2) / len(query_PF))
    return np.array(shares, np.float32)


def _consistent(here_M2: np.ndarray, there_M2: np.ndarray) -> int:
    """Count the matches that fit one similarity transform. OpenCV's draws are the same in each call."""
    if len(here_M2) < FEWEST:
        return 0
    _, fits_M1 = cv2.estimateAffinePartial2D(
        here_M2, there_M2, ransacReprojThreshold=TOLERANCE, maxIters=DRAWS
    )
    return 0 if fits_M1 is None else int(fits_M1.sum())


def reordered(
    rows_BC: np.ndarray, score_BC: np.ndarray, patches_BPF: np.ndarray, patches_of: PatchesOf
) -> tuple[np.ndarray, np.ndarray]:
    """Order the first DEPTH candidates by score + WEIGHT x share; the others follow as before.

    Args:
        rows_BC: in their order, -1 past the end. score_BC: -inf past the end.
        patches_BPF: of the queries.
    """
    rows_BC, score_BC = rows_BC.copy(), score_BC.copy()
    for rows_C, score_C, query_PF in zip(rows_BC, score_BC, patches_BPF, strict=True):
        first_C = rows_C[:DEPTH][rows_C[:DEPTH] >= 0].copy()
        if len(first_C):
            shares_C = consistent_shares(query_PF, patches_of(first_C))
            better_C = score_C[: len(first_C)] + WEIGHT * shares_C
            order_C = np.lexsort((first_C, -better_C))
            rows_C[: len(first_C)], score_C[: len(first_C)] = first_C[order_C], better_C[order_C]
    return rows_BC, score_BC
