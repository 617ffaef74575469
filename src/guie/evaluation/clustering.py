"""How well clusters of embeddings agree with the classes, with no neighbour searched: NMI.

Shape legend: N images, D dimensions.
"""

from __future__ import annotations

import faiss
import numpy as np
from sklearn.metrics import normalized_mutual_info_score


def nmi(emb_ND: np.ndarray, label_N: np.ndarray, seed: int = 0, iterations: int = 20) -> float:
    """Normalised mutual information of k-means clusters and classes: 2 I / (H + H), 1 where equal.

    As metric learning reports it (pytorch-metric-learning's AccuracyCalculator): faiss' k-means on
    unit vectors, as many clusters as classes, begun at randomly picked images. The distance is
    Euclidean and centroids stay means, inside the sphere: not the spherical variant. Every image
    takes part, however large its class (faiss alone would sample 256 a cluster).

    The value moves with the start: report seed and iterations beside it, and the mean of several
    seeds where it decides something. One seed gives one value for one order of the rows. It is far
    above 0 for random embeddings of small classes: compare it within one set of images.

    Args:
        emb_ND: any float; brought to unit length, as the search has it. A zero vector stays zero.
        label_N: one class an image; a text `a|b` is a class of its own.
        seed: picks the images that the clusters begin at.
        iterations: of k-means.

    Returns:
        0 to 1. With a single class there is a single cluster, and the value 1. Where no two images
        share a class each is its own cluster: 1, unless two vectors are equal.

    Raises:
        ValueError: no image, not one label an image, or a value that is not finite.
    """
    emb_ND = np.asarray(emb_ND, np.float32)
    if not len(emb_ND) or len(emb_ND) != len(label_N):
        raise ValueError(
            f"{len(label_N)} labels for {len(emb_ND)} embeddings; at least one of each"
        )
    with np.errstate(over="ignore"):
        norm_N1 = np.linalg.norm(emb_ND, axis=1, keepdims=True)
    if not np.isfinite(norm_N1).all():
        raise ValueError("an embedding is not finite, or too large")
    unit_ND = (emb_ND / np.where(norm_N1 > 0, norm_N1, 1)).astype(np.float32)
    names, class_N = np.unique(label_N, return_inverse=True)
    kmeans = faiss.Kmeans(
        unit_ND.shape[1],
        len(names),
        niter=iterations,
        seed=seed,
        min_points_per_centroid=1,  # faiss warns below; classes of a few images are ordinary here
        max_points_per_centroid=len(unit_ND),
    )
    kmeans.train(unit_ND)
    _, cluster_N1 = kmeans.index.search(unit_ND, 1)
    return min(1.0, float(normalized_mutual_info_score(class_N, cluster_N1[:, 0])))
