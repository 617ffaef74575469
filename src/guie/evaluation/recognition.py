"""Score recognition (GAP of Met and Google Landmarks) and clustering (NMI)."""

from __future__ import annotations

import faiss
import numpy as np

from guie.evaluation.knn import search_threads, unit_vectors

ITERATIONS = 20  # of k-means


def nmi(emb_ND: np.ndarray, label_N: np.ndarray, seed: int = 0) -> float:
    """Return normalised mutual information of k-means clusters and classes: 2 I / (H + H), 1 if equal.

    It follows pytorch-metric-learning's AccuracyCalculator: faiss k-means on unit vectors, with Euclidean
    distances and as many clusters as classes. But every image is used, not 256 a cluster as in faiss.

    The value depends on the images that initialise the clusters, hence on `seed` and the order of rows:
    average several seeds for a decision. It is far above 0 for random embeddings of small classes, so compare
    it only within one set of images. A label `a|b` is its own class.
    """
    from sklearn.metrics import normalized_mutual_info_score  # takes a second, and is seldom needed

    unit_ND = unit_vectors(np.asarray(emb_ND), label_N)
    names, class_N = np.unique(label_N, return_inverse=True)
    kmeans = faiss.Kmeans(
        unit_ND.shape[1],
        len(names),
        niter=ITERATIONS,
        seed=seed,
        min_points_per_centroid=1,  # avoids faiss warnings: small classes are common here
        max_points_per_centroid=len(unit_ND),
    )
    with search_threads():
        kmeans.train(unit_ND)
        _, cluster_N1 = kmeans.index.search(unit_ND, 1)
    return min(1.0, float(normalized_mutual_info_score(class_N, cluster_N1[:, 0])))


def gap(confidence_Q: np.ndarray, is_correct_Q: np.ndarray, has_answer_Q: np.ndarray) -> float:
    """Return global average precision (micro AP): one ranking of all answers, most confident first.

    It is the sum of P(i) rel(i) over the ranking, divided by the number of queries with an answer; NaN for
    none. Distractors are not in that number, but lower P. A confidence of -inf is no answer at all. Ties
    keep the order of the rows.
    """
    correct_Q = is_correct_Q[np.argsort(-confidence_Q, kind="stable")]
    precision_Q = correct_Q.cumsum() / np.arange(1, len(correct_Q) + 1)
    answers = has_answer_Q.sum()
    return float((precision_Q * correct_Q).sum() / answers) if answers else np.nan


def recognition(
    confidence_Q: np.ndarray, is_correct_Q: np.ndarray, has_answer_Q: np.ndarray
) -> dict[str, float]:
    """Return Met's numbers: GAP of all queries; GAP- and accuracy of those that have an answer."""
    known = has_answer_Q
    return {
        "gap": gap(confidence_Q, is_correct_Q, has_answer_Q),
        "gap_minus": gap(confidence_Q[known], is_correct_Q[known], has_answer_Q[known]),
        "accuracy": float(is_correct_Q[known].mean()) if known.any() else np.nan,
    }
