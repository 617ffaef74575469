"""Results on disk: which of them count, and of which code they are."""

import json
import subprocess
from pathlib import Path

import pytest

from guie.base.errors import UserError
from guie.studies.grid import Plan
from guie.studies.results import Code, add_record, as_committed, code_of, read_results, status_of
from small_studies import plan, record

STUDIES = Path(__file__).parents[2] / "configs/studies"
COMMITTED = [path.with_suffix(".yaml") for path in sorted(STUDIES.glob("*.json"))]
FAILURE = {"step": "train.py", "error": "bad luck"}


def fill(study: Plan) -> None:
    for number, job in enumerate(study.jobs.values()):
        add_record(study.results, record(job, number / 10))


def counts(study: Plan, any_code: bool = False) -> tuple[int, int, int, int]:
    found = status_of(study, any_code)
    return len(found.done), len(found.failed), len(found.outdated), found.without_job


def test_the_file_does_not_depend_on_the_order_of_results(tmp_path: Path) -> None:
    study = plan(tmp_path)
    fill(study)
    path, jobs = study.results, [*study.jobs.values()]
    once, results = path.read_bytes(), read_results(path)
    path.unlink()
    for number, job in reversed(list(enumerate(jobs))):
        add_record(path, record(job, 0.0) | FAILURE)
        add_record(path, record(job, number / 10))
    assert path.read_bytes() == once and read_results(path) == results
    assert len(once.splitlines()) == len(jobs) + 5  # a line each, for short diffs


def test_results_of_other_code_or_data_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = plan(tmp_path, run={"base": "base.yaml", "data.manifest": str(tmp_path / "m.csv")})
    fill(study)
    assert counts(study) == (4, 0, 0, 0)  # without a manifest there is nothing to compare
    with monkeypatch.context() as patched:
        patched.setattr("guie.studies.results.RESULT_VERSION", 2)
        assert counts(study) == (0, 0, 4, 0)
        assert counts(study, any_code=True) == (4, 0, 0, 0)
    (tmp_path / "m.csv").write_text("one")
    fill(study)
    assert counts(study) == (4, 0, 0, 0)
    (tmp_path / "m.csv").write_text("another")
    assert counts(study, any_code=True) == (0, 0, 4, 0)


def test_a_file_without_results_is_refused(tmp_path: Path) -> None:
    for text, says in (("<<<<<<< HEAD", "not JSON: .*line 1"), ("{}", "not a results file of a")):
        (tmp_path / "s.json").write_text(text)
        with pytest.raises(UserError, match=f"s.json: .*{says}"):
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
    assert changed.dirty and changed.src != first.src
    assert changed.description.endswith(" and changes")
    assert git("status", "--porcelain") == "?? src/b.py"  # the user's index is unchanged
    git("add", "."), git("commit", "-qm", "two")
    assert code_of(src) == Code(changed.src, git("rev-parse", "HEAD"), dirty=False)


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_every_committed_record_belongs_to_a_job(path: Path) -> None:
    """Without data and weights, too."""
    study, found = as_committed(path)
    records = json.loads(study.results.read_text())["runs"]
    assert {line["config"] for line in records} <= found.done.keys() and records
    assert not found.without_job
