"""Who is relevant to whom: images that share a label.

Shape legend: T rows of a table, Q queries, B queries of one block, N index rows, K ranks, S distinct
label sets, L labels of one image, C labels.
"""

from __future__ import annotations

import numpy as np
import pandas as pd


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
        if self.labels_SL.shape[1] == 1:  # no image has two: as it is where classes are many
            count_C = np.bincount(self.first(index_N), minlength=self.label_count)
            return count_C[self.first(query_Q)]
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

    def first(self, rows_R: np.ndarray) -> np.ndarray:
        """A number for the first label of each row, [R]."""
        return self.labels_SL[self.set_T[rows_R], 0]
