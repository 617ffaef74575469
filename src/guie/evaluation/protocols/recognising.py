"""Recognition beside retrieval: GAP, GAP- and accuracy of each group (Met).

Shape legend: T rows of the table, Q queries.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from guie.evaluation import recognition
from guie.evaluation.neighbours import ExactIndex, block_size
from guie.evaluation.searching import Embedded, Images, Search


def recognition_scores(images: Images, embedded: Embedded, search: Search) -> dict[str, float]:
    """By the nearest neighbour, its similarity the confidence; queries without a positive distract."""
    rows_Q = search.query_Q
    domains = pd.unique(images.domain_T[rows_Q])
    correct_Q, confidence_Q = np.zeros(len(rows_Q), bool), np.full(len(rows_Q), -np.inf)
    for domain in domains:
        own_Q = np.flatnonzero(images.domain_T[rows_Q] == domain)
        unit_TD = embedded if isinstance(embedded, np.ndarray) else embedded[domain]
        index = ExactIndex(unit_TD[search.index_I])
        for block in np.array_split(own_Q, -(-len(own_Q) // block_size(2, 4096))):
            own = images.same_image(rows_Q[block], search.index_I)
            found_B1, similarity_B1 = index.search(unit_TD[rows_Q[block]], 1, own)
            shared_B1 = images.labels.shared(rows_Q[block], search.index_I[found_B1])
            _, confidence_Q[block] = recognition.classify(similarity_B1, found_B1)
            correct_Q[block] = (shared_B1 & (found_B1 >= 0))[:, 0]
    answered_Q = images.count_positives(rows_Q, search.index_I) > 0
    return {
        "gap": recognition.gap(confidence_Q, correct_Q, answered_Q),
        "gap_minus": recognition.gap_minus(confidence_Q, correct_Q, answered_Q),
        "accuracy": recognition.accuracy(correct_Q, answered_Q),
    }
