"""Rows that need the runs of rows above: compositions have members, students have teachers."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

import study
from guie.base.errors import UserError
from guie.studies.grid import read_plan
from small_studies import kinds, table, trained, written


def test_compositions_are_made_of_the_runs_of_rows_above(folder: Path) -> None:
    both = {"members": ["plain", "softmax"], "join": "side_by_side"}
    rows = {
        **{
            "plain": {"unseen": True},
            "softmax": {"task.loss": {"name": "softmax"}, "unseen": True},
        },
        "both": {"compose": both, "unseen": True},
        "both twice": {"compose": both | {"views": "flip"}},
    }
    path = written(folder, rows=rows, seeds=1, unseen={"A": ["cars"]}, intervals=True)
    assert study.main([str(path), "--only", "both", "both twice", "--jobs", "2"]) == 0
    assert len(trained(folder)) == 4  # each member once, with and without the fold
    made = {p.parent.name[:-9]: json.loads(p.read_text()) for p in folder.rglob("composed.json")}
    assert made.keys() == {"both_0", "both_0_A", "both_twice_0"}
    assert [name[:-9] for name in made["both_0_A"]["members"]] == ["plain_0_A", "softmax_0_A"]
    assert [made[name]["val"]["leave_out"] for name in ("both_0", "both_0_A")] == [[], ["cars"]]
    assert re.search(r"\| both \| \.500 / \.500 \|.* \d*\.\d+ to \d*\.\d+ \|", table(folder))

    assert study.main([str(path)]) == 0
    assert len(trained(folder)) == 4 and kinds(folder) == (7, 0)

    # Where records alone are left of the members, those are trained anew
    for run in (folder / "runs/studies/s").glob("*_0_????????"):
        shutil.rmtree(run)
    lines = (folder / "s.json").read_text().splitlines(keepends=True)
    kept = "".join(line for line in lines if '"row": "both' not in line)
    (folder / "s.json").write_text(kept)
    assert study.main([str(path)]) == 0
    assert len(trained(folder)) == 6 and kinds(folder) == (7, 0)


def student(*teachers: str) -> dict:
    task = {"name": "distillation", "criteria": [{"relation": {"name": "rkd"}}]}
    return {
        "task": task | {"teachers": [{"model": name} for name in teachers]},
        "train.lr.classes": 0,
    }


def test_teachers_are_runs_of_rows_above(folder: Path) -> None:
    """Of the seed that is named, without the fold that the student is without; others are folders."""
    rows = {
        "plain": {"seeds": 2, "unseen": True},
        "taught": student("plain", "plain, seed 1", "runs/elsewhere") | {"unseen": True},
    }
    path = written(folder, rows=rows, seeds=1, unseen={"A": ["cars"]})
    assert study.main([str(path), "--only", "taught", "--jobs", "2"]) == 0
    names = [name[:-9] for name in trained(folder)]
    assert sorted(names) == [
        "plain_0",
        "plain_0_A",
        "plain_1",
        "plain_1_A",
        "taught_0",
        "taught_0_A",
    ]
    for end in ("", "_A"):
        (config,) = (folder / "runs/studies/s").glob(f"taught_0{end}_????????.yaml")
        models = [one["model"] for one in yaml.safe_load(config.read_text())["task"]["teachers"]]
        assert [Path(model).name[:-9] for model in models[:2]] == [f"plain_0{end}", f"plain_1{end}"]
        assert models[2] == "runs/elsewhere"
    assert study.main([str(path)]) == 0
    assert len(trained(folder)) == 6 and kinds(folder) == (6, 0)


def test_a_run_starts_from_a_row_above(folder: Path) -> None:
    """From what was composed of them, even."""
    soup = {"members": ["plain, seed 0", "plain, seed 1"], "join": "soup"}
    rows = {"plain": {"seeds": 2}, "soup": {"compose": soup}, "further": {"start_from": "soup"}}
    path = written(folder, rows=rows, seeds=1)
    assert study.main([str(path), "--only", "further"]) == 0
    assert sorted(name[:-9] for name in trained(folder)) == ["further_0", "plain_0", "plain_1"]
    (config,) = (folder / "runs/studies/s").glob("further_0_????????.yaml")
    start = Path(yaml.safe_load(config.read_text())["start_from"])
    assert start.name[:-9] == "soup_0" and (start / "composed.json").is_file()


def test_a_student_is_what_its_teachers_make_it(folder: Path) -> None:
    def identity(epochs: int) -> str:
        rows = {"plain": {"train.epochs": epochs}, "taught": student("plain")}
        return read_plan(written(folder, rows=rows)).jobs["taught", 0, None].identity

    assert identity(2) == identity(2) != identity(3)


def test_a_teacher_of_no_such_seed_is_refused(folder: Path) -> None:
    path = written(folder, rows={"plain": {}, "taught": student("plain, seed 7")}, seeds=1)
    with pytest.raises(UserError, match="plain has no run of seed 7; give both rows the same"):
        read_plan(path)


def test_seeds_of_a_row_are_composed_and_teach_as_one(folder: Path) -> None:
    both = {"members": ["plain, seed 0", "plain, seed 1"], "join": "side_by_side"}
    rows = {"plain": {"seeds": 2}, "both": {"compose": both}, "taught": student("both")}
    assert study.main([str(written(folder, rows=rows, seeds=1)), "--only", "taught"]) == 0
    assert [name[:-9] for name in trained(folder)] == ["plain_0", "plain_1", "taught_0"]
    (made,) = folder.rglob("composed.json")
    assert [name[:-9] for name in json.loads(made.read_text())["members"]] == ["plain_0", "plain_1"]
