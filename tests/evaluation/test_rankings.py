"""Files of rankings: written as ILIAS reads them, read as it scores them, refused by name."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scored_tables import gaussian_embeddings, mixed_table, table_of
from sklearn.metrics import average_precision_score

from guie.base.errors import UserError
from guie.evaluation import metrics, ranking_files
from guie.evaluation.files import as_units, with_texts
from guie.evaluation.protocols.catalogue import protocol_of
from guie.evaluation.protocols.evaluating import run_protocol
from guie.evaluation.ranking_files import map_at_1k, names_of, read_rankings, write_rankings

ILIAS = protocol_of("ilias")


def written(folder: Path, table: pd.DataFrame, embeddings_TD: np.ndarray) -> Path:
    write_rankings(folder / "R.json", as_units(embeddings_TD, table), table)
    return folder / "R.json"


def instances(objects: int = 12) -> pd.DataFrame:
    """Each object with a query and a positive, or two, in the folders of ILIAS; some distractors."""
    rows = []
    for n in range(objects):
        for i in range(1 + n % 2):
            rows.append((f"x/ilias_core/o_{n}/query/Q{n}_{i}.jpg", f"ilias/o_{n}", "query"))
            rows.append((f"x/ilias_core/o_{n}/pos/P{n}_{i}.jpg", f"ilias/o_{n}", "index"))
        rows.append((f"x/yfcc100m/yfcc100m_00001/{n}.jpg", "ilias/no-object", "index"))
    return table_of(*rows)


def slow_ilias(relevant, similarities, positives, k=1000):
    """ILIAS's AP and oracle as its code writes them, of one query."""
    y_true, y_score = relevant[:k], similarities[:k]
    if not y_true.any():
        return 0.0, 0.0
    ap = average_precision_score(y_true, y_score) * y_true.sum() / min(k, positives)
    return ap, y_true.mean() * k / positives


def ilias_code(results: dict[str, dict[str, float]], positives: dict[str, set[str]]) -> float:
    """Its mAP@1k of ranking files."""
    found = []
    for query, scores in results.items():
        names, values = np.array(list(scores)), np.array(list(scores.values()))
        order, relevant = np.argsort(-values), [*positives[query.split("/")[0]]]
        found.append(slow_ilias(np.isin(names[order], relevant), values[order], len(relevant))[0])
    return float(np.mean(found))


@pytest.mark.parametrize("levels", [1, 3, 50, 10**9])
def test_metrics_equal_its_code(levels: int) -> None:
    """Few relevant images, mostly in front; similarities of so many different levels."""
    rng, length = np.random.default_rng(0), 1300
    relevant_QK = rng.random((12, length)) < 0.3 / (1 + np.arange(length) / 20)
    relevant_QK[0] = False
    relevant_QK[1], relevant_QK[1, -1] = False, True  # found too late
    similarity_QK = -np.sort(-rng.integers(levels, size=(12, length)) / levels, axis=1)
    positives_Q = relevant_QK.sum(axis=1) + rng.integers(1, 5, 12)
    positives_Q[2] = 1500
    rows = zip(relevant_QK, similarity_QK, positives_Q, strict=True)
    slow = np.array([slow_ilias(*row) for row in rows])
    fast_Q = map_at_1k(relevant_QK, positives_Q, similarity_QK)
    np.testing.assert_allclose(fast_Q, slow[:, 0], rtol=1e-12)
    found_Q = metrics.metric("found_at_1000", relevant_QK, positives_Q)
    np.testing.assert_allclose(found_Q[3:], slow[3:, 1], rtol=1e-12)
    assert found_Q[2] == relevant_QK[2, :1000].sum() / 1000, "of 1,500 positives"
    assert map_at_1k(np.ones((1, 1200), bool), np.array([1200]), similarity_QK[:1, :1200]) == 1.0


def test_what_was_written_scores_the_same(tmp_path: Path, monkeypatch) -> None:
    """In several blocks, with queries that are in the index, and specialists too."""
    monkeypatch.setattr(ranking_files, "MOST_QUERIES", 7)
    table = mixed_table()
    embeddings_TD = np.random.default_rng(3).normal(size=(len(table), 16)).astype(np.float32)
    for given in (embeddings_TD, {"cars": embeddings_TD, "food": embeddings_TD[:, ::-1] ** 3}):
        expected, _ = run_protocol(ILIAS, given, table, draws=20)
        rankings = read_rankings(written(tmp_path, table, given), table)
        report, scores = run_protocol(ILIAS, rankings, table, draws=20)
        assert report["headline"] == pytest.approx(expected["headline"], rel=1e-12)
        (old,), (new,) = expected["parts"].values(), report["parts"].values()
        del old["dimension"]
        assert json.dumps(new).count("null") == json.dumps(old).count("null")
        for domain in ("cars", "food"):
            assert new["domains"][domain] == pytest.approx(old["domains"][domain], rel=1e-12)
    assert set(scores["merged"].path_Q) == set(table["image_path"][table["role"] != "index"])
    for name in ("uned", "met", "revisited"):
        with pytest.raises(UserError, match="only --protocol ilias scores rankings"):
            run_protocol(protocol_of(name), rankings, table, draws=0)


def test_scores_are_those_of_the_benchmarks_own_code(tmp_path: Path) -> None:
    """Ties too, which are one step there; and the order of the file says nothing else."""
    table = instances()
    path = written(tmp_path, table, gaussian_embeddings(len(table), seed=1))
    results = json.loads(path.read_text())
    assert list(results)[:2] == ["o_0/query/Q0_0.jpg", "o_1/query/Q1_0.jpg"]
    assert all(len(found) == 30 for found in results.values())
    rounded = {
        query: dict(sorted((name, round(score, 1)) for name, score in found.items()))
        for query, found in results.items()
    }
    index = names_of(table["image_path"][table["role"] == "index"])
    assert index.iloc[:2].tolist() == ["o_0/pos/P0_0.jpg", "yfcc100m_00001.tar/0"]
    positives = {f"o_{n}": {i for i in index if i.startswith(f"o_{n}/")} for n in range(12)}
    for message in (results, rounded):
        path.write_text(json.dumps(message, indent=4))
        report, _ = run_protocol(ILIAS, read_rankings(path, table), table, draws=0)
        expected = ilias_code(message, positives)
        assert report["headline"]["mAP@1k"] == pytest.approx(expected, rel=1e-12)
        assert report["headline"]["recall@1k"] == 1.0, "the index is shorter than 1,000"
    assert len({score for found in rounded.values() for score in found.values()}) < 22


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{", r"R.json: .*the format is JSON .query"),
        ("[1]", "R.json: .*the format is JSON"),
        ('{"q": {"a": "1"}, "r": {}}', "R.json: q: a: .*number"),
        ('{"q": {"a": NaN}, "r": {}}', "R.json: q: a: .*finite"),
        ('{"q": {}, "r": {}, "s": {}, "t": {}}', r"not a query of the manifest: 's' \(2 of 4\)"),
        ('{"q": {"a": 1}}', r"R.json: no ranking for query: 'r' \(1 of 2\)"),
        ('{"q": {"a": 1}, "r": {"z": 1, "a": 0}}', r"r: not an index image of the manifest: 'z'"),
        (
            '{"q": {"o/b.jpg": 1, "x/ilias_core/o/b.jpg": 0}, "r": {}}',
            r"R.json: q: duplicate image: 'x/ilias_core/o/b.jpg' \(1 of 2\)",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(text: str, fault: str, tmp_path: Path) -> None:
    table = table_of(
        *(("q", "d/1", "query"), ("r", "d/1", "query"), ("a", "d/1", "index")),
        ("x/ilias_core/o/b.jpg", "d/1", "index"),
    )
    (tmp_path / "R.json").write_text(text)
    with pytest.raises(UserError, match=fault) as caught:
        read_rankings(tmp_path / "R.json", table)
    assert "\n" not in str(caught.value)
    rows = [(f"{x}/ilias_core/o/pos/P.jpg", "d/1", "index") for x in "ab"]
    with pytest.raises(UserError, match="a/ilias_core/o/pos/P.jpg and b/ilias_core/o/pos/P.jpg"):
        written(tmp_path, table_of(("q", "d/1", "query"), *rows), np.ones((3, 2), np.float32))


@pytest.mark.parametrize(
    ("text", "role", "unlisted", "score"),
    [  # a distractor first; and queries that are in the index, so in their own rankings
        ('{"q": {"far.tar/7": 0.9, "a": 0.5, "far.tar/8": 0.1}}', "query", True, 1 / 2),
        ('{"q": {"q": 1, "a": 0.5}, "a": {"b": 0.6, "q": 0.5}}', "both", False, (1 + 1 / 2) / 2),
    ],
)
def test_distractors_and_the_query_itself(text, role, unlisted, score, tmp_path: Path) -> None:
    rows = [
        ("q", "d/1", role),
        ("a", "d/1", "index" if unlisted else "both"),
        ("b", "d/2", "index"),
    ]
    table = table_of(*rows)
    (tmp_path / "R.json").write_text(text)
    found = read_rankings(tmp_path / "R.json", table, unlisted)
    assert run_protocol(ILIAS, found, table, draws=0)[0]["headline"]["mAP@1k"] == score


def test_a_text_with_the_name_of_an_image_is_refused() -> None:
    table = instances(1)
    texts = pd.DataFrame({"image_path": table["image_path"][:1], "text": "a thing"})
    with pytest.raises(UserError, match="--texts: x/ilias_core/.* is already used"):
        with_texts(table, texts)
