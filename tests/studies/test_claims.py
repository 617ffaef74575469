"""Claims of papers: the effect, its interval, and the verdict by rule."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import study
from guie.base.errors import UserError
from guie.config.loading import load_config, to_yaml
from guie.config.study import ClaimConfig, ClaimsConfig
from guie.evaluation.bootstrap import paired
from guie.studies.claims import Effect, class_variance, effect_of, verdict
from guie.studies.results import StudyStatus, add_record
from small_studies import plan, record

CLAIM = {"paper": "A et al.", "claim": "softmax is ahead", "source": "table 1", "study": "s"}
CLAIM |= {"says": "Softmax leads by 2 points (table 1).", "direction": "row"}
CLAIM |= {"row": "softmax", "against": "plain"}
SEEDS = range(3)


def claim(**changes: Any) -> ClaimConfig:
    return ClaimConfig(**{**CLAIM, **changes})


def effect(
    folder: Path, results: dict[tuple, Any], claim: ClaimConfig, **study: Any
) -> Effect | None:
    """Return the effect by results: R@1, or more of a record, by row, seed and perhaps fold."""
    study_plan, done = plan(folder, **{"seeds": 3} | study), {}
    for (row, seed, *fold), value in results.items():
        job = study_plan.jobs[row, seed, fold[0] if fold else None]
        more = dict(value) if isinstance(value, dict) else {"test": value}
        classes, val = more.pop("classes", None), more.pop("val", None)
        found = done[job.identity] = record(job, **more)
        found["test"] |= {"classes": {"cars": classes}} if classes else {}
        found["val"] |= {"r_at_1": val} if val else {}
    return effect_of(claim, study_plan, StudyStatus(done, {}, {}, 0))


@pytest.mark.parametrize(
    ("seeds", "low", "high", "direction", "expected"),
    [
        (3, 0.01, 0.03, "row", "held"),
        (3, 0.01, 0.03, "against", "not held"),
        (3, -0.03, -0.01, "against", "held"),
        (3, -0.01, 0.03, "against", "undecided"),
        (2, 0.01, 0.03, "row", "undecided"),  # too few seeds
        (3, 0.01, 0.03, "none", "ours alone"),
    ],
)
def test_the_interval_and_the_direction_of_the_source_decide(
    seeds: int, low: float, high: float, direction: str, expected: str
) -> None:
    found = Effect(("a", "b"), seeds, (low + high) / 2, low, high, "seeds")
    assert verdict(found, direction) == expected


def test_a_claim_without_its_source_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "claims.yaml"
    for changes, message in (
        ({"direction": "second"}, "direction: Input should be 'row', 'against' or 'none'"),
        ({"direction": "none", "headline": True}, "headline: is for direction row or against"),
    ):
        path.write_text(to_yaml({"claims": [CLAIM | changes]}))
        with pytest.raises(UserError, match=f"{path}:\\d+: claims.0.{message}"):
            load_config(path, ClaimsConfig)


def test_seeds_are_paired(tmp_path: Path) -> None:
    """Seeds that one row lacks do not count; the interval is that of a paired t test."""
    ours, theirs = [0.71, 0.74, 0.70], [0.70, 0.71, 0.68]
    results = {("softmax", seed): value for seed, value in enumerate(ours)}
    assert effect(tmp_path, results, claim()) is None and verdict(None, "none") == "not run"
    results |= {("plain", seed): value for seed, value in enumerate([*theirs, 0.1])}
    found = effect(tmp_path, results, claim(), seeds=4)
    assert found is not None and (found.covers, found.seeds) == ("seeds", 3)
    twin = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((twin.low, twin.high))
    assert (found.value, found.smallest) == pytest.approx((0.02, found.high - found.value))
    one = effect(tmp_path, {key: v for key, v in results.items() if key[1] == 0}, claim())
    assert one is not None and one.seeds == 1 and math.isnan(one.low) and math.isnan(one.smallest)


def test_classes_widen_the_interval(tmp_path: Path) -> None:
    """With equal seeds only the variance between classes is left; records of val have none."""

    def counted(*hits: int) -> dict[str, Any]:
        return {"test": sum(hits) / 20, "classes": {"hits": [*hits], "queries": [4, 6, 10]}}

    results = {("softmax", seed): counted(3, 6, 9) for seed in SEEDS}
    results |= {("plain", seed): counted(3, 2, 8) for seed in SEEDS}
    found = effect(tmp_path, results, claim())
    assert found is not None and found.covers == "classes and seeds"
    lead = np.array([0, 4, 1]) - 0.25 * np.array([4, 6, 10])
    expected = 1.96 * math.sqrt(3 / 2 * (lead**2).sum() / 20**2)
    assert found.high - found.value == pytest.approx(expected, rel=1e-4)
    one = {key: value for key, value in results.items() if key[1] == 0}
    found = effect(tmp_path, one, claim(score="val R@1"), seeds=1)
    assert found is not None and found.covers == "" and math.isnan(found.low)


def test_the_variance_of_classes_is_that_of_the_bootstrap() -> None:
    rng = np.random.default_rng(0)
    one, other, values, clusters, groups = {}, {}, [], [], []
    for domain, classes in (("cars", 40), ("food", 60)):
        queries_C = rng.integers(3, 12, classes)
        rate_C = rng.uniform(0.2, 0.9, classes)
        hits = [rng.binomial(queries_C, np.clip(rate_C + shift, 0, 1)) for shift in (0.08, 0.0)]
        one[domain], other[domain] = (hits[0], queries_C), (hits[1], queries_C)
        for c in range(classes):
            values += [[q < hits[0][c], q < hits[1][c]] for q in range(queries_C[c])]
            clusters += [f"{domain}/{c}"] * queries_C[c]
            groups += [domain] * queries_C[c]
    ours_Q, theirs_Q = np.array(values, float).T
    drawn = paired(theirs_Q, ours_Q, np.array(clusters), np.array(groups), draws=20_000)
    half = 1.96 * math.sqrt(class_variance(one, other))
    assert (drawn.high - drawn.low) / 2 == pytest.approx(half, rel=0.03)


def test_val_chooses_among_rows_on_their_common_seeds(tmp_path: Path) -> None:
    rows = {"plain": {}, "a": {"train.epochs": 3}, "b": {"train.epochs": 4}}
    # On seed 0, which both have, a is ahead, though its mean is below b's score
    vals = {("a", 0): 0.9, ("a", 1): 0.1, ("a", 2): 0.1, ("b", 0): 0.8}
    results: dict[tuple, Any] = {("plain", seed): 0.5 for seed in SEEDS}
    results |= {key: {"test": 0.5, "val": val} for key, val in vals.items()}
    found = effect(tmp_path, results, claim(row=["a", "b"]), rows=rows)
    assert found is not None and found.rows == ("a", "plain")
    del results["a", 0]
    with pytest.raises(UserError, match="a, b have no seed in common"):
        effect(tmp_path, results, claim(row=["a", "b"]), rows=rows)


def test_unseen_domains_protocols_and_single_domains_are_scores(tmp_path: Path) -> None:
    rows = {"plain": {"unseen": True}, "softmax": {"train.epochs": 3, "unseen": True}}
    changes = {"rows": rows, "unseen": {"A": ["cars"]}, "protocols": ["puma"]}
    results: dict[tuple, Any] = {}
    for seed in SEEDS:
        for row, lead in (("plain", 0.0), ("softmax", 0.1)):
            puma = {"puma": {"unified R@1": 0.3 + 2 * lead}}
            results[row, seed] = {"test": 0.5, "protocols": puma}
            results[row, seed, "A"] = {"test": 0.4 + lead}
    cases = ({"score": "unseen R@1"}, 0.1), ({"score": "puma: unified R@1"}, 0.2)
    for asked, value in (*cases, ({"domain": "cars"}, 0)):
        found = effect(tmp_path, results, claim(**asked), **changes)
        assert found is not None and found.value == pytest.approx(value)
    for asked, fault in (
        ({"row": "none"}, "no row 'none'"),
        ({"score": "test R@7"}, "no score 'test R@7'"),
        ({"domain": "food"}, "no domain 'food'; allowed: cars"),
    ):
        with pytest.raises(UserError, match=fault):
            effect(tmp_path, results, claim(**asked), **changes)


def test_the_table_is_written_between_its_markers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the headlines; tests/test_experiments.py compares the whole table."""
    study_plan = plan(tmp_path, seeds=3)
    for (row, seed, _), job in study_plan.jobs.items():
        add_record(study_plan.results, record(job, 0.5 if row == "plain" else 0.6 + 0.001 * seed))
    others = {"claim": "plain is ahead", "direction": "against"}, {"direction": "none"}
    path, page = tmp_path / "claims.yaml", tmp_path / "page.md"
    path.write_text(to_yaml({"claims": [CLAIM | {"headline": True}, *(CLAIM | o for o in others)]}))
    page.write_text("# Page\n<!-- study: claims_headlines -->\n<!-- /study -->\n")
    assert study.main([str(path), "--claims", "--headlines", "--write", str(page)]) == 0
    table = capsys.readouterr().out
    assert table.strip() in page.read_text() and "plain is ahead" not in table
    assert "| A et al. | softmax is ahead (table 1) | +0.101 (" in table
    assert "All 3 comparisons: 1 held, 1 not held, 1 ours alone." in table
