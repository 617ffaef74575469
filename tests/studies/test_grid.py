"""The jobs that a study's file expands to, what it refuses, and the identity of a run."""

import re
from pathlib import Path
from typing import Any

import pytest

from guie.base.errors import UserError
from guie.config.loading import parsed
from guie.studies.grid import read_plan
from small_studies import BASE, plan, student, written

UNSEEN = {"A": ["leaves", "emoji"], "B": ["cars"]}


def test_a_row_is_the_run_with_its_changes(tmp_path: Path) -> None:
    rows = {
        "plain": None,
        "merged": {"model": {"image": {"fit": "pad"}}, "train": {"batch_size": 8}},
        "dotted": {"stages.1.lr.classes": 0.5, "why": "rates", "seeds": [4]},
    }
    study = plan(tmp_path, rows=rows, run={"base": "base.yaml", "train.batch_size": 16})
    keys = [("plain", 0), ("plain", 1), ("merged", 0), ("merged", 1), ("dotted", 4)]
    assert list(study.jobs) == [(*key, None) for key in keys]
    plain, merged, dotted = (study.jobs[*keys[place], None].config for place in (1, 2, 4))
    sizes = [[stage.batch_size for stage in run.stages] for run in (plain, merged, dotted)]
    assert sizes == [[16, 16], [8, 8], [16, 16]]
    assert (merged.model.image.size_px, merged.model.image.fit) == (32, "pad")
    assert [stage.lr.of("classes") for stage in plain.stages] == [1e-3, 1e-3]
    assert [stage.lr.of("classes") for stage in dotted.stages] == [1e-3, 0.5]
    assert (plain.seed, dotted.seed) == (1, 4)
    (tmp_path / "large.yaml").write_text("base: s.yaml\nrun: {model.image.size_px: 64}\n")
    large = read_plan(tmp_path / "large.yaml").jobs.values()  # a study may have another as base
    assert {job.config.model.image.size_px for job in large} == {64} and len(large) == 5


def test_a_grid_names_its_rows(tmp_path: Path) -> None:
    losses = [{"name": "softmax"}, {"name": "cosface"}]
    grid = {"train.lr.head": [0.1, 1e-3], "model.head": [{"norm": "bn"}], "task.loss": losses}
    study = plan(tmp_path, baseline=None, rows={"{loss} at {lr.head}": {"grid": grid}})
    names = [f"{loss} at {rate}" for rate in ("0.1", "0.001") for loss in ("softmax", "cosface")]
    assert [row.name for row in study.rows] == names
    config = study.jobs["cosface at 0.001", 0, None].config
    assert (config.task.loss.name, config.model.head.norm) == ("cosface", "bn")
    assert {stage.lr.of("head") for stage in config.stages} == {1e-3}


def test_a_fold_is_a_run_that_leaves_its_domains_out(tmp_path: Path) -> None:
    run = {"base": "base.yaml", "data": {"leave_out": ["toys"]}}
    rows = {"plain": {"unseen": True}, "other": {"train.batch_size": 8}}
    study = plan(tmp_path, run=run, rows=rows, seeds=1, unseen=UNSEEN)
    left_out = {key: job.config.data.leave_out for key, job in study.jobs.items()}
    assert left_out == {
        ("plain", 0, None): ["toys"],
        ("plain", 0, "A"): ["emoji", "leaves", "toys"],
        ("plain", 0, "B"): ["cars", "toys"],
        ("other", 0, None): ["toys"],
    }
    order = [(job.row, job.fold) for job in study.chosen(None, None)]
    assert order == [("plain", None), ("other", None), ("plain", "A"), ("plain", "B")]
    for unseen, seeds in ((True, [5, 7]), (1, [5]), (3, [5, 7]), (False, [])):
        rows = {"plain": {"unseen": unseen}}
        study = plan(tmp_path, rows=rows, seeds=[5, 7], unseen={"A": ["a"]})
        assert [seed for _, seed, fold in study.jobs if fold] == seeds


SAME = [
    {"data": {"workers": 0}},
    {"checkpoint_every": "7 steps"},
    {"task": {"loss": {"margin_rad": 0.3}}},  # the default
    {"train": {"epochs": 2.0}},
]
OTHERS = [{"train": {"epochs": 1}}, {"data": {"leave_out": ["toys"]}}, {"model.head.dim": 32}]


def test_identity_is_what_a_run_depends_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def identity(run: dict[str, Any], row: str = "plain", **more: Any) -> str:
        rows = {"plain": {}, "taught": student("plain")}
        study = plan(tmp_path, **{"run": {"base": "base.yaml", **run}, "rows": rows, **more})
        return study.jobs[row, 0, None].identity

    plain = identity({})
    assert {identity(run) for run in SAME} == {plain}
    assert identity({}, "again", rows={"again": {"train.epochs": 2}}, baseline=None) == plain
    others = [identity(run) for run in OTHERS] + [identity({}, test={"index": "separate"})]
    others.append(identity({}, intervals=True))
    # A student depends on its teachers
    teachers = [{"plain": {"train.epochs": n}, "taught": student("plain")} for n in (3, 4)]
    others += [identity({}, "taught", rows=rows) for rows in teachers]
    assert len({plain, *others}) == len(others) + 1

    run = {"data": {"manifest": "${SOMEWHERE}/m.csv"}}
    here = identity(run)
    monkeypatch.setenv("SOMEWHERE", "/elsewhere")
    assert identity(run) == here  # on every machine


REFUSED = [  # changes of the study in YAML, and what the error says
    ("protocols: [puma, pumas]", "protocols: no protocol 'pumas'; known: merged"),
    ("seeds: [1, 1]", "seeds: lists a value twice"),
    ("seeds: 1000000", "seeds: .*a count is at most 1,000"),
    ("baseline: plan", "baseline: no row 'plan'"),
    ("rows: {plain: {seedz: 3}}", "rows.plain.seedz: unknown key; did you mean seed"),
    ("rows: {plain: {seed: 3}}", "rows.plain.seed: the study sets it, by seeds"),
    ("rows: {plain: {stages.2.epochs: 1}}", "rows.plain: '2' is not an index below 2"),
    ("rows: {plain: {grid: {train.epochs: [1, 2]}}}", "its grid varies train.epochs; add .epochs."),
    ("rows: {'p {rate}': {grid: {train.epochs: [1]}}}", ".rate. in its name must match one key"),
    (
        "rows: {'e {epochs}': {grid: {train.epochs: [2, 4]}, stages.0.epochs: 1}}",
        "'e 2' and 'e 4' of its grid are the same run; if a stage sets",
    ),
    ("rows: {plain: {}, 'pl{epochs}': {grid: {train.epochs: [ain]}}}", "a second row 'plain'"),
    ("rows: {plain: {unseen: true}}", "unseen: has no fold, and row 'plain' needs"),
    ("unseen: {A: [cars], B: [cars]}", "unseen: cars is left out by two folds"),
    (
        "{unseen: {A: [cars]}, rows: {plain: {unseen: true}, small: {unseen: true,"
        " evaluate: {models: plain, reduce: pca}}}}",
        "rows.small.unseen: .*fitted on all domains; use compose",
    ),
    ("test: {root: x}", "test.root: needs manifest"),
    ("rows: {both: {compose: {members: [plan]}}}", "compose: no member is a row above"),
    ("rows: {both: {compose: {members: [x], name: x}}}", "compose.name: the study sets it"),
    (
        "{seeds: [0], rows: {plain: {}, both: {seeds: 2, compose: {members: [plain]}}}}",
        "rows.both.compose: plain has no run of seed 1; give both rows the same",
    ),
    (
        "rows: {plain: {compose: {members: [x]}, train.epochs: 2}}",
        "rows.plain.compose: trains no run, but train.epochs configures one",
    ),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_an_error_names_file_and_key(changes: str, message: str, tmp_path: Path) -> None:
    path = written(tmp_path, **({"baseline": None} | parsed(changes).plain))
    with pytest.raises(UserError) as error:
        read_plan(path)
    assert re.search(rf"s.yaml:\d+: .*({message})", str(error.value)), error.value


def test_every_wrong_row_is_named_once(tmp_path: Path) -> None:
    rows = {"a": {"task": {"loss": {"scale": -1}}}, "b": {"precision": "x"}}
    for base, changes, count in ((BASE, {"rows": rows}, 2), (BASE + "precision: x\n", {}, 1)):
        path = written(tmp_path, baseline=None, **changes)
        (tmp_path / "base.yaml").write_text(base)
        with pytest.raises(UserError) as error:
            read_plan(path)
        assert len(str(error.value).splitlines()) == count


def test_rows_and_seeds_are_chosen(tmp_path: Path) -> None:
    study = plan(tmp_path)
    assert [(job.row, job.seed, job.fold) for job in study.chosen(["softmax"], [1])] == [
        ("softmax", 1, None)
    ]
    for wanted in ((["sofmax"], None), (None, [2])):
        with pytest.raises(UserError, match="no (row sofmax|seed 2) in this study; --list shows"):
            study.chosen(*wanted)
