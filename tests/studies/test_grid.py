"""What a study's file unfolds to, what it refuses, and what makes two runs one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from guie.base.errors import UserError
from guie.config.loading import to_yaml
from guie.studies.grid import read_plan
from small_studies import BASE, plan, student, written

REPOSITORY = Path(__file__).parents[2]


def test_committed_studies_expand_to_their_runs() -> None:
    """Without data and weights, too; that all can be read is held with their results."""
    losses = read_plan(REPOSITORY / "configs/studies/losses.yaml")
    assert len(losses.jobs) == len({job.identity for job in losses.jobs.values()}) > 30
    rates = read_plan(REPOSITORY / "configs/studies/rates.yaml")
    config = rates.jobs["proxynca++, classes 0.3", 0, None].config
    assert config.task.loss.name == "proxy_nca"
    assert [(s.name, s.epochs, s.lr.of("classes")) for s in config.stages] == [("full", 3, 0.3)]


def test_a_row_is_the_run_with_what_it_says(tmp_path: Path) -> None:
    rows = {
        "plain": None,
        "merged": {"model": {"image": {"fit": "pad"}}, "train": {"batch_size": 8}},
        "dotted": {"stages.1.lr.classes": 0.5, "why": "rates", "seeds": [4]},
    }
    study = plan(tmp_path, rows=rows, run={"base": "base.yaml", "train.batch_size": 16})
    assert list(study.jobs) == [("plain", 0, None), ("plain", 1, None), ("merged", 0, None),
                                ("merged", 1, None), ("dotted", 4, None)]  # fmt: skip
    plain, merged, dotted = (study.jobs[n, s, None].config for n, s in
                             (("plain", 1), ("merged", 0), ("dotted", 4)))  # fmt: skip
    assert [s.batch_size for c in (plain, merged, dotted) for s in c.stages] == [16] * 2 + [
        8
    ] * 2 + [16] * 2
    assert merged.model.image.model_dump(include={"size_px", "fit"}) == {
        "size_px": 32,
        "fit": "pad",
    }
    assert [stage.lr.of("classes") for stage in dotted.stages] == [1e-3, 0.5]
    assert [stage.lr.of("classes") for stage in plain.stages] == [1e-3, 1e-3]
    assert (plain.seed, dotted.seed) == (1, 4)


def test_a_grid_names_its_rows(tmp_path: Path) -> None:
    grid = {
        "train.lr.head": [0.1, 1e-3],
        "model.head": [{"norm": "bn"}],
        "task.loss": [{"name": "softmax"}, {"name": "cosface"}],
    }
    study = plan(tmp_path, baseline=None, rows={"{loss} at {lr.head}": {"grid": grid}})
    assert [row.name for row in study.rows] == ["softmax at 0.1", "cosface at 0.1",
                                                "softmax at 0.001", "cosface at 0.001"]  # fmt: skip
    config = study.jobs["cosface at 0.001", 0, None].config
    assert (config.task.loss.name, config.model.head.norm) == ("cosface", "bn")
    assert {stage.lr.of("head") for stage in config.stages} == {1e-3}


def test_a_fold_is_a_run_that_leaves_its_domains_out(tmp_path: Path) -> None:
    run = {"base": "base.yaml", "data": {"leave_out": ["toys"]}}
    rows = {"plain": {"unseen": True}, "other": {"train.batch_size": 8}}
    study = plan(
        tmp_path, run=run, rows=rows, seeds=1, unseen={"A": ["leaves", "emoji"], "B": ["cars"]}
    )
    left_out = {key: job.config.data.leave_out for key, job in study.jobs.items()}
    assert left_out == {
        ("plain", 0, None): ["toys"],
        ("plain", 0, "A"): ["emoji", "leaves", "toys"],
        ("plain", 0, "B"): ["cars", "toys"],
        ("other", 0, None): ["toys"],
    }
    order = [job.key for job in study.chosen(None, None)]
    assert order == [("plain", 0, None), ("other", 0, None), ("plain", 0, "A"), ("plain", 0, "B")]


@pytest.mark.parametrize(("unseen", "seeds"), [(True, [5, 7]), (1, [5]), (3, [5, 7]), (False, [])])
def test_so_many_seeds_leave_domains_out(
    tmp_path: Path, unseen: bool | int, seeds: list[int]
) -> None:
    rows = {"plain": {"unseen": unseen}}
    study = plan(tmp_path, rows=rows, seeds=[5, 7], unseen={"A": ["leaves"]})
    assert [seed for _, seed, fold in study.jobs if fold] == seeds


def test_a_study_may_begin_with_another(tmp_path: Path) -> None:
    """The base of its runs is found beside the file that names it."""
    written(tmp_path / "below", seeds=3)
    (tmp_path / "large.yaml").write_text("base: below/s.yaml\nrun: {model.image.size_px: 64}\n")
    study = read_plan(tmp_path / "large.yaml")
    assert {job.config.model.image.size_px for job in study.jobs.values()} == {64}
    assert (study.name, len(study.jobs)) == ("large", 6)


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
    def identity(run: dict[str, Any], **more: Any) -> str:
        study = plan(tmp_path, run={"base": "base.yaml", **run}, rows={"plain": {}}, **more)
        return study.jobs["plain", 0, None].identity

    plain = identity({})
    assert {identity(run) for run in SAME} == {plain}
    renamed = plan(tmp_path, rows={"plain": {}, "again": {"train.epochs": 2}})
    assert renamed.jobs["again", 0, None].identity == plain
    assert renamed.jobs["again", 1, None].identity != plain
    of_others = [identity(run) for run in OTHERS] + [identity({}, test={"index": "separate"})]
    assert len({plain, *of_others}) == len(of_others) + 1

    here = {"data": {"manifest": "${SOMEWHERE}/m.csv"}}
    found = {identity(here)}
    monkeypatch.setenv("SOMEWHERE", "/elsewhere")
    assert len(found | {identity(here)}) == 1  # of every machine


def composed(**keys: Any) -> dict[str, Any]:
    """A composition of more seeds than the study's."""
    return {"rows": {"plain": {}, "both": {"compose": keys, "seeds": 2}}}


REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"protocols": ["puma", "pumas"]},
        r"s.yaml:\d+: protocols: no protocol 'pumas'; known: merged",
    ),
    (
        {"rows": {"plain": {}, "taught": student("plain, seed 7")}},
        "rows.taught: plain has no run of seed 7; give both rows the same",
    ),
    ({"rows": {}}, r"s.yaml:\d+: rows: is empty"),
    ({"rows": {"plain": 3}}, r"s.yaml:\d+: rows.plain: must be a mapping"),
    ({"row": {}}, r"s.yaml:\d+: row: unknown key; did you mean rows"),
    ({"seeds": 0}, r"s.yaml:\d+: seeds: .*at least 1"),
    ({"seeds": [1, 1]}, "seeds: lists a value twice"),
    ({"baseline": "plan"}, r"s.yaml:\d+: baseline: no row 'plan'"),
    (
        {"rows": {"plain": {"seedz": 3}}},
        r"s.yaml:\d+: rows.plain.seedz: unknown key; did you mean seed",
    ),
    ({"rows": {"plain": {"seed": 3}}}, r"s.yaml:\d+: rows.plain.seed: the study sets it, by seeds"),
    ({"run": {"base": "base.yaml", "name": "x"}}, r"s.yaml:\d+: run.name: the study sets it"),
    (
        {"rows": {"plain": {"train": {"epochs": -1}}}},
        r"s.yaml:\d+: rows.plain.train.epochs: .*above 0|greater than 0",
    ),
    (
        {"rows": {"plain": {"stages.2.epochs": 1}}},
        r"s.yaml:\d+: rows.plain: '2' is not an index below 2",
    ),
    (
        {"run": {"base": "base.yaml", "task": {"loss": {"name": "nix"}}}},
        r"s.yaml:\d+: run.task.loss.name: unknown name 'nix'",
    ),
    ({"run": {"base": "none.yaml"}}, "none.yaml: no such config file"),
    (
        {"rows": {"plain": {"grid": {"train.epochs": [1, 2]}}}},
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
    ({"rows": {"plain": {"unseen": True}}}, "unseen: has no fold, and row 'plain' needs"),
    ({"unseen": {"A": ["cars"], "B": ["cars"]}}, "unseen: cars is left out by two folds"),
    ({"rows": {"plain": {"unseen": 0}}, "unseen": {"A": ["cars"]}}, "unseen.*greater than"),
    ({"unseen": {"A": []}}, "unseen.A: .*at least 1"),
    (
        {
            "rows": {
                "plain": {"unseen": True},
                "small": {"unseen": True, "evaluate": {"models": "plain", "reduce": "pca"}},
            },
            "unseen": {"A": ["cars"]},
        },
        "rows.small.unseen: .*fitted on all domains; use compose",
    ),
    ({"seeds": 10**12}, "seeds: .*a count is at most 1,000"),
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
    (
        composed(members=["plain"]) | {"seeds": [0]} | {"unseen": {"A": ["cars"]}},
        "no run of seed 1",
    ),
    (
        {"rows": {"plain": {"compose": {"members": ["x"]}, "train.epochs": 2}}},
        r"s.yaml:\d+: rows.plain.compose: trains no run, but train.epochs configures one",
    ),
]


@pytest.mark.parametrize("changes, said", REFUSED, ids=lambda value: str(value)[:40])
def test_what_is_wrong_is_told_by_file_and_key(changes: dict, said: str, tmp_path: Path) -> None:
    path = written(tmp_path, **({"baseline": None} | changes))
    with pytest.raises(UserError) as message:
        read_plan(path)
    assert re.search(said, str(message.value)), message.value


def test_every_row_that_is_wrong_is_told_once(tmp_path: Path) -> None:
    rows = {"a": {"task": {"loss": {"scale": -1}}}, "b": {"precision": "x"}}
    with pytest.raises(UserError) as message:
        plan(tmp_path, baseline=None, rows=rows)
    assert len(str(message.value).splitlines()) == 2
    path = written(tmp_path)
    (tmp_path / "base.yaml").write_text(BASE + "precision: x\n")
    with pytest.raises(UserError) as message:
        read_plan(path)
    assert len(str(message.value).splitlines()) == 1  # not once a row


def test_rows_and_seeds_are_chosen_of_those_there(tmp_path: Path) -> None:
    study = plan(tmp_path)
    assert [job.key for job in study.chosen(["softmax"], [1])] == [("softmax", 1, None)]
    for wanted in ((["sofmax"], None), (None, [2])):
        with pytest.raises(UserError, match="no (row sofmax|seed 2); --list shows them"):
            study.chosen(*wanted)


def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path) -> None:
    for text in ("- a\n", "run: [\n", to_yaml({"rows": {"a": {}}})):
        (tmp_path / "s.yaml").write_text(text)
        with pytest.raises(UserError, match="s.yaml"):
            read_plan(tmp_path / "s.yaml")


@pytest.mark.parametrize("name", ["..yaml", "...yaml"])
def test_a_study_is_not_named_by_dots_alone(name: str, tmp_path: Path) -> None:
    """Its folder would be that of all studies, or the one above."""
    path = written(tmp_path).rename(tmp_path / name)
    with pytest.raises(UserError, match="must not be only dots; rename the file"):
        read_plan(path)
