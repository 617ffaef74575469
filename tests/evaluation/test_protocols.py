"""The protocols against a slow twin, and every edge case that has a stated answer."""

import numpy as np
import pandas as pd
import pytest

from guie.base.errors import UserError
from guie.evaluation import metrics, protocols
from guie.evaluation.protocols import align, evaluate, load_embeddings, quick_scores


def table_of(*rows):
    """(image, label, role) -> table; the domain is what stands before the label's slash."""
    table = pd.DataFrame(rows, columns=["image_path", "label", "role"])
    return table.assign(domain=table["label"].str.split("/").str[0])


def mixed_table(seed=0):
    """Two domains; classes of 1, 2, 3 and 50 images; queries apart from the index; two labels."""
    rng = np.random.default_rng(seed)
    rows = []
    for domain in ("cars", "food"):
        for name, size in {"one": 1, "two": 2, "three": 3, "fifty": 50, "more": 7}.items():
            for i in range(size):
                label = f"{domain}/{name}"
                if i % 5 == 4:
                    label += f"|{domain}/{rng.choice(['two', 'three', 'more'])}"
                role = rng.choice(["query", "index", "both"], p=[0.2, 0.2, 0.6])
                rows.append((f"{domain}/{name}/{i}.jpg", label, role))
    return table_of(*(rows[i] for i in rng.permutation(len(rows))))


def tied_embeddings(count, seed=0):
    """Half of the entries +-1 of 4 in 8: unit vectors and products exact, so ties abound."""
    rng = np.random.default_rng(seed)
    signs = rng.choice([-1, 1], (count, 4))
    return np.concatenate([signs, np.zeros((count, 4))], axis=1).astype(np.float32)


def gaussian_embeddings(count, seed=0):
    """No ties but for bit-equal twins, of several lengths of vector."""
    rng = np.random.default_rng(seed)
    embeddings_TD = rng.normal(size=(count, 16)).astype(np.float32)
    embeddings_TD[rng.permutation(count)[:30]] = embeddings_TD[:30]
    return embeddings_TD


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
    monkeypatch.setattr(protocols, "BLOCK_QUERIES", 7)


@pytest.mark.parametrize("index", ["merged", "separate"])
@pytest.mark.parametrize("make", [tied_embeddings, gaussian_embeddings])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
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


def test_a_collapsed_embedding_ranks_by_row(small_blocks):
    table = mixed_table()
    embeddings_TD = np.full((len(table), 7), 0.37, dtype=np.float32)
    expected = slow_report(embeddings_TD.astype(np.float64), table, "merged")
    assert evaluate(embeddings_TD, table)["pooled"] == pytest.approx(expected["pooled"])


@pytest.mark.parametrize("index", ["merged", "separate"])
def test_a_perfect_embedding_scores_exactly_one_everywhere(index, small_blocks):
    classes = np.repeat(np.arange(8), [1, 2, 3, 4, 5, 50, 110, 230])
    rows = [(f"{i}.jpg", f"{'ab'[c % 2]}/{c}", "both") for i, c in enumerate(classes)]
    embeddings_TD = np.random.default_rng(0).normal(size=(8, 64)).astype(np.float32)[classes]
    report = evaluate(embeddings_TD, table_of(*rows), index)
    assert set(report["mean"].values()) == set(report["pooled"].values()) == {1.0}
    counts = {"queries", "queries_without_positive"}
    for scores in report["domains"].values():
        assert {v for k, v in scores.items() if k not in counts} == {1.0}
    assert report["domains"]["a"]["queries_without_positive"] == 1  # the class of one image


def test_equal_class_names_of_two_domains_are_two_classes():
    table = table_of(
        ("q.jpg", "cars/1", "query"), ("c.jpg", "cars/1", "index"), ("f.jpg", "food/1", "index")
    )
    embeddings_TD = np.array([[1, 0], [0.8, 0.6], [0.9, 0.1]], dtype=np.float32)
    assert evaluate(embeddings_TD, table, "merged")["pooled"]["r_at_1"] == 0
    assert evaluate(embeddings_TD, table, "separate")["pooled"]["r_at_1"] == 1


@pytest.mark.parametrize("twin_first", [True, False])
@pytest.mark.parametrize(("twin_label", "score"), [("d/a", 1), ("d/b", 0)])
def test_the_query_is_left_out_by_id_and_not_its_twin(twin_first, twin_label, score):
    rows = [("twin.jpg", twin_label, "index"), ("query.jpg", "d/a", "both")]
    table = table_of(*(rows if twin_first else rows[::-1]), ("far.jpg", "d/a", "index"))
    embeddings_TD = np.array([[1, 0], [1, 0], [0, 1]], dtype=np.float32)
    assert evaluate(embeddings_TD, table)["pooled"]["r_at_1"] == score


def test_an_image_in_a_query_row_and_an_index_row_is_left_out():
    table = table_of(
        ("a.jpg", "d/a", "index"), ("a.jpg", "d/a", "query"), ("b.jpg", "d/b", "index"),
        ("c.jpg", "d/a", "index"),
    )  # fmt: skip
    embeddings_TD = np.array([[1, 0], [1, 0], [0.9, 0.1], [0, 1]], dtype=np.float32)
    report = evaluate(embeddings_TD, table)
    assert report["pooled"]["r_at_1"] == 0
    assert report["pooled"]["map_at_100"] == 1 / 2  # one positive, at rank 2


def test_k_is_clipped_to_the_index():
    table = table_of(("a.jpg", "d/a", "both"), ("b.jpg", "d/b", "both"), ("c.jpg", "d/a", "both"))
    embeddings_TD = np.array([[1, 0], [1, 0.1], [0, 1]], dtype=np.float32)
    scores = evaluate(embeddings_TD, table)["domains"]["d"]
    assert scores["queries"] == 3 and scores["queries_without_positive"] == 1
    assert scores["recall_at_2"] == scores["recall_at_100"] == 1
    assert scores["r_at_1"] == 0 and scores["map_at_100"] == 1 / 2


def test_queries_without_positives_are_counted_and_nothing_else():
    table = table_of(
        ("q.jpg", "a/1", "query"), ("i.jpg", "a/1", "index"), ("alone.jpg", "a/2", "both"),
        ("lost.jpg", "b/1", "query"), ("other.jpg", "b/2", "index"), ("junk.jpg", "c/1", "index"),
    )  # fmt: skip
    embeddings_TD = np.eye(6, dtype=np.float32)
    embeddings_TD[1] = embeddings_TD[0]
    for index in ("merged", "separate"):
        report = evaluate(embeddings_TD, table, index)
        assert report["domains"].keys() == {"a", "b"}  # c asks nothing
        assert report["domains"]["a"]["queries"] == 2
        assert report["domains"]["a"]["queries_without_positive"] == 1
        assert report["domains"]["b"]["queries"] == 1
        assert report["domains"]["b"]["r_at_1"] is None
        assert report["mean"]["r_at_1"] == report["pooled"]["r_at_1"] == 1
        assert report["mean"]["harmonic_r_at_1"] == 1


@pytest.mark.parametrize("index", ["merged", "separate"])
def test_no_positive_at_all_is_refused(index):
    table = table_of(("a.jpg", "d/a", "both"), ("b.jpg", "d/b", "both"))
    with pytest.raises(UserError, match="none of 2 queries has a positive"):
        evaluate(np.eye(2, dtype=np.float32), table, index)


def test_harmonic_mean_is_zero_where_a_domain_scores_zero():
    table = table_of(
        ("a.jpg", "a/1", "query"), ("b.jpg", "a/1", "index"), ("c.jpg", "b/1", "query"),
        ("d.jpg", "b/1", "index"),
    )  # fmt: skip
    embeddings_TD = np.array([[1, 0], [1, 0], [1, 0], [0, 1]], dtype=np.float32)
    mean = evaluate(embeddings_TD, table)["mean"]
    assert mean["r_at_1"] == 0.5 and mean["harmonic_r_at_1"] == 0


@pytest.mark.parametrize("budget", [1, 300, 10_000])
def test_memory_is_bounded_by_blocks(budget, monkeypatch):
    table = mixed_table()
    embeddings_TD = gaussian_embeddings(len(table))
    whole = evaluate(embeddings_TD, table)
    monkeypatch.setattr(protocols, "BLOCK_SIMILARITIES", budget)
    sizes = []
    search = metrics.ExactIndex.search

    def spy(self, queries_BD, k, hidden):
        sizes.append(len(queries_BD) * len(self.index_ND))
        return search(self, queries_BD, k, hidden)

    monkeypatch.setattr(metrics.ExactIndex, "search", spy)
    assert evaluate(embeddings_TD, table) == whole
    index_size = (table["role"] != "query").sum()
    assert max(sizes) <= max(budget, index_size)


def test_quick_scores_equal_the_report():
    table = mixed_table()
    embeddings_TD = gaussian_embeddings(len(table))
    report, quick = evaluate(embeddings_TD, table), quick_scores(embeddings_TD, table)
    for key in ("r_at_1", "mmp_at_5"):
        assert quick[key] == report["mean"][key]
        for domain, scores in report["domains"].items():
            assert quick["domains"][domain][key] == scores[key]
    assert quick.keys() == {"r_at_1", "mmp_at_5", "domains"}


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
@pytest.mark.parametrize("score", [evaluate, quick_scores])
def test_a_broken_embedding_is_named(bad, score):
    table = mixed_table()
    embeddings_TD = gaussian_embeddings(len(table))
    embeddings_TD[13, 2] = bad
    with pytest.raises(UserError, match=f"1 image.*{table['image_path'][13]}"):
        score(embeddings_TD, table)


def test_a_zero_embedding_is_at_similarity_zero():
    table = table_of(
        ("q.jpg", "d/a", "query"), ("zero.jpg", "d/b", "index"), ("near.jpg", "d/a", "index"),
        ("p.jpg", "d/b", "query"), ("far.jpg", "d/a", "index"),
    )  # fmt: skip
    embeddings_TD = np.array([[1, 0], [0, 0], [1, 1], [0, -1], [0, 1]], dtype=np.float32)
    assert evaluate(embeddings_TD, table)["pooled"]["r_at_1"] == 1


def test_arguments_that_do_not_fit_are_refused():
    table = mixed_table()
    embeddings_TD = gaussian_embeddings(len(table))
    with pytest.raises(ValueError, match="'common'"):
        evaluate(embeddings_TD, table, "common")
    with pytest.raises(ValueError, match=f"{len(table) - 1} embeddings for {len(table)} rows"):
        evaluate(embeddings_TD[1:], table)


# align


def arrays_for(table, dtype=np.float32):
    paths = table["image_path"].to_numpy(dtype=str)
    return {"image_path": paths, "embedding": gaussian_embeddings(len(table)).astype(dtype)}


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_align_is_free_in_order_and_ignores_what_the_table_does_not_name(dtype):
    table = mixed_table()
    arrays = arrays_for(table, dtype)
    expected_TD = arrays["embedding"]
    stranger = np.full((1, 16), np.nan, dtype)  # ignored, whatever it holds
    arrays = {
        "image_path": np.append(arrays["image_path"], "train/x.jpg"),
        "embedding": np.concatenate([arrays["embedding"], stranger]),
    }
    order = np.random.default_rng(1).permutation(len(table) + 1)
    found_TD = align({key: array[order] for key, array in arrays.items()}, table)
    np.testing.assert_array_equal(found_TD, expected_TD)
    assert found_TD.dtype == dtype


def test_an_image_may_stand_in_two_rows_of_the_table():
    table = table_of(
        ("a.jpg", "d/a", "query"), ("b.jpg", "d/b", "index"), ("a.jpg", "d/a", "index")
    )
    arrays = {"image_path": np.array(["b.jpg", "a.jpg"]), "embedding": np.eye(2, dtype="f4")}
    assert align(arrays, table).tolist() == [[0, 1], [1, 0], [0, 1]]


def test_a_repeated_image_is_legal_only_with_equal_embeddings():
    table = mixed_table()
    arrays = arrays_for(table)
    twice = {key: np.concatenate([array, array[5:6]]) for key, array in arrays.items()}
    np.testing.assert_array_equal(align(twice, table), arrays["embedding"])
    twice["embedding"][-1, 3] += 1e-3
    with pytest.raises(UserError, match=f"second, other embedding.*{table['image_path'][5]}"):
        align(twice, table)


def test_missing_images_are_counted_and_the_first_named():
    table = mixed_table()
    arrays = {key: array[4:] for key, array in arrays_for(table).items()}
    with pytest.raises(UserError, match=f"E.npz.*for 4 image.*{table['image_path'][0]}"):
        align(arrays, table, source="E.npz")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"embedding": lambda e: e.astype(np.float64)}, "float64.*must be float32 or float16"),
        ({"embedding": lambda e: e.astype(np.int32)}, "int32.*must be float32 or float16"),
        ({"embedding": lambda e: e[:, 0]}, "must have shape"),
        ({"embedding": lambda e: e[:-1]}, "must have shape"),
        ({"embedding": lambda e: e[:, :0]}, "must have shape"),
        ({"embedding": lambda e: e * np.nan}, "not finite"),
        ({"image_path": lambda p: p.astype(bytes)}, "image_path.*must be str"),
        ({"image_path": lambda p: np.arange(len(p))}, "image_path.*must be str"),
        ({"image_path": lambda p: p[:, None]}, "image_path.*must be str"),
    ],
)
def test_wrong_arrays_are_refused(change, message):
    table = mixed_table()
    arrays = arrays_for(table)
    arrays |= {key: edit(arrays[key]) for key, edit in change.items()}
    with pytest.raises(UserError, match=message):
        align(arrays, table)


@pytest.mark.parametrize("key", ["image_path", "embedding"])
def test_a_missing_array_is_named(key):
    table = mixed_table()
    arrays = arrays_for(table)
    del arrays[key]
    with pytest.raises(UserError, match=f"no array '{key}'"):
        align(arrays, table)


@pytest.mark.parametrize("content", [None, b"", b"junk", b"PK\x03\x04 cut short"])
def test_a_file_that_is_no_npz_is_refused(content, tmp_path):
    path = tmp_path / "E.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match="E.npz: (cannot be read|no .npz)"):
        load_embeddings(path, mixed_table())


def test_pickled_objects_are_refused_and_not_run(tmp_path):
    table = mixed_table()
    arrays = arrays_for(table)
    arrays["image_path"] = arrays["image_path"].astype(object)
    np.savez(tmp_path / "E.npz", **arrays)
    with pytest.raises(UserError, match="no .npz of plain arrays"):
        load_embeddings(tmp_path / "E.npz", table)


def test_load_embeddings_reads_what_numpy_writes(tmp_path):
    table = mixed_table()
    arrays = arrays_for(table, np.float16)
    np.savez_compressed(tmp_path / "E.npz", **arrays)
    np.testing.assert_array_equal(load_embeddings(tmp_path / "E.npz", table), arrays["embedding"])
