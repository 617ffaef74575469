"""Every protocol: what a perfect and a random embedding score, and what its source says."""

import numpy as np
import pandas as pd
import pytest
from scored_tables import table_of

from guie.base.errors import UserError
from guie.evaluation import metrics
from guie.evaluation.protocols.catalogue import PROTOCOLS, RECALLS, protocol_of
from guie.evaluation.protocols.evaluating import against, run_protocol
from guie.evaluation.rerank import Rerank
from guie.evaluation.search import Images, searches
from scorer.retrieval import is_public

SIZES = {"cars": [2, 3, 9, 6], "food": [4, 4, 30], "toys": [2, 5]}


def run(name: str, embeddings_TD, table: pd.DataFrame, draws: int = 0, **options):
    """The report of a protocol, and the scores of each query by part."""
    return run_protocol(protocol_of(name), embeddings_TD, table, draws=draws, **options)


def shop(queries_apart: bool = False) -> pd.DataFrame:
    """Three domains, two data sets in one of them; a query without a positive in each."""
    rows = []
    for domain, sizes in SIZES.items():
        for c, size in enumerate([*sizes, 1]):
            for i in range(size):
                role = ("query", "index")[i % 2] if queries_apart else "both"
                rows.append((f"{domain}/{c}/{i}.jpg", f"{domain}/{c}", role))
    table = table_of(*rows)
    in_shop = table["label"].isin(["cars/0", "cars/1"])
    return table.assign(dataset=np.where(in_shop, "inshop", table["domain"]))


def perfect(table: pd.DataFrame) -> np.ndarray:
    classes = pd.factorize(table["label"])[0]
    return np.eye(classes.max() + 1, dtype=np.float32)[classes]


def noisy(table: pd.DataFrame, seed: int) -> np.ndarray:
    exact_TD = perfect(table)
    noise_TD = np.random.default_rng(seed).normal(size=exact_TD.shape) * 0.5
    return (exact_TD + noise_TD).astype(np.float32)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("name", sorted(set(PROTOCOLS) - {"revisited"}))
def test_a_perfect_embedding_scores_one(name: str, apart: bool) -> None:
    table, protocol = shop(apart), protocol_of(name)
    report, _ = run(name, perfect(table), table, draws=20)
    assert set(report["headline"].values()) == {1.0}
    assert report["source"] and not report["quirks"]
    for part in protocol.parts:
        domains = report["parts"][part.name]["domains"].values()
        assert {"nmi" in domain for domain in domains} == {"NMI" in protocol.title}
        without = sum(domain["queries_without_positive"] for domain in domains)
        assert without == (0 if part.gallery_draws else 3)  # a lone image is the gallery's


def test_a_perfect_graded_embedding_scores_one_at_every_level() -> None:
    """Easy images first, then hard ones: each level ignores the grades of the others."""
    table = table_of(("q.jpg", "d/q", "query"), *((f"{i}.jpg", "d/x", "index") for i in range(9)))
    angle_T = np.concatenate([[0.0], np.linspace(0.1, 1.5, 9)])
    embeddings_TD = np.stack([np.cos(angle_T), np.sin(angle_T)], axis=1).astype(np.float32)
    grades = pd.DataFrame({"query": "q.jpg", "image": [f"{i}.jpg" for i in range(5)]})
    grades["grade"] = ["easy", "easy", "hard", "junk", "hard"]
    report, _ = run("revisited", embeddings_TD, table, grades=grades)
    assert set(report["headline"].values()) == {1.0}
    # A negative in front, the first easy one last: easy ranks 1 and 5, hard ranks 1 and 2.
    worse = embeddings_TD[[0, 9, 2, 3, 4, 5, 6, 7, 8, 1]]
    mean = run("revisited", worse, table, grades=grades)[0]["parts"]["separate"]["mean"]
    assert mean["easy_ap"] == pytest.approx(((0 + 1 / 2) / 2 + (1 / 5 + 2 / 6) / 2) / 2)
    assert mean["easy_p_at_10"] == 2 / 6
    assert mean["hard_ap"] == pytest.approx(((0 + 1 / 2) / 2 + (1 / 2 + 2 / 3) / 2) / 2)
    with pytest.raises(UserError, match="needs relevance.csv"):
        run("revisited", embeddings_TD, table)


def chance(key: str, n: int, others: int) -> float:
    """What a ranking in random order scores in the mean, n of its images relevant."""
    share = n / others
    k = metrics.depth_of([key], n)
    if key.startswith("recall_at") or key == "r_at_1":
        missed = np.prod([(others - n - i) / (others - i) for i in range(min(k, others))])
        return 1 - missed
    if key in ("mmp_at_5", "r_precision"):
        return share
    if key.startswith("found_at"):
        return min(k, others) * share / min(n, k)
    both = (n - 1) / (others - 1)
    ranks = np.arange(1, min(k, others) + 1)
    total = (share * (1 + (ranks - 1) * both) / ranks).sum()
    return total / (n if key == "map_at_r" else min(n, k))


@pytest.mark.parametrize("name", sorted(set(PROTOCOLS) - {"revisited"}))
def test_a_random_embedding_scores_chance(name: str) -> None:
    sizes = {"cars": (60, 3), "food": (25, 9)}
    rows = [
        (f"{domain}/{c}/{i}.jpg", f"{domain}/{c}", "both")
        for domain, (classes, size) in sizes.items()
        for c in range(classes)
        for i in range(size)
    ]
    table = table_of(*rows)
    random_TD = np.random.default_rng(1).normal(size=(len(table), 64)).astype(np.float32)
    _, scores = run(name, random_TD, table)
    for part in protocol_of(name).parts:
        for domain, (classes, size) in sizes.items():
            others = (len(table) if part.index != "separate" else classes * size) - 1
            positives, draws = (1, part.gallery_draws) if part.gallery_draws else (size - 1, 1)
            others = classes if part.gallery_draws else others
            found = scores[part.name].values[scores[part.name].group_Q == domain]
            for key in part.keys(domain):
                expected = chance(key, positives, others)
                variance = max(found[key].var(), expected * (1 - expected))
                error = (variance / (len(found) / draws)) ** 0.5
                assert found[key].mean() == pytest.approx(expected, abs=4 * error), key


def test_fused_galleries_hold_the_others_queries() -> None:
    """In-Shop's probes are gallery for the other domains, and no gallery for its own (arXiv 2003.03701)."""
    table = table_of(
        ("q.jpg", "inshop/1", "query"), ("g.jpg", "inshop/1", "index"),
        ("c.jpg", "cub/1", "both"), ("d.jpg", "cub/1", "both"),
    )  # fmt: skip
    found = {s.name: s for s in searches("fused", Images.of(table), table["domain"].to_numpy())}
    assert found["fused inshop"].index_I.tolist() == [1, 2, 3]
    assert found["fused cub"].index_I.tolist() == [0, 1, 2, 3]
    assert found["fused inshop"].query_Q.tolist() == [0]


RANKS = {"cub": (1, 2, 4, 8), "sop": (1, 10, 100, 1000), "inshop": (1, 10, 20, 30)}


@pytest.mark.parametrize("name", RANKS)
def test_recall_is_at_the_ranks_that_the_papers_print(name: str) -> None:
    (part,) = protocol_of(name).parts
    assert part.default_recalls == RANKS[name]


def test_puma_has_each_data_sets_depths_and_harmonic_means() -> None:
    table = shop()
    report, scores = run("puma", noisy(table, 0), table)
    separate = report["parts"]["separate"]
    assert list(separate["domains"]) == ["cars", "food", "inshop", "toys"]
    recalls = {k for k in separate["domains"]["inshop"] if k.startswith("recall_at")}
    assert recalls == {f"recall_at_{k}" for k in RECALLS["inshop"][1:]}
    assert "recall_at_8" in separate["domains"]["toys"]
    assert not any(key.startswith("recall") for key in separate["mean"])  # of some sets alone
    by_set = [separate["domains"][d]["r_at_1"] for d in separate["domains"]]
    harmonic = len(by_set) / sum(1 / value for value in by_set)
    assert report["headline"]["harmonic R@1"] == pytest.approx(harmonic)
    unified = scores["unified"].values["r_at_1"]
    assert report["headline"]["unified R@1"] == pytest.approx(unified.mean())


def test_quirks_are_off_unless_named_and_are_reported() -> None:
    table = shop()
    embeddings_TD = noisy(table, 1)
    exact = run("uned", embeddings_TD, table)[0]
    rounded = run("uned", embeddings_TD, table, quirks=["round"])[0]
    domains = exact["parts"]["merged"]["domains"].values()
    by_hand = np.mean([round(domain["mmp_at_5"], 3) for domain in domains])
    assert rounded["headline"]["mMP@5"] == pytest.approx(by_hand, abs=1e-12)
    assert rounded["headline"]["mMP@5"] != exact["headline"]["mMP@5"]
    assert rounded["quirks"] == ["round"]
    with pytest.raises(UserError, match="round: unknown to protocol puma; known: query_counts"):
        run("puma", embeddings_TD, table, quirks=["round"])
    with pytest.raises(UserError, match="unknown; known: merged, separate, challenge"):
        protocol_of("sop2")


@pytest.mark.parametrize("apart", [False, True])
def test_query_counts_is_the_loop_of_pumas_code(apart: bool) -> None:
    table = shop(apart)
    unit_TD = noisy(table, 2)
    unit_TD /= np.linalg.norm(unit_TD, axis=1, keepdims=True)
    values = run("puma", unit_TD, table, quirks=["query_counts"])[1]["separate"].values
    labels = table["label"].to_numpy()
    for row in values.dropna(subset="r_precision").index:
        own = (table["dataset"] == table["dataset"][row]) & (table["role"] != "query")
        gallery = np.flatnonzero(own)
        counted = sum(labels[other] == labels[row] for other in gallery)
        others = [other for other in gallery if other != row]
        others.sort(key=lambda other: -float(unit_TD[row] @ unit_TD[other]))
        hits, precisions = 0, 0.0
        for rank, other in enumerate(others[:counted], start=1):
            if labels[other] == labels[row]:
                hits += 1
                precisions += hits / rank
        assert values["r_precision"][row] == pytest.approx(hits / counted)
        assert values["map_at_r"][row] == pytest.approx(precisions / counted)


def test_the_challenge_has_the_scorers_leaderboards_and_leads() -> None:
    table = shop()
    report, scores = run("challenge", noisy(table, 2), table)
    headline, values = report["headline"], scores["merged"].values["mmp_at_5"]
    public = np.array([is_public(path) for path in scores["merged"].path_Q])
    assert headline["mMP@5, public"] == pytest.approx(values[public].mean())
    assert headline["mMP@5, private"] == pytest.approx(values[~public].mean())
    assert headline["mMP@5"] == pytest.approx(values.mean())
    whole = run("challenge", perfect(table), table)[1]
    found = against(protocol_of("challenge"), whole, scores, ("a", "b"))
    assert found["embeddings"] == "b" and found["verdicts"][0].startswith("mMP@5: a is ahead of b")
    lead = found["differences"]["mMP@5"]["difference"]
    assert lead == pytest.approx(1 - headline["mMP@5"])
    assert list(found["differences"]) == ["mMP@5"], "a leaderboard is no mean over all queries"


def test_each_domains_specialist_searches_the_whole_index() -> None:
    table = shop()
    specialists = {}
    for domain in SIZES:
        own = (table["domain"] == domain).to_numpy()
        specialists[domain] = np.where(own[:, None], perfect(table), noisy(table, 0))
    oracle, _ = run("uned", specialists, table)
    for domain, embeddings_TD in specialists.items():
        alone, _ = run("uned", embeddings_TD, table)
        for part in ("merged", "separate"):
            found = oracle["parts"][part]["domains"][domain]
            assert found == alone["parts"][part]["domains"][domain]
    assert oracle["headline"]["R@1, separate"] == 1
    del specialists["toys"]
    with pytest.raises(UserError, match="no specialist for toys"):
        run("uned", specialists, table)


def test_met_ranks_its_distractors() -> None:
    """Two right answers and a distractor: GAP falls where the distractor is the most confident."""
    table = table_of(
        ("a.jpg", "met/1", "query"), ("b.jpg", "met/2", "query"), ("d.jpg", "met/none", "query"),
        ("x.jpg", "met/1", "index"), ("y.jpg", "met/2", "index"),
    )  # fmt: skip
    embeddings_TD = np.array([[1, 0.2], [0.2, 1], [1, 0.05], [1, 0], [0, 1]], np.float32)
    report, _ = run("met", embeddings_TD, table)
    assert report["headline"] == {"GAP": (1 / 2 + 2 / 3) / 2, "GAP-": 1.0, "ACC": 1.0}
    embeddings_TD[2] = [1, 0.9]
    assert run("met", embeddings_TD, table)[0]["headline"]["GAP"] == 1.0


@pytest.mark.parametrize("methods", [(), ("expand", "csls")])
@pytest.mark.parametrize("name", PROTOCOLS)
def test_groups_of_only_queries_or_only_index_images_are_legal(name: str, methods) -> None:
    """And hard positives that no query has: nothing to compare."""
    table = table_of(
        ("q.jpg", "d/x", "query"), ("r.jpg", "d/y", "query"),
        *((f"{i}.jpg", f"d/{chr(120 + i % 2)}", "index") for i in range(4)),
        *((f"e{i}.jpg", "e/x", "index") for i in range(3)), ("f.jpg", "f/y", "query"),
    )  # fmt: skip
    embeddings_TD = np.random.default_rng(0).normal(size=(len(table), 4)).astype(np.float32)
    grades = pd.DataFrame([("q.jpg", "0.jpg", "easy")], columns=["query", "image", "grade"])
    options = {"grades": grades, "rerank": Rerank(methods)}
    report, scores = run(name, embeddings_TD, table, draws=20, **options)
    if name != "vehicleid":  # its galleries are drawn, whatever the roles
        domains = next(iter(report["parts"].values()))["domains"]
        assert set(domains) == {"d", "f"} and domains["f"]["queries_without_positive"] == 1
    assert "mAP, hard" not in against(protocol_of(name), scores, scores, "ab")["differences"]
