"""The table of a study against numbers by hand, and its place in a file."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from guie.base.errors import UserError
from guie.report.figures import seed_dots
from guie.studies.grid import Plan
from guie.studies.results import StudyStatus
from guie.studies.table import (
    by_seed,
    domain_scores,
    ordered,
    rendered,
    scores,
    summary,
    write_between,
)
from small_studies import plan, record

ROWS = {"plain": {}, "softmax": {"task.loss": {"name": "softmax"}}, "third": {"train.epochs": 4}}
TESTS = {
    **{("plain", 0): 0.70, ("plain", 1): 0.72, ("plain", 2): 0.71},
    **{("softmax", 0): 0.73, ("softmax", 2): 0.72},
}


def status(study: Plan, tests: dict[Any, Any], **more: Any) -> StudyStatus:
    """Results by row, seed and perhaps fold: R@1, or R@1 by domain."""
    done = {}
    for key, test in tests.items():
        job = study.jobs[key if len(key) == 3 else (*key, None)]
        by_domain = {"domains": test} if isinstance(test, dict) else {}
        done[job.identity] = record(job, 0.5 if by_domain else test, **by_domain, **more)
    return StudyStatus(done, {}, {}, 0)


@pytest.fixture
def study(tmp_path: Path) -> Plan:
    return plan(tmp_path, rows=ROWS, seeds=3)


def test_unseen_scores_are_of_the_run_that_did_not_see_the_domain(tmp_path: Path) -> None:
    folds = {"A": ["emoji", "leaves"], "B": ["cars"]}
    study = plan(tmp_path, rows={"plain": {"unseen": True}}, seeds=1, unseen=folds)
    tests = {
        ("plain", 0): {"emoji": 0.9, "leaves": 0.9, "cars": 0.9},
        ("plain", 0, "A"): {"emoji": 0.3, "leaves": 0.6, "cars": 0.9},
        ("plain", 0, "B"): {"emoji": 0.9, "leaves": 0.9, "cars": 0.12},
    }
    assert "| 0.500 / 0.250 | 0.340 / 0.170 |" in rendered(study, status(study, tests))
    text = rendered(study, status(study, {k: v for k, v in tests.items() if k[-1] != "B"}))
    assert "| 0.600 / 0.550 | 0.500 / 0.250 | missing |" in text
    assert "Yet to be run, 1 of 3 runs: plain, seed 0 without fold B." in text
    del tests["plain", 0, "A"]["leaves"]
    message = "unseen: leaves is not a domain of the test; allowed: cars"
    with pytest.raises(UserError, match=message):
        scores(study, status(study, tests))

    # Fewer seeds may leave domains out
    study = plan(tmp_path, rows={"plain": {"unseen": 1}}, seeds=2, unseen={"A": ["cars"]})
    results = {job.identity: record(job, 0.7, domains={"cars": 0.3}) for job in study.jobs.values()}
    text = rendered(study, StudyStatus(results, {}, {}, 0))
    assert "| 0.700 ± 0.000 / 0.350 ± 0.000 | 0.300 / 0.150 (1 seed) |" in text
    assert "Yet to be run" not in text


def test_the_table_says_what_exists_and_what_does_not(study: Plan) -> None:
    failed, old = study.jobs["softmax", 1, None], study.jobs["third", 0, None]
    failure = record(failed, 0.0) | {"step": "train.py", "error": "a | b"}
    outdated = {old.identity: record(old, 0.9)}
    more = {"failed": {failed.identity: failure}, "outdated": outdated, "without_job": 2}
    assert rendered(study, replace(status(study, TESTS), **more)) == (
        "| | seeds | val R@1 / mMP@5 | test R@1 / mMP@5 | test R@1 against plain | seconds |\n"
        "| --- | --- | --- | --- | --- | --- |\n"
        "| softmax | 2 of 3 | 0.825 ± 0.007 / 0.775 ± 0.007 | 0.725 ± 0.007 / 0.362 ± 0.004 | +0.020 ± 0.014"
        " | 100 |\n"
        "| plain | 3 | 0.810 ± 0.010 / 0.760 ± 0.010 | 0.710 ± 0.010 / 0.355 ± 0.005 | | 100 |\n"
        "| third | 0 of 3 | outdated | outdated | no seed in common | |\n"
        "\n"
        "Test: test split, merged index, means over domains. ± is the deviation over seeds; of a"
        " difference, over the seeds that both have. Code: c0c0c0c.\n"
        "\n"
        "Failed, 1 of 9 runs: softmax, seed 1 (train.py: a \\| b).\n"
        "\n"
        "Of other code or another manifest, left out (--any-code takes other code), 1 of 9 runs:"
        " third, seed 0 (commit c0c0c0c).\n"
        "\n"
        "Yet to be run, 2 of 9 runs: third, seed 1; third, seed 2.\n"
        "\n"
        "2 results of configs that are not in the study, or no longer, are left out.\n"
    )
    empty = rendered(study, StudyStatus({}, {}, {}, 0))
    assert empty.count("| missing | missing |") == 3 and "Yet to be run, 9 of 9 runs" in empty


def test_commits_devices_and_gpu_memory_are_named(tmp_path: Path) -> None:
    """Of one seed there is no deviation and no column of seeds."""
    study = plan(tmp_path, seeds=1, costs=True, baseline=None)
    costs = {"trainable_parameters": 5, "peak_memory_mb": 70, "device": "cpu"}
    now = status(study, {("plain", 0): 0.7, ("softmax", 0): 0.5}, **costs)
    text = rendered(study, now)
    assert "Code: c0c0c0c. Trained on: cpu." in text and "GPU memory" not in text
    assert "\n| plain | 0.800 / 0.750 | 0.700 / 0.350 | 5 | 70 | 100 |\n" in text
    gpu = {"device": "H100", "peak_gpu_memory_mb": 33, "commit": "ab" * 20, "dirty": True}
    now.done[study.jobs["softmax", 0, None].identity] |= gpu
    text = rendered(study, now)
    assert "more than one commit: abababa and changes (1 runs), c0c0c0c (1 runs)." in text
    assert "Trained on: H100 (1 runs), cpu (1 runs)." in text
    assert "| memory, MB | GPU memory, MB |" in text and "| 70 | 33 |" in text


def test_the_figure_shows_each_seed_and_rows_without_a_run(study: Plan) -> None:
    lines = scores(study, status(study, TESTS))
    order = ordered(summary(lines, None)).index
    columns = {"test R@1": "test r_at_1", "unseen R@1": "unseen r_at_1"}
    values = by_seed(lines, order, columns)
    assert list(values) == ["test R@1"]  # the other has no score
    (axes,) = seed_dots(values, "plain").axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["softmax", "plain", "third"]
    drawn = [tuple(point) for dots in axes.collections for point in dots.get_offsets().tolist()]
    assert {(0.73, 0), (0.72, 0), (0.70, 1)} < {(round(x, 6), y) for x, y in drawn}
    assert [text.get_text() for text in axes.texts] == ["no run"]


def test_a_table_replaces_only_the_text_between_its_markers(tmp_path: Path) -> None:
    path = tmp_path / "E.md"
    other = "<!-- /study -->\nb\n<!-- study: t -->\n<!-- /study -->\n"
    path.write_text(f"a\n<!-- study: s -->\nold\n{other}")
    for _ in range(2):
        write_between(path, "s", "| new |\n")
        assert path.read_text() == f"a\n<!-- study: s -->\n| new |\n{other}"
    for text in ("a\n", "<!-- study: s -->\n<!-- study: t -->\n<!-- /study -->\n"):
        path.write_text(text)
        with pytest.raises(UserError, match="add the lines <!-- study: s --> and <!-- /study -->"):
            write_between(path, "s", "new")
    with pytest.raises(UserError, match="none.md: cannot be read"):
        write_between(tmp_path / "none.md", "s", "new")


def test_scores_by_domain_are_means_over_the_seeds_with_results(study: Plan) -> None:
    tests = {("plain", seed): {"cars": cars, "logos": 0.8} for seed, cars in ((0, 0.2), (2, 0.4))}
    table = domain_scores(study, status(study, tests))
    assert table.index.tolist() == ["plain"]
    assert table.loc["plain"].to_dict() == pytest.approx({"cars": 0.3, "logos": 0.8})
