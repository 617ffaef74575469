"""Results on disk: which of them count, and by which code."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from guie.base.errors import UserError
from guie.studies.grid import Plan, read_plan
from guie.studies.results import (
    Code,
    Results,
    add_record,
    as_committed,
    code_of,
    read_results,
    results_path,
    status_of,
)
from small_studies import CODE, plan, record, written

STUDIES = Path(__file__).parents[2] / "configs/studies"
COMMITTED = [path.with_suffix(".yaml") for path in sorted(STUDIES.glob("*.json"))]


def filled(study: Plan, code: Code = CODE) -> Results:
    path = results_path(study.path)
    for number, job in enumerate(study.jobs.values()):
        add_record(path, record(job, number / 10, code))
    return read_results(path)


def counts(study: Plan, any_code: bool = False):
    found = status_of(study, any_code)
    return len(found.done), len(found.failed), len(found.outdated), found.without_job


def test_the_order_of_results_leaves_no_trace(tmp_path: Path) -> None:
    study = plan(tmp_path)
    results, path = filled(study), results_path(study.path)
    once = path.read_bytes()
    path.unlink()
    for number, job in reversed(list(enumerate(study.jobs.values()))):
        add_record(path, record(job, 0.0) | {"step": "train.py", "error": "no luck"})
        add_record(path, record(job, number / 10))
    assert path.read_bytes() == once
    assert len(once.splitlines()) == len(study.jobs) + 5  # a line each: a diff tells what is new
    assert read_results(path) == results


def test_a_failure_stays_until_a_success(tmp_path: Path) -> None:
    study = plan(tmp_path)
    path = results_path(study.path)
    first, second, *_ = study.jobs.values()
    for job in (first, second):
        add_record(path, record(job, 0.0) | {"step": "train.py", "error": "no luck"})
    assert counts(study) == (0, 2, 0, 0)
    add_record(path, record(first, 0.5))
    assert counts(study) == (1, 1, 0, 0)


def test_results_of_other_code_or_data_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = plan(tmp_path, run={"base": "base.yaml", "data.manifest": str(tmp_path / "m.csv")})
    filled(study)  # no manifest at hand: nothing to compare
    assert counts(study) == (4, 0, 0, 0)
    with monkeypatch.context() as patched:
        patched.setattr("guie.studies.results.RESULT_VERSION", 2)
        assert counts(study) == (0, 0, 4, 0)
        assert counts(study, True) == (4, 0, 0, 0)
    (tmp_path / "m.csv").write_text("one")
    filled(study)
    assert counts(study) == (4, 0, 0, 0)
    (tmp_path / "m.csv").write_text("another")
    assert counts(study, True) == (0, 0, 4, 0)


def test_a_result_counts_for_the_same_run_in_other_rows_and_studies(tmp_path: Path) -> None:
    filled(plan(tmp_path, seeds=1))
    renamed = plan(tmp_path, seeds=1, rows={"plain": {"train.epochs": 5}, "old": {}})
    assert counts(renamed) == (1, 0, 0, 1)  # nobody needs the result of softmax
    other = written(tmp_path, seeds=1, rows={"other": {}}, baseline=None).rename(
        tmp_path / "t.yaml"
    )
    written(tmp_path, seeds=1)
    done = status_of(read_plan(other)).done.values()
    assert [(record["row"], record["test"]["r_at_1"]) for record in done] == [("other", 0.0)]


@pytest.mark.parametrize(
    "text, said",
    [
        ("{", "not JSON: .*line 1"),
        ("<<<<<<< HEAD", "not JSON"),
        ("[]", "not a JSON object"),
        ('{"runs": 3}', "not a results file of a study"),
        ('{"runs": [{"config": "a"}], "failures": []}', "a line of runs lacks commit, dirty"),
    ],
)
def test_a_file_that_holds_no_results_is_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(text)
    with pytest.raises(UserError, match=f"s.json: .*{said}"):
        read_results(tmp_path / "s.json")


def test_code_is_the_tree_of_src_committed_or_not(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        own = ["-c", "user.name=t", "-c", "user.email=t@t"]
        done = subprocess.run(["git", *own, *words], cwd=tmp_path, capture_output=True, check=True)
        return done.stdout.decode().strip()

    src = tmp_path / "src"
    assert code_of(src).src == "unknown"
    src.mkdir()
    (src / "a.py").write_text("a = 1\n")
    (tmp_path / ".gitignore").write_text("__pycache__\n")
    git("init", "-q"), git("add", "."), git("commit", "-qm", "one")
    first = code_of(src)
    assert first == Code(git("rev-parse", "HEAD:src"), git("rev-parse", "HEAD"), dirty=False)

    (tmp_path / "README.md").write_text("words\n")
    (src / "__pycache__").mkdir()
    (src / "__pycache__/a.pyc").write_text("")
    git("add", "."), git("commit", "-qm", "words")
    assert code_of(src).src == first.src
    (src / "b.py").write_text("b = 2\n")
    changed = code_of(src)
    assert (
        changed.dirty and changed.src != first.src and changed.description.endswith(" and changes")
    )
    assert git("status", "--porcelain") == "?? src/b.py"  # the index is as it was
    git("add", "."), git("commit", "-qm", "two")
    assert code_of(src) == Code(changed.src, git("rev-parse", "HEAD"), dirty=False)


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_every_committed_record_is_found_by_the_identity_of_its_job(path: Path) -> None:
    """Without data and weights, too."""
    _, found = as_committed(path)
    records = json.loads(results_path(path).read_text())["runs"]
    assert {line["config"] for line in records} <= found.done.keys() and records
    assert not found.without_job


def test_what_is_committed_is_read_whatever_code_it_is_of(tmp_path: Path) -> None:
    study = plan(tmp_path)
    filled(study, Code(src="6d" * 20, commit="d1" * 20, dirty=False))
    read, found = as_committed(study.path)
    assert read.jobs.keys() == study.jobs.keys()
    assert len(found.done) == len(study.jobs) and not found.outdated
