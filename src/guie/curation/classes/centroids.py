"""Sums of features by class. Shapes: N members, C classes, D dimensions."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix

from guie.evaluation.features import Features

CHUNK = 65_536


def class_sums(codes_N: np.ndarray, classes: int, features_ND: np.ndarray | Features) -> np.ndarray:
    """(C, D) float64 sums of the members' features; class c has the code c."""
    sums_CD = np.zeros((classes, features_ND.shape[1]))
    for start in range(0, len(codes_N), CHUNK):
        part_ND = np.asarray(features_ND[start : start + CHUNK], np.float64)
        rows, count = codes_N[start : start + CHUNK], len(part_ND)
        member_CN = csr_matrix((np.ones(count), (rows, np.arange(count))), (classes, count))
        sums_CD += member_CN @ part_ND
    return sums_CD


def unit(rows_ND: np.ndarray) -> np.ndarray:
    """Rows of length 1; a row of zeros stays as it is."""
    length_N1 = np.linalg.norm(rows_ND, axis=1, keepdims=True)
    return rows_ND / np.where(length_N1 > 0, length_N1, 1.0)
