"""Claims of papers: the effect, its interval, and the verdict by rule."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import study
from guie.base.errors import UserError
from guie.config.loading import to_yaml
from guie.config.study import ClaimConfig
from guie.evaluation.bootstrap import paired
from guie.studies.claims import (
    Effect,
    claims_table,
    class_variance,
    effect_of,
    read_claims,
    verdict,
)
from guie.studies.grid import Plan
from guie.studies.results import StudyStatus, add_record, results_path
from small_studies import plan, record

CLAIM = {
    "paper": "A et al.",
    "claim": "softmax is ahead",
    "source": "table 1",
    "says": "Softmax leads by 2 points (table 1).",
    "direction": "row",
    "study": "s",
}


def claim(**changes: Any) -> ClaimConfig:
    return ClaimConfig(**{**CLAIM, "row": "softmax", "against": "plain", **changes})


def known(plan: Plan, scores: dict[tuple[str, int], Any]) -> StudyStatus:
    """The state of a study with these results: R@1, or changes of a whole record."""
    done = {}
    for (row, seed, *fold), value in scores.items():
        job = plan.jobs[row, seed, fold[0] if fold else None]
        more = value if isinstance(value, dict) else {"test": value}
        done[job.identity] = record(job, **more)
    return StudyStatus(done, {}, {}, 0)


def with_classes(hits: list[int], queries: list[int]) -> dict[str, Any]:
    return {
        "test": sum(hits) / sum(queries),
        "classes": {"cars": {"hits": hits, "queries": queries}},
    }


@pytest.mark.parametrize(
    ("seeds", "low", "high", "direction", "expected"),
    [
        (3, 0.01, 0.03, "row", "held"),
        (3, 0.01, 0.03, "against", "not held"),
        (3, -0.03, -0.01, "row", "not held"),
        (3, -0.03, -0.01, "against", "held"),
        (3, -0.01, 0.03, "row", "undecided"),
        (3, -0.01, 0.03, "against", "undecided"),
        (2, 0.01, 0.03, "row", "undecided"),  # too few seeds
        (1, math.nan, math.nan, "row", "undecided"),
        (3, 0.01, 0.03, "none", "ours alone"),
        (1, math.nan, math.nan, "none", "ours alone"),
    ],
)
def test_the_interval_and_the_direction_of_the_source_decide(
    seeds: int, low: float, high: float, direction: str, expected: str
) -> None:
    effect = Effect(("a", "b"), seeds, (low + high) / 2, low, high, "seeds")
    assert verdict(effect, direction) == expected


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"says": None}, "claims.0.says: missing, and it has no default"),
        ({"says": ""}, "claims.0.says: "),
        ({"direction": None}, "claims.0.direction: missing, and it has no default"),
        ({"direction": "second"}, "claims.0.direction: Input should be 'row', 'against' or 'none'"),
        (
            {"direction": "none", "headline": True},
            "claims.0.headline: is for direction row or against",
        ),
    ],
)
def test_a_claim_without_what_its_source_says_is_refused(
    tmp_path: Path, changes: dict[str, Any], error: str
) -> None:
    values = {**CLAIM, "row": "softmax", "against": "plain", **changes}
    path = tmp_path / "claims.yaml"
    path.write_text(to_yaml({"claims": [{k: v for k, v in values.items() if v is not None}]}))
    with pytest.raises(UserError) as refused:
        read_claims(path)
    assert re.fullmatch(f"{path}:\\d+: {error}.*", str(refused.value))


def test_a_claim_whose_row_has_no_result_was_not_run(folder: Path) -> None:
    study_plan = plan(folder, seeds=3)
    now = known(study_plan, {("softmax", seed): 0.7 for seed in range(3)})
    assert effect_of(claim(), study_plan, now) is None
    assert verdict(None, "row") == verdict(None, "none") == "not run"


def test_seeds_are_paired(folder: Path) -> None:
    """Seeds that one row lacks do not count; the interval is that of a paired t test."""
    study_plan = plan(folder, seeds=4)
    ours, theirs = [0.71, 0.74, 0.70], [0.70, 0.71, 0.68]
    results = {("softmax", seed): value for seed, value in enumerate(ours)}
    results |= {("plain", seed): value for seed, value in enumerate([*theirs, 0.1])}
    effect = effect_of(claim(), study_plan, known(study_plan, results))
    assert effect is not None and effect.covers == "seeds" and effect.seeds == 3
    twin = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    assert (effect.low, effect.high) == pytest.approx((twin.low, twin.high))
    assert effect.value == pytest.approx(0.02)
    assert effect.smallest == pytest.approx(effect.high - effect.value)

    one = effect_of(
        claim(), study_plan, known(study_plan, {k: v for k, v in results.items() if not k[1]})
    )
    assert one is not None and one.seeds == 1 and math.isnan(one.low) and math.isnan(one.smallest)


def test_one_seed_knows_the_smallest_effect_of_three(folder: Path) -> None:
    """The variance of the difference is twice that of the study's median row."""
    rows = {name: {"train.epochs": 2 + place} for place, name in enumerate(["plain", *"abcd"])}
    study_plan = plan(folder, seeds=3, rows=rows)
    several = {"a": [0.70, 0.71, 0.75], "b": [0.70, 0.72, 0.71], "c": [0.6, 0.6, 0.6]}
    results = {(row, seed): r_at_1 for row, s in several.items() for seed, r_at_1 in enumerate(s)}
    found = effect_of(
        claim(row="d", against="b"),
        study_plan,
        known(study_plan, results | {("d", 0): 0.8}),
    )
    assert found is not None and found.seeds == 1
    t_of_three = 4.302653
    expected = t_of_three * math.sqrt(2 * np.var(several["b"], ddof=1) / 3)
    assert found.smallest == pytest.approx(expected, rel=1e-6)


def test_classes_widen_the_interval(folder: Path) -> None:
    """Both parts of the variance count; with equal seeds only that of the classes is left."""
    study_plan = plan(folder, seeds=3)
    queries = [4, 6, 10]
    results = {("softmax", s): {"classes": [3, 6, 9]} for s in range(3)}
    results |= {("plain", s): {"classes": [3, 2, 8]} for s in range(3)}
    now = known(study_plan, dict.fromkeys(results, 0.5))
    for (row, seed), value in results.items():
        test = now.done[study_plan.jobs[row, seed, None].identity]["test"]
        test["classes"] = {"cars": {"hits": value["classes"], "queries": queries}}
        test["r_at_1"] = sum(value["classes"]) / sum(queries)
    effect = effect_of(claim(), study_plan, now)
    assert effect is not None and effect.covers == "classes and seeds"
    assert effect.value == pytest.approx(5 / 20)
    lead = np.array([0, 4, 1]) - 0.25 * np.array(queries)
    expected = 1.96 * math.sqrt(3 / 2 * (lead**2).sum() / 20**2)
    assert effect.high - effect.value == pytest.approx(expected, rel=1e-4)


def test_a_score_on_val_has_no_classes(folder: Path) -> None:
    study_plan = plan(folder, seeds=1)
    scored = with_classes([3, 6, 9], [4, 6, 10])
    now = known(study_plan, {("softmax", 0): {"test": 0.5}, ("plain", 0): {"test": 0.5}})
    for record_of_row in now.done.values():
        record_of_row["test"]["classes"] = scored["classes"]
    found = effect_of(claim(score="val R@1"), study_plan, now)
    assert found is not None and found.covers == "" and math.isnan(found.low)
    found = effect_of(claim(), study_plan, now)
    assert found is not None and found.covers == "classes"


def test_the_variance_of_classes_is_that_of_the_bootstrap() -> None:
    rng = np.random.default_rng(0)
    one, other, values, clusters, groups = {}, {}, [], [], []
    for domain, classes in (("cars", 40), ("food", 60)):
        queries_C = rng.integers(3, 12, classes)
        rate_C = rng.uniform(0.2, 0.9, classes)
        hits = [rng.binomial(queries_C, np.clip(rate_C + shift, 0, 1)) for shift in (0.08, 0.0)]
        one[domain], other[domain] = (hits[0], queries_C), (hits[1], queries_C)
        for c in range(classes):
            for q in range(queries_C[c]):
                values.append([q < hits[0][c], q < hits[1][c]])
                clusters.append(f"{domain}/{c}")
                groups.append(domain)
    ours_Q, theirs_Q = np.array(values, float).T
    drawn = paired(theirs_Q, ours_Q, np.array(clusters), np.array(groups), draws=20_000)
    half = 1.96 * math.sqrt(class_variance(one, other))
    assert (drawn.high - drawn.low) / 2 == pytest.approx(half, rel=0.03)


def test_val_chooses_among_rows(folder: Path) -> None:
    """The best on val counts, though another is better on test."""
    rows = {"plain": {}, "a": {"train.epochs": 3}, "b": {"train.epochs": 4}}
    study_plan = plan(folder, seeds=3, rows=rows)
    now = known(study_plan, {(row, s): 0.5 for row in rows for s in range(3)})
    for seed in range(3):
        now.done[study_plan.jobs["b", seed, None].identity]["val"]["r_at_1"] = 0.9
        now.done[study_plan.jobs["a", seed, None].identity]["test"]["r_at_1"] = 0.9
    effect = effect_of(claim(row=["a", "b"]), study_plan, now)
    assert effect is not None and effect.rows == ("b", "plain") and effect.value == 0


def test_val_chooses_on_the_seeds_that_all_rows_have(folder: Path) -> None:
    """One lucky seed does not beat the mean of three."""
    study_plan = plan(
        folder, seeds=3, rows={"plain": {}, "a": {"train.epochs": 3}, "b": {"train.epochs": 4}}
    )
    results: dict[Any, Any] = {(row, seed): 0.5 for row in ("plain", "a") for seed in range(3)}
    now = known(study_plan, results | {("b", 0): 0.5})
    for row, seed, val in (("a", 0, 0.9), ("a", 1, 0.1), ("a", 2, 0.1), ("b", 0, 0.8)):
        now.done[study_plan.jobs[row, seed, None].identity]["val"]["r_at_1"] = val
    effect = effect_of(claim(row=["a", "b"]), study_plan, now)
    assert effect is not None and effect.rows == ("a", "plain")

    now = known(study_plan, results | {("b", 0): 0.5})
    del now.done[study_plan.jobs["a", 0, None].identity]
    with pytest.raises(UserError, match="a, b have no seed in common"):
        effect_of(claim(row=["a", "b"]), study_plan, now)


def test_unseen_domains_and_protocols_are_scores(folder: Path) -> None:
    rows = {
        "plain": {"unseen": True},
        "softmax": {"task.loss": {"name": "softmax"}, "unseen": True},
    }
    changes = {"seeds": 3, "rows": rows, "unseen": {"A": ["cars"]}, "protocols": ["puma"]}
    study_plan = plan(folder, **changes)
    results: dict[Any, Any] = {}
    for seed in range(3):
        for row, lead in (("plain", 0.0), ("softmax", 0.1)):
            both = {"puma": {"unified R@1": 0.3 + 2 * lead}}
            results[row, seed] = {"test": 0.5, "protocols": both}
            results[row, seed, "A"] = {"test": 0.4 + lead}
    now = known(study_plan, results)
    unseen = effect_of(claim(score="unseen R@1"), study_plan, now)
    unified = effect_of(claim(score="puma: unified R@1"), study_plan, now)
    assert unseen is not None and unseen.value == pytest.approx(0.1)
    assert unified is not None and unified.value == pytest.approx(0.2)
    of_cars = effect_of(claim(domain="cars"), study_plan, now)
    assert of_cars is not None and of_cars.value == 0


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"row": "none"}, "no row 'none'"),
        ({"score": "test R@7"}, "no score 'test R@7'"),
        ({"domain": "food"}, "no domain 'food'; allowed: cars"),
    ],
)
def test_what_a_study_does_not_have_is_refused(
    folder: Path, changes: dict[str, Any], error: str
) -> None:
    study_plan = plan(folder, seeds=1)
    now = known(study_plan, {("softmax", 0): 0.7, ("plain", 0): 0.6})
    with pytest.raises(UserError, match=error):
        effect_of(claim(**changes), study_plan, now)


def test_the_table_comes_from_the_results_and_headlines_are_chosen(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study_plan = plan(folder, seeds=3)
    for seed in range(3):
        for row, score in (("plain", 0.5), ("softmax", 0.6 + 0.001 * seed)):
            add_record(
                results_path(study_plan.path), record(study_plan.jobs[row, seed, None], score)
            )
    claims = [
        claim(headline=True).model_dump(),
        claim(claim="plain is ahead", direction="against").model_dump(),
        claim(claim="one against the other", direction="none").model_dump(),
    ]
    path = folder / "claims.yaml"
    path.write_text(to_yaml({"claims": claims}))
    table = claims_table(path)
    assert "| A et al. | softmax is ahead (table 1) | s: `softmax`, `plain` | +0.101 (" in table
    for word in ("held", "not held", "ours alone"):
        assert table.count(f"| 3 | {word} |") == 1
    counts = "All 3 comparisons: 1 held, 1 not held, 1 ours alone."
    assert table.endswith(f"\n\n{counts}\n")

    page = folder / "page.md"
    page.write_text("# Page\n<!-- study: claims_headlines -->\n<!-- /study -->\n")
    assert study.main([str(path), "--claims", "--headlines", "--write", str(page)]) == 0
    assert capsys.readouterr().out.count("| held |") == 1
    assert "softmax is ahead" in page.read_text() and "plain is ahead" not in page.read_text()
    assert counts in page.read_text()
