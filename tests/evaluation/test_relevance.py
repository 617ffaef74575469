"""Labels that images share."""

import numpy as np
import pandas as pd
import pytest

from guie.evaluation.search import LabelSets


@pytest.mark.parametrize("most", [1, 3])
def test_label_sets_share_any_label_and_count_the_union(most):
    rng = np.random.default_rng(0)
    sets = [rng.choice(list("abcdef"), rng.integers(1, most + 1)).tolist() for _ in range(50)]
    labels = LabelSets(pd.Series(["|".join(names) for names in sets]))  # repeats such as a|a too
    query_Q, index_N = np.arange(0, 30), np.arange(20, 50)
    shared_QN = [[bool(set(sets[q]) & set(sets[i])) for i in index_N] for q in query_Q]
    found_QN = np.broadcast_to(index_N, (30, 30))
    np.testing.assert_array_equal(labels.shared(query_Q, found_QN), shared_QN)
    np.testing.assert_array_equal(labels.count_shared(query_Q, index_N), np.sum(shared_QN, axis=1))
