"""Retrieval metrics, and the exact ranking and relevance that they are defined on.

Every metric sees the ranking of the index for one query *after* the query's own image was taken
out, and gives one value per query; averaging is the protocol's business (`guie.evaluation.protocols`).

Shape legend: Q queries, B queries of one block, N index images, D dimensions, K ranks (best first),
T rows of a table, S distinct label sets, L labels of one image, C labels.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd
import torch

AP_DEPTH = 100
# What the benchmarks print: CUB and Cars 1, 2, 4, 8; SOP 1, 10, 100; In-Shop 1, 10, 20, 30, 40.
RECALL_DEPTHS = (2, 4, 8, 10, 20, 30, 40, 100)
RANKING_DEPTH = max(AP_DEPTH, *RECALL_DEPTHS)


def r_at_1(relevant_QK: np.ndarray) -> np.ndarray:
    """1 where the nearest neighbour is relevant (UnED's R@1, also called precision at 1)."""
    return recall_at(relevant_QK, 1)


def recall_at(relevant_QK: np.ndarray, k: int) -> np.ndarray:
    """1 where any of the first k is relevant: metric learning's Recall@k, not IR's recall."""
    return np.asarray(relevant_QK[:, :k].any(axis=1), np.float64)


def mmp_at_5(relevant_QK: np.ndarray, positives_Q: np.ndarray) -> np.ndarray:
    """Modified precision at 5, the challenge's metric: the precision of the first min(n, 5).

    Window and denominator shrink together: a lone positive found at rank 2 scores 0.
    """
    return _precision(relevant_QK, np.minimum(positives_Q, 5))


def r_precision(relevant_QK: np.ndarray, positives_Q: np.ndarray) -> np.ndarray:
    """Precision of the first n, the number of positives (Musgrave et al., arXiv 2003.08505)."""
    return _precision(relevant_QK, positives_Q)


def map_at_r(relevant_QK: np.ndarray, positives_Q: np.ndarray) -> np.ndarray:
    """MAP@R: sum over i <= n of P(i) rel(i), over n (Musgrave et al., arXiv 2003.08505)."""
    return _precision_sum(_within(relevant_QK, positives_Q)) / positives_Q


def map_at_100(relevant_QK: np.ndarray, positives_Q: np.ndarray) -> np.ndarray:
    """mAP@100: sum over i <= 100 of P(i) rel(i), over min(n, 100) (GLDv2, arXiv 2004.01804)."""
    return _precision_sum(relevant_QK[:, :AP_DEPTH]) / np.minimum(positives_Q, AP_DEPTH)


def ranking_metrics(relevant_QK: np.ndarray, positives_Q: np.ndarray) -> dict[str, np.ndarray]:
    """Every metric of every query, by its key in `report.json`.

    Args:
        relevant_QK: bool, is the image at this rank relevant. K reaches the larger of RANKING_DEPTH
            and the most positives, or the end of the index.
        positives_Q: relevant images in the index, the query's own image not counted; at least 1.

    Raises:
        ValueError: a query has no positive; no metric is defined there.
    """
    if (positives_Q < 1).any():
        raise ValueError("a query without positives has no score: leave it out and count it")
    return {
        "r_at_1": r_at_1(relevant_QK),
        "mmp_at_5": mmp_at_5(relevant_QK, positives_Q),
        "map_at_100": map_at_100(relevant_QK, positives_Q),
        "map_at_r": map_at_r(relevant_QK, positives_Q),
        "r_precision": r_precision(relevant_QK, positives_Q),
        **{f"recall_at_{k}": recall_at(relevant_QK, k) for k in RECALL_DEPTHS},
    }


def harmonic_mean(values: Iterable[float]) -> float:
    """Harmonic mean of scores (PUMA, arXiv 2309.08944, takes it over domains); 0 if any is 0."""
    scores = np.asarray(list(values), dtype=np.float64)
    return float(len(scores) / (1 / scores).sum()) if scores.all() else 0.0


def _within(relevant_QK: np.ndarray, window_Q: np.ndarray) -> np.ndarray:
    return relevant_QK & (np.arange(relevant_QK.shape[1]) < window_Q[:, None])


def _precision(relevant_QK: np.ndarray, window_Q: np.ndarray) -> np.ndarray:
    return _within(relevant_QK, window_Q).sum(axis=1) / window_Q


def _precision_sum(relevant_QK: np.ndarray) -> np.ndarray:
    hits_QK = relevant_QK.cumsum(axis=1)
    precision_QK = hits_QK / np.arange(1, relevant_QK.shape[1] + 1)
    return (precision_QK * relevant_QK).sum(axis=1)


class LabelSets:
    """The labels of T images, `a|b` being two, and who is relevant to whom: any shared label.

    Images with the same text share one row of `labels_SL`: a small table even for millions of rows.
    """

    def __init__(self, labels: pd.Series) -> None:
        self.set_T, texts = pd.factorize(labels)
        label_lists = [text.split("|") for text in texts]
        codes: dict[str, int] = {}
        self.labels_SL = np.full((len(texts), max(map(len, label_lists), default=1)), -1)
        for row_L, names in zip(self.labels_SL, label_lists, strict=True):
            row_L[: len(names)] = [codes.setdefault(name, len(codes)) for name in names]
        self.label_count = len(codes)

    def shared(self, query_B: np.ndarray, found_BK: np.ndarray) -> np.ndarray:
        """Do query and found image, both given as rows T, share a label: bool [B, K]."""
        asked_BL = self.labels_SL[self.set_T[query_B]]
        set_BK = self.set_T[found_BK]
        shared_BK = np.zeros(found_BK.shape, dtype=bool)
        for label_S in self.labels_SL.T:
            for label_B1 in asked_BL.T[:, :, None]:
                shared_BK |= (label_S[set_BK] == label_B1) & (label_B1 >= 0)
        return shared_BK

    def count_shared(self, query_Q: np.ndarray, index_N: np.ndarray) -> np.ndarray:
        """How many index rows share a label with each query row: the union over its labels, [Q]."""
        labels_NL = self.labels_SL[self.set_T[index_N]]
        image_E, slot_E = np.nonzero(labels_NL >= 0)  # E: (image, label) entries
        label_E = labels_NL[image_E, slot_E]
        order_E = np.argsort(label_E, kind="stable")
        starts = np.searchsorted(label_E[order_E], np.arange(1, self.label_count))
        members_C = np.split(image_E[order_E], starts)

        def union_size(labels_L: np.ndarray) -> int:
            return len(np.unique(np.concatenate([members_C[c] for c in labels_L if c >= 0])))

        asked_sets, set_Q = np.unique(self.set_T[query_Q], return_inverse=True)
        sizes = [union_size(labels_L) for labels_L in self.labels_SL[asked_sets]]
        return np.array(sizes, dtype=np.int64)[set_Q]


class ExactIndex:
    """Exact inner-product search whose ties go to the lower index row, always.

    Approximate search, or a library that leaves ties open, would make a score depend on more than
    the embedding. Beyond the index, memory is a few arrays [B, N]: the caller chooses B.
    """

    def __init__(self, index_ND: np.ndarray) -> None:
        """Take float32 vectors; unit vectors rank by cosine and by Euclidean distance alike."""
        self.index_ND = torch.from_numpy(np.ascontiguousarray(index_ND))
        first_N = _first_equal_row(index_ND)
        self.twins = torch.from_numpy(np.flatnonzero(first_N != np.arange(len(first_N))))
        self.originals = torch.from_numpy(first_N)[self.twins]

    def search(
        self, queries_BD: np.ndarray, k: int, hidden: tuple[np.ndarray, np.ndarray]
    ) -> np.ndarray:
        """The min(k, N) most similar index rows [B, K] of each query, best first.

        `hidden` holds (query, index row) pairs to leave out, as two arrays: the query's own image.
        Where that leaves fewer than K rows, the last are -1.
        """
        similarity_BN = torch.from_numpy(queries_BD) @ self.index_ND.T
        # A matrix product may round its last columns differently; equal vectors must tie exactly.
        similarity_BN[:, self.twins] = similarity_BN[:, self.originals]
        similarity_BN[tuple(map(torch.tensor, hidden))] = -torch.inf
        rows_BK = _top_rows(similarity_BN, min(k, similarity_BN.shape[1]))
        best_BK, order_BK = similarity_BN.gather(1, rows_BK).sort(descending=True, stable=True)
        return rows_BK.gather(1, order_BK).masked_fill(best_BK == -torch.inf, -1).numpy()


def _first_equal_row(index_ND: np.ndarray) -> np.ndarray:
    """For each row the first row that is bit-equal to it, mostly itself."""
    index_ND = np.ascontiguousarray(index_ND)
    one_item = np.dtype((np.void, index_ND.itemsize * index_ND.shape[1]))
    _, first, group_N = np.unique(
        index_ND.view(one_item).ravel(), return_index=True, return_inverse=True
    )
    return first[group_N]


def _top_rows(similarity_BN: torch.Tensor, k: int) -> torch.Tensor:
    """The k largest columns of each row, in column order; of a tie at the border the lower ones."""
    top = similarity_BN.topk(min(k + 1, similarity_BN.shape[1]))
    rows_BK = top.indices[:, :k].sort().values
    # topk takes any of several equal values: choose again where a tie goes on beyond rank k.
    border_B1 = top.values[:, k - 1 : k]
    split_B = (top.values[:, k:] == border_B1).any(dim=1)
    candidates_BN, border_B1 = similarity_BN[split_B], border_B1[split_B]
    above_BN, tied_BN = candidates_BN > border_B1, candidates_BN == border_B1
    room_B1 = k - above_BN.sum(dim=1, keepdim=True)
    kept_BN = above_BN | (tied_BN & (tied_BN.cumsum(dim=1) <= room_B1))
    rows_BK[split_B] = kept_BN.nonzero()[:, 1].view(-1, k)
    return rows_BK
