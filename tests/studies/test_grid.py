"""The jobs that a study's file expands to, what it refuses, and the identity of a run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from guie.base.errors import UserError
from guie.config.loading import to_yaml
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


def test_a_grid_names_its_rows(tmp_path: Path) -> None:
    losses = [{"name": "softmax"}, {"name": "cosface"}]
    grid = {"train.lr.head": [0.1, 1e-3], "model.head": [{"norm": "bn"}], "task.loss": losses}
    study = plan(tmp_path, baseline=None, rows={"{loss} at {lr.head}": {"grid": grid}})
    rates = ("0.1", "0.001")
    names = [f"{loss} at {rate}" for rate in rates for loss in ("softmax", "cosface")]
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


@pytest.mark.parametrize(("unseen", "seeds"), [(True, [5, 7]), (1, [5]), (3, [5, 7]), (False, [])])
def test_the_first_seeds_leave_domains_out(
    tmp_path: Path, unseen: bool | int, seeds: list[int]
) -> None:
    study = plan(tmp_path, rows={"plain": {"unseen": unseen}}, seeds=[5, 7], unseen={"A": ["a"]})
    assert [seed for _, seed, fold in study.jobs if fold] == seeds


def test_a_study_may_have_another_as_base(tmp_path: Path) -> None:
    written(tmp_path / "below", seeds=3)
    (tmp_path / "large.yaml").write_text("base: below/s.yaml\nrun: {model.image.size_px: 64}\n")
    study = read_plan(tmp_path / "large.yaml")
    assert {job.config.model.image.size_px for job in study.jobs.values()} == {64}
    assert (study.name, len(study.jobs)) == ("large", 6)


def test_needed_runs_have_the_seed_that_is_named_and_this_fold(tmp_path: Path) -> None:
    soup = {"members": ["plain", "plain, seed +1"], "join": "soup"}
    rows: dict[str, Any] = {
        "plain": {"seeds": 4, "unseen": True},
        "both": {"seeds": [0, 2], "compose": soup, "unseen": True},
        "taught": student("both", "plain, seed 3", "runs/elsewhere") | {"seeds": [2]},
        "further": {"start_from": "both", "seeds": [2]},
    }
    jobs = read_plan(written(tmp_path, rows=rows, unseen={"A": ["cars"]})).jobs

    def needs(*key: Any) -> list[Any]:
        return [job.key for job in jobs[key].needs.values()]

    assert needs("both", 0, None) == [("plain", 0, None), ("plain", 1, None)]
    assert needs("both", 2, "A") == [("plain", 2, "A"), ("plain", 3, "A")]
    assert needs("taught", 2, None) == [("both", 2, None), ("plain", 3, None)]
    assert needs("further", 2, None) == [("both", 2, None)]
    assert jobs["both", 2, "A"].ensemble.val.leave_out == ["cars"]


SAME = [
    {"data": {"workers": 0}},
    {"checkpoint_every": "7 steps"},
    {"task": {"loss": {"margin_rad": 0.3}}},  # the default
    {"train": {"epochs": 2.0}},
]
OTHERS = [
    {"train": {"epochs": 1}},
    {"data": {"leave_out": ["toys"]}},
    {"data": {"manifest": "n.csv"}},
    {"task": {"loss": {"name": "softmax"}}},
    {"model": {"head": {"dim": 32}}},
]


def test_identity_is_what_a_run_depends_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def identity(run: dict[str, Any], row: str = "plain", **more: Any) -> str:
        rows = {"plain": {}, "taught": student("plain")}
        study = plan(tmp_path, **{"run": {"base": "base.yaml", **run}, "rows": rows, **more})
        return study.jobs[row, 0, None].identity

    plain = identity({})
    assert {identity(run) for run in SAME} == {plain}
    assert identity({}, "again", rows={"again": {"train.epochs": 2}}, baseline=None) == plain
    others = [identity(run) for run in OTHERS] + [identity({}, test={"index": "separate"})]
    assert len({plain, *others}) == len(others) + 1
    # A student depends on its teachers
    teachers = [{"plain": {"train.epochs": n}, "taught": student("plain")} for n in (3, 4)]
    students = {identity({}, "taught", rows=rows) for rows in teachers}
    assert len(students) == 2

    run = {"data": {"manifest": "${SOMEWHERE}/m.csv"}}
    here = identity(run)
    monkeypatch.setenv("SOMEWHERE", "/elsewhere")
    assert identity(run) == here  # on every machine


def row(**keys: Any) -> dict[str, Any]:
    return {"rows": {"plain": keys}}


def composed(**keys: Any) -> dict[str, Any]:
    """An ensemble of more seeds than the study's."""
    return {"rows": {"plain": {}, "both": {"compose": keys, "seeds": 2}}}


LINE = r"s.yaml:\d+: "
EVALUATED = {"plain": {"unseen": True}}
EVALUATED["small"] = {"unseen": True, "evaluate": {"models": "plain", "reduce": "pca"}}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"protocols": ["puma", "pumas"]}, f"{LINE}protocols: no protocol 'pumas'; known: merged"),
    (
        {"rows": {"plain": {}, "taught": student("plain, seed 7")}},
        "rows.taught: plain has no run of seed 7; give both rows the same",
    ),
    ({"rows": {}}, f"{LINE}rows: is empty"),
    ({"rows": {"plain": 3}}, f"{LINE}rows.plain: must be a mapping"),
    ({"row": {}}, f"{LINE}row: unknown key; did you mean rows"),
    ({"seeds": 0}, f"{LINE}seeds: .*at least 1"),
    ({"seeds": [1, 1]}, "seeds: lists a value twice"),
    ({"seeds": 10**12}, "seeds: .*a count is at most 1,000"),
    ({"baseline": "plan"}, f"{LINE}baseline: no row 'plan'"),
    (row(seedz=3), f"{LINE}rows.plain.seedz: unknown key; did you mean seed"),
    (row(seed=3), f"{LINE}rows.plain.seed: the study sets it, by seeds"),
    ({"run": {"base": "base.yaml", "name": "x"}}, f"{LINE}run.name: the study sets it"),
    (row(train={"epochs": -1}), f"{LINE}rows.plain.train.epochs: .*above 0|greater than 0"),
    (row(**{"stages.2.epochs": 1}), f"{LINE}rows.plain: '2' is not an index below 2"),
    (
        {"run": {"base": "base.yaml", "task": {"loss": {"name": "nix"}}}},
        f"{LINE}run.task.loss.name: unknown name 'nix'",
    ),
    ({"run": {"base": "none.yaml"}}, "none.yaml: no such config file"),
    (
        row(grid={"train.epochs": [1, 2]}),
        "rows.plain: its grid varies train.epochs; add .epochs. to the row's name",
    ),
    (
        {"rows": {"p {rate}": {"grid": {"train.epochs": [1]}}}},
        "rows.p .rate.: .rate. in its name must match one key",
    ),
    (
        {"rows": {"e {epochs}": {"grid": {"train.epochs": [2, 4]}, "stages.0.epochs": 1}}},
        "'e 2' and 'e 4' of its grid are the same run; if a stage sets",
    ),
    (
        {"rows": {"plain": {}, "pl{epochs}": {"grid": {"train.epochs": ["ain"]}}}},
        "a second row 'plain'",
    ),
    (row(unseen=True), "unseen: has no fold, and row 'plain' needs"),
    (row(unseen=0) | {"unseen": {"A": ["cars"]}}, "unseen.*greater than"),
    ({"unseen": {"A": ["cars"], "B": ["cars"]}}, "unseen: cars is left out by two folds"),
    ({"unseen": {"A": []}}, "unseen.A: .*at least 1"),
    (
        {"rows": EVALUATED, "unseen": {"A": ["cars"]}},
        "rows.small.unseen: .*fitted on all domains; use compose",
    ),
    ({"test": {"split": "train"}}, "test.split: .*'val' or 'test'"),
    ({"test": {"root": "x"}}, "test.root: needs manifest"),
    (
        composed(members=["plan", "p"], join="average"),
        "rows.both.compose: no member is a row above",
    ),
    (composed(members=["plain"], name="x"), "rows.both.compose.name: the study sets it"),
    (
        composed(members=["plain"], joint="x"),
        "rows.both.compose.joint: unknown key; did you mean join",
    ),
    (composed(members=["plain"]) | {"seeds": [0]}, "no run of seed 1"),
    (
        row(**{"compose": {"members": ["x"]}, "train.epochs": 2}),
        f"{LINE}rows.plain.compose: trains no run, but train.epochs configures one",
    ),
]


@pytest.mark.parametrize(("changes", "says"), REFUSED, ids=lambda value: str(value)[:40])
def test_an_error_names_file_and_key(changes: dict, says: str, tmp_path: Path) -> None:
    path = written(tmp_path, **({"baseline": None} | changes))
    with pytest.raises(UserError) as error:
        read_plan(path)
    assert re.search(says, str(error.value)), error.value


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
    assert [job.key for job in study.chosen(["softmax"], [1])] == [("softmax", 1, None)]
    for wanted in ((["sofmax"], None), (None, [2])):
        with pytest.raises(UserError, match="no (row sofmax|seed 2); --list shows them"):
            study.chosen(*wanted)


@pytest.mark.parametrize("text", ["- a\n", "run: [\n", to_yaml({"rows": {"a": {}}})])
def test_a_file_that_is_no_study_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(UserError, match="s.yaml"):
        read_plan(tmp_path / "s.yaml")


@pytest.mark.parametrize("name", ["..yaml", "...yaml"])
def test_a_name_of_dots_is_refused(name: str, tmp_path: Path) -> None:
    """Its folder would be that of all studies, or the one above."""
    path = written(tmp_path).rename(tmp_path / name)
    with pytest.raises(UserError, match="must not be only dots; rename the file"):
        read_plan(path)
