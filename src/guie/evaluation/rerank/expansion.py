"""Replace a vector by a weighted mean of itself and its mutual neighbours.

For queries this is alpha query expansion, for index images database augmentation. Two images are mutual
neighbours if each is among the other's K nearest (Zhong et al., Re-ranking Person Re-identification
with k-reciprocal Encoding, CVPR 2017).

Shapes: N index rows, D dimensions, B queries, C candidates of a query, K neighbours.
"""

from __future__ import annotations

import numpy as np

from guie.evaluation.rerank.neighbours import Find, NeighbourLists

NEIGHBOURS = 5  # that may enter a mean
ALPHA = 3.0  # exponent of the weights


def weighted_mean(
    vector_ED: np.ndarray, neighbour_EKD: np.ndarray, score_EK: np.ndarray
) -> np.ndarray:
    """Return unit vectors of x + sum over k of max(x . x_k, 0)^ALPHA x_k: float32 [E, D].

    Radenovic et al., Fine-tuning CNN Image Retrieval with No Human Annotation, TPAMI 2019
    (alpha-weighted query expansion): the weight of a neighbour is its similarity to the power alpha.

    Args:
        vector_ED: E unit vectors.
        neighbour_EKD: their neighbours, unit vectors.
        score_EK: similarities; -inf leaves a neighbour out.
    """
    weight_EK = np.where(np.isfinite(score_EK), np.maximum(score_EK, 0), 0) ** ALPHA
    sum_ED = vector_ED + np.einsum("ek,ekd->ed", weight_EK.astype(np.float32), neighbour_EKD)
    length_E1 = np.linalg.norm(sum_ED, axis=1, keepdims=True)
    return (sum_ED / np.where(length_E1 > 0, length_E1, 1)).astype(np.float32)


def expanded_queries(
    queries_BD: np.ndarray, own_B: np.ndarray, lists: NeighbourLists, find: Find
) -> np.ndarray:
    """Return each query's mean with those of its NEIGHBOURS nearest images that have it among theirs.

    A query is among an image's K nearest if fewer than K other images are nearer to the image.
    """
    row_BK, score_BK = find(queries_BD, NEIGHBOURS, own_B)
    _, theirs_BKK = lists.without(row_BK, own_B, NEIGHBOURS)
    is_mutual_BK = score_BK >= theirs_BKK[:, :, -1]
    score_BK = np.where(is_mutual_BK & (row_BK >= 0), score_BK, -np.inf)
    return weighted_mean(queries_BD, lists.vectors_ND[row_BK], score_BK)


def augmented_scores(
    queries_BD: np.ndarray, rows_BC: np.ndarray, own_B: np.ndarray, lists: NeighbourLists
) -> np.ndarray:
    """Return similarities of queries and their candidates' means with mutual neighbours: [B, C].

    The query's own image enters no mean, and takes no place among the neighbours: otherwise, an
    evaluation would find the query inside the images that it looks for.
    """
    row_BCK, score_BCK = lists.without(rows_BC, own_B, NEIGHBOURS)
    lists.of(row_BCK.ravel())
    mutual_BCK = np.zeros(row_BCK.shape, bool)
    for place in range(row_BCK.shape[2]):
        theirs_BCK, _ = lists.without(row_BCK[:, :, place], own_B, NEIGHBOURS)
        mutual_BCK[:, :, place] = (theirs_BCK == rows_BC[:, :, None]).any(axis=2)
    score_BCK = np.where(mutual_BCK & (row_BCK >= 0), score_BCK, -np.inf)
    found = np.empty(rows_BC.shape, np.float32)
    for place, (query_D, rows_C, row_CK, score_CK) in enumerate(
        zip(queries_BD, rows_BC, row_BCK, score_BCK, strict=True)
    ):
        vectors_CD, near_CKD = lists.vectors_ND[rows_C], lists.vectors_ND[row_CK]
        found[place] = weighted_mean(vectors_CD, near_CKD, score_CK) @ query_D
    return found
