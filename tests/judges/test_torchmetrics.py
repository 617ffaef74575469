"""Our numbers beside those of torchmetrics on the same rankings, without ties."""

import numpy as np
import pytest

pytest.importorskip("torchmetrics", reason="make judges has it")

import torch
from torchmetrics import retrieval

from clustered import EXACT, clustered, ours, positives


def rankings(emb_TD, table):
    """Every query beside every image of the index but itself: similarity, relevance, whose query."""
    label_T = table["label"].to_numpy()
    asked_T, index_T = (table["role"] != role for role in ("index", "query"))
    query_P, image_P = np.nonzero(np.outer(asked_T, index_T) & ~np.eye(len(table), dtype=bool))
    similarity_TT = emb_TD @ emb_TD.T
    relevant_P = label_T[query_P] == label_T[image_P]
    return tuple(map(torch.tensor, (similarity_TT[query_P, image_P], relevant_P, query_P)))


def theirs(metric, similarity_P, relevant_P, query_P):
    """Its value, no similarity being below 0, where three of its metrics see nothing relevant."""
    return metric(similarity_P + 2, relevant_P, indexes=query_P).item()


@pytest.fixture(params=[False, True], ids=["query in the index", "index apart"])
def given(request):
    return clustered(2.0, apart=request.param)


def test_what_is_equal(given):
    most = f"map_at_{len(given[1])}"  # no window at all
    found, _ = ours(*given, "r_at_1", "recall_at_4", "recall_at_20", "r_precision", most)
    peers = {
        "r_at_1": retrieval.RetrievalPrecision(top_k=1),
        "recall_at_4": retrieval.RetrievalHitRate(top_k=4),
        "recall_at_20": retrieval.RetrievalHitRate(top_k=20),
        "r_precision": retrieval.RetrievalRPrecision(),
        most: retrieval.RetrievalMAP(),
    }
    pairs = rankings(*given)
    for key, metric in peers.items():
        assert found[key] == pytest.approx(theirs(metric, *pairs), **EXACT), key


def test_its_recall_divides_by_all_positives_and_ours_by_those_that_fit(given):
    pairs = rankings(*given)
    found, scores = ours(*given, "found_at_8", "found_at_40")
    assert max(positives(given[1])) < 40
    peer = theirs(retrieval.RetrievalRecall(top_k=40), *pairs)
    assert found["found_at_40"] == pytest.approx(peer, **EXACT)
    peer = theirs(retrieval.RetrievalRecall(top_k=8), *pairs)
    n_Q = positives(given[1])
    assert (scores["found_at_8"] * np.minimum(n_Q, 8) / n_Q).mean() == pytest.approx(peer, **EXACT)
    assert found["found_at_8"] > peer + 0.05


def test_its_map_at_k_divides_by_the_positives_that_were_found(given):
    """So it can rise where one is lost, and is 1 with a single one found, first."""
    pairs = rankings(*given)
    found, scores = ours(*given, "map_at_8", "found_at_8")
    peer = theirs(retrieval.RetrievalMAP(top_k=8), *pairs)
    with np.errstate(invalid="ignore"):
        share_Q = np.nan_to_num(scores["map_at_8"] / scores["found_at_8"])
    assert share_Q.mean() == pytest.approx(peer, **EXACT)
    assert found["map_at_8"] < peer - 0.1


def test_where_similarity_is_not_above_zero_it_takes_nothing_for_relevant(given):
    """In AP, recall and reciprocal rank; hit rate and precisions go by the ranks alone."""
    similarity_P, relevant_P, query_P = rankings(*given)
    assert (similarity_P[relevant_P] < 0).any()
    shifted = (similarity_P + 2, relevant_P, query_P)
    for metric, moves in {
        retrieval.RetrievalMAP(): True,
        retrieval.RetrievalRecall(top_k=200): True,
        retrieval.RetrievalRPrecision(): False,
        retrieval.RetrievalHitRate(top_k=200): False,
    }.items():
        plain = metric(similarity_P, relevant_P, indexes=query_P).item()
        assert (plain != theirs(metric, *shifted)) == moves, metric


def test_a_query_without_a_positive_counts_as_zero_unless_it_is_told_to_skip(given):
    emb_TD, table = given
    row = table[table["role"] != "index"].index[0]
    table.loc[row, "label"] = "a/alone"
    pairs = rankings(emb_TD, table)
    found, _ = ours(emb_TD, table, "r_precision")
    skipped = theirs(retrieval.RetrievalRPrecision(empty_target_action="skip"), *pairs)
    assert found["r_precision"] == pytest.approx(skipped, **EXACT)
    queries = (table["role"] != "index").sum()
    counted = theirs(retrieval.RetrievalRPrecision(), *pairs)
    assert counted == pytest.approx(skipped * (queries - 1) / queries, **EXACT)
