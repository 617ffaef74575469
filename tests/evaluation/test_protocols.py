"""The protocols against a slow twin, and every edge case that has a stated answer."""

import numpy as np
import pandas as pd
import pytest
from scored_tables import gaussian_embeddings, mixed_table, table_of, tied_embeddings

from guie.base.errors import UserError
from guie.base.seeds import seeded_draws
from guie.evaluation import knn as neighbours
from guie.evaluation import metrics
from guie.evaluation import search as searching
from guie.evaluation.protocols.catalogue import protocol_of
from guie.evaluation.protocols.evaluating import evaluate, run_protocol
from guie.evaluation.validation import quick_scores


def slow_ranking(units, table, row, index_rows):
    """(relevance of the whole ranking as a list, number of positives) of one query, by loops."""
    images, labels = table["image_path"].tolist(), table["label"].tolist()
    ranking = []
    for other in index_rows:
        if images[other] != images[row]:
            similarity = sum(a * b for a, b in zip(units[row], units[other], strict=True))
            relevant = bool(set(labels[row].split("|")) & set(labels[other].split("|")))
            ranking.append((-similarity, other, relevant))
    relevant = [hit for _, _, hit in sorted(ranking)]
    return relevant, sum(relevant)


def slow_report(embeddings, table, index):
    units = [[x / sum(y * y for y in v) ** 0.5 for x in v] for v in embeddings.tolist()]
    per_query = {domain: [] for domain in sorted(set(table["domain"]))}
    for row, (domain, role) in enumerate(zip(table["domain"], table["role"], strict=True)):
        if role == "index":
            continue
        index_rows = [
            i
            for i in range(len(table))
            if table["role"][i] != "query" and (index == "merged" or table["domain"][i] == domain)
        ]
        relevant, n = slow_ranking(units, table, row, index_rows)
        values = None
        if n:
            found = metrics.ranking_metrics(np.array([relevant]), np.array([n]))
            values = {key: value[0] for key, value in found.items()}
        per_query[domain].append(values)
    scored = {d: [v for v in values if v] for d, values in per_query.items()}
    pooled = [v for values in scored.values() for v in values]
    domains = {d: average(values) for d, values in scored.items()}
    mean = average(list(domains.values()))
    for key in ("r_at_1", "map_at_r", "r_precision"):
        values = [domain[key] for domain in domains.values()]
        mean[f"harmonic_{key}"] = len(values) / sum(1 / v for v in values) if all(values) else 0
    for d in domains:
        counts = len(per_query[d]), per_query[d].count(None)
        domains[d] |= dict(zip(("queries", "queries_without_positive"), counts, strict=True))
    return {"mean": mean, "pooled": average(pooled), "domains": domains}


def average(values):
    return {key: sum(v[key] for v in values) / len(values) for key in values[0]}


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of a few queries, so that a small test crosses their borders."""
    monkeypatch.setattr(searching, "MOST_QUERIES", 7)


@pytest.mark.parametrize(  # each pair of these once
    ("index", "make", "dtype"),
    [
        ("merged", tied_embeddings, np.float32),
        ("merged", gaussian_embeddings, np.float16),
        ("separate", tied_embeddings, np.float16),
        ("separate", gaussian_embeddings, np.float32),
    ],
)
def test_report_equals_the_slow_twin(index, make, dtype, small_blocks):
    table = mixed_table()
    embeddings_TD = make(len(table)).astype(dtype)
    report = evaluate(embeddings_TD, table, index)
    expected = slow_report(embeddings_TD.astype(np.float64), table, index)
    assert report.keys() == {"mean", "pooled", "domains", "index", "dimension"}
    assert (report["index"], report["dimension"]) == (index, embeddings_TD.shape[1])
    assert report["mean"] == pytest.approx(expected["mean"], rel=1e-12)
    assert report["pooled"] == pytest.approx(expected["pooled"], rel=1e-12)
    assert report["domains"].keys() == expected["domains"].keys()
    for domain, scores in expected["domains"].items():
        assert report["domains"][domain] == pytest.approx(scores, rel=1e-12)
    assert sum(d["queries_without_positive"] for d in report["domains"].values()) > 0


def test_an_image_in_a_query_row_and_an_index_row_is_left_out():
    table = table_of(
        ("a.jpg", "d/a", "index"), ("a.jpg", "d/a", "query"), ("b.jpg", "d/b", "index"),
        ("c.jpg", "d/a", "index"),
    )  # fmt: skip
    embeddings_TD = np.array([[1, 0], [1, 0], [0.9, 0.1], [0, 1]], dtype=np.float32)
    report = evaluate(embeddings_TD, table)
    assert report["pooled"]["r_at_1"] == 0
    assert report["pooled"]["map_at_100"] == 1 / 2  # one positive, at rank 2


@pytest.mark.parametrize("budget", [1, 60_000])
def test_memory_is_bounded_by_blocks(budget, monkeypatch):
    table = mixed_table()
    embeddings_TD = gaussian_embeddings(len(table))
    whole = evaluate(embeddings_TD, table)
    monkeypatch.setattr(neighbours, "RESERVED_BYTES", budget)
    held = []
    search = neighbours.ExactIndex.search

    def spy(self, queries_BD, k, own_B):
        held.append((len(queries_BD), k * len(queries_BD) * neighbours.CANDIDATE_BYTES))
        return search(self, queries_BD, k, own_B)

    monkeypatch.setattr(neighbours.ExactIndex, "search", spy)
    assert evaluate(embeddings_TD, table) == whole
    assert all(queries == 1 or bytes_held <= budget for queries, bytes_held in held)


def test_quick_scores_are_two_of_the_report():
    table = mixed_table()
    embeddings_TD = gaussian_embeddings(len(table))
    report, quick = evaluate(embeddings_TD, table), quick_scores(embeddings_TD, table)
    domains = quick.pop("domains")
    for found, expected in ((quick, report["mean"]), (domains["cars"], report["domains"]["cars"])):
        assert found == {key: expected[key] for key in ("r_at_1", "mmp_at_5")}


def test_what_has_no_score_is_refused():
    alone = table_of(("a.jpg", "d/a", "both"), ("b.jpg", "d/b", "both"))
    with pytest.raises(UserError, match="none of 2 queries has a positive"):
        evaluate(np.eye(2, dtype=np.float32), alone)
    table = mixed_table()
    for bad in (np.nan, np.inf, 1e30):
        embeddings_TD = gaussian_embeddings(len(table))
        embeddings_TD[13, 2] = bad
        with pytest.raises(UserError, match=f"1 image.*{table['image_path'][13]}"):
            evaluate(embeddings_TD, table)
    with pytest.raises(ValueError, match=f"{len(table) - 1} embeddings for {len(table)} rows"):
        evaluate(embeddings_TD[1:], table)


# VehicleID: test sets within a test set, and galleries of one drawn image per class

VEHICLES = {"small": range(6), "medium": range(9), "large": range(13)}


@pytest.fixture
def vehicles() -> tuple[pd.DataFrame, np.ndarray]:
    """Thirteen vehicles of five images, in an order of no meaning, and embeddings that half find them."""
    rng = np.random.default_rng(0)
    rows = [(f"{v}/{i}.jpg", f"vehicles/{v}", "both") for v in range(13) for i in range(5)]
    table = table_of(*(rows[i] for i in rng.permutation(len(rows))))
    class_T = table["label"].str.rpartition("/")[2].astype(int).to_numpy()
    embeddings_TD = rng.normal(size=(13, 8))[class_T] + 1.2 * rng.normal(size=(len(table), 8))
    return table, embeddings_TD.astype(np.float32)


def test_each_subset_scores_as_a_manifest_of_its_own(vehicles) -> None:
    table, embeddings_TD = vehicles
    number_T = table["label"].str.rpartition("/")[2].astype(int)
    names_T = ["|".join(n for n, own in VEHICLES.items() if number in own) for number in number_T]
    whole = table.assign(subsets=names_T)
    protocol = protocol_of("vehicleid").over(whole)
    assert len(protocol.parts) == 6 and "R@5, re-id, small" in {h.title for h in protocol.headlines}
    assert len(protocol_of("vehicleid").over(whole[whole["subsets"] == "large"]).parts) == 2
    report, _ = run_protocol(protocol, embeddings_TD, whole, draws=20)
    for name, own in VEHICLES.items():
        mine = np.isin(table["label"], [f"vehicles/{v}" for v in own])
        alone = table[mine].reset_index(drop=True)
        assert protocol_of("vehicleid").over(alone) is protocol_of("vehicleid")
        expected, _ = run_protocol(protocol_of("vehicleid"), embeddings_TD[mine], alone, draws=20)
        for title, value in expected["headline"].items():
            assert report["headline"][f"{title}, {name}"] == value
        for part, found in expected["parts"].items():
            assert report["parts"][f"{part}, {name}"]["domains"] == found["domains"]
    assert report["headline"]["R@1, small"] > report["headline"]["R@1, large"] > 0


def test_re_identification_is_the_mean_of_its_draws(vehicles) -> None:
    """Against loops: the first of a class by its draw is its gallery, all others ask."""
    table, embeddings_TD = vehicles
    units_TD = embeddings_TD / np.linalg.norm(embeddings_TD, axis=1, keepdims=True)
    labels, found = table["label"].tolist(), {1: [], 5: []}
    for draw in range(10):
        order = np.argsort(seeded_draws(draw, table["image_path"]))
        gallery = {labels[row]: row for row in order[::-1]}
        queries = [row for row in range(len(table)) if row not in gallery.values()]
        for k, values in found.items():
            hits = []
            for row in queries:
                near = sorted(gallery.values(), key=lambda g: -float(units_TD[g] @ units_TD[row]))
                hits.append(labels[row] in [labels[g] for g in near[:k]])
            values.append(np.mean(hits))
    report, _ = run_protocol(protocol_of("vehicleid"), embeddings_TD, table, draws=50)
    assert report["headline"]["R@1, re-id"] == pytest.approx(np.mean(found[1]), abs=1e-12)
    assert report["headline"]["R@5, re-id"] == pytest.approx(np.mean(found[5]), abs=1e-12)
    part = report["parts"]["re-identification"]
    assert part["domains"]["vehicles"]["queries"] == 13 * 4
    low, high = part["intervals"]["mean"]["r_at_1"]
    assert low < report["headline"]["R@1, re-id"] < high
    again = table.iloc[::-1].reset_index(drop=True)
    turned, _ = run_protocol(protocol_of("vehicleid"), embeddings_TD[::-1], again, draws=0)
    assert turned["headline"] == pytest.approx(report["headline"]), "the order of rows says nothing"
