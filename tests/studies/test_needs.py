"""Rows that need the runs of rows above: compositions have members, students have teachers."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

import study
from guie.base.errors import UserError
from guie.config.loading import parsed
from guie.studies.grid import read_plan
from guie.studies.results import read_results
from small_studies import kinds, student, table, trained, written


def test_compositions_are_made_of_the_runs_of_rows_above(folder: Path) -> None:
    both = {"members": ["plain", "softmax"], "join": "side_by_side"}
    rows = {
        "plain": {"unseen": True},
        "softmax": {"task.loss": {"name": "softmax"}, "unseen": True},
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
    assert re.search(r"\| both \| 0\.500 / 0\.500 \|.* \d*\.\d+ to \d*\.\d+ \|", table(folder))

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


def test_teachers_are_runs_of_rows_above(folder: Path) -> None:
    """Of the seed that is named, without the fold that the student is without; others are folders."""
    rows = {
        "plain": {"seeds": 2, "unseen": True},
        "taught": student("plain", "plain, seed 1", "runs/elsewhere") | {"unseen": True},
    }
    path = written(folder, rows=rows, seeds=1, unseen={"A": ["cars"]})
    assert study.main([str(path), "--only", "taught", "--jobs", "2"]) == 0
    names = {name[:-9] for name in trained(folder)}
    assert len(trained(folder)) == 6
    assert names == {
        f"{run}{fold}" for run in ("plain_0", "plain_1", "taught_0") for fold in ("", "_A")
    }
    for end in ("", "_A"):
        (config,) = (folder / "runs/studies/s").glob(f"taught_0{end}_????????.yaml")
        models = [one["model"] for one in parsed(config.read_text()).plain["task"]["teachers"]]
        assert [Path(model).name[:-9] for model in models[:2]] == [f"plain_0{end}", f"plain_1{end}"]
        assert models[2] == "runs/elsewhere"
    assert study.main([str(path)]) == 0
    assert len(trained(folder)) == 6 and kinds(folder) == (6, 0)


def test_rows_are_evaluated_in_another_way(folder: Path) -> None:
    """An oracle of specialists, PCA of a row's layer, and a model of a library; they train nothing."""
    rows = {
        "plain": {},
        "softmax": {"task.loss": {"name": "softmax"}},
        "oracle": {"evaluate": {"models": {"cars": "plain", "food": "softmax, seed 1"}}},
        "layer": {
            "evaluate": {
                "models": "plain",
                "layers": ["layer3"],
                "pool": "max",
                "norm": "after",
                "reduce": "pca",
            }
        },
        "random": {"evaluate": {"models": "plain", "reduce": "random", "dim": 8}},
        "raw": {
            "evaluate": {"models": "timm:resnet18:a1", "size_px": 32, "fit": "pad"},
            "seeds": 1,
        },
    }
    path = written(folder, rows=rows, seeds=2, protocols=["puma"])
    assert study.main([str(path), "--only", "oracle", "layer", "random", "raw"]) == 0
    assert len(trained(folder)) == 3 and kinds(folder) == (7, 0)  # each model once
    (oracle,) = folder.glob("runs/studies/s/oracle_0_????????")
    words = [one.read_text() for one in oracle.glob("*report_*.words")]
    assert len(words) == 3  # val, test, the protocol
    for one in words:
        assert re.search(r"--specialists cars=\S+_0\.npz food=\S+_1\.npz --join oracle ", one)
    models = [(oracle / f"test_{n}.words").read_text().split()[1] for n in (0, 1)]
    assert [Path(model).name[:-9] for model in models] == ["plain_0", "softmax_1"]
    assert not list(oracle.glob("*.npz"))

    (layer,) = folder.glob("runs/studies/s/layer_1_????????")
    for split in ("val", "test", "train"):
        embedded = (layer / f"{split}_0.words").read_text()
        assert (
            "--layers layer3 --pool max --norm after" in embedded and f"--split {split}" in embedded
        )
    (report,) = layer.glob("report_*.words")
    assert re.search(r"--reduce pca --dim 64 --fit \S+train_0\.npz", report.read_text())

    for seed in (0, 1):
        (random,) = folder.glob(f"runs/studies/s/random_{seed}_????????/report_*.words")
        assert f"--reduce random --dim 8 --seed {seed}" in random.read_text()

    (raw,) = folder.glob("runs/studies/s/raw_0_????????")
    embedded = (raw / "test_0.words").read_text()
    assert embedded.startswith("--model timm:resnet18:a1 ")
    assert embedded.endswith("--size-px 32 --fit pad")
    records = read_results(folder / "s.json").runs.values()
    (of_raw,) = [record for record in records if record["row"] == "raw"]
    assert of_raw["val"]["r_at_1"] == of_raw["test"]["r_at_1"] and of_raw["seconds"] is None
    assert of_raw["test"]["classes"] == {"cars": {"hits": [1, 1], "queries": [1, 2]}}
    assert study.main([str(path), "--only", "oracle"]) == 0
    assert len(trained(folder)) == 3


def test_what_is_composed_of_seeds_of_a_row_is_a_teacher_and_a_start(folder: Path) -> None:
    soup = {"members": ["plain, seed 0", "plain, seed 1"], "join": "soup"}
    rows = {"plain": {"seeds": 2}, "soup": {"compose": soup}}
    rows |= {"taught": student("soup"), "further": {"start_from": "soup"}}
    path = written(folder, rows=rows, seeds=1)
    assert study.main([str(path), "--only", "taught", "further"]) == 0
    names = [name[:-9] for name in trained(folder)]
    assert names == ["plain_0", "plain_1", "taught_0", "further_0"]
    (made,) = folder.rglob("composed.json")
    assert [name[:-9] for name in json.loads(made.read_text())["members"]] == ["plain_0", "plain_1"]
    (config,) = (folder / "runs/studies/s").glob("further_0_????????.yaml")
    assert folder / parsed(config.read_text()).plain["start_from"] == made.parent


def test_a_member_may_be_so_many_seeds_after_the_ensembles(folder: Path) -> None:
    """Networks with seeds of their own, for several ensembles: of seed 2 it has those of 2 and 3."""
    soup = {"members": ["plain", "plain, seed +1"], "join": "soup"}
    rows = {"plain": {"seeds": 4}, "both": {"seeds": [0, 2], "compose": soup}}
    jobs = read_plan(written(folder, rows=rows)).jobs
    members = [[job.seed for job in jobs["both", seed, None].needs.values()] for seed in (0, 2)]
    assert members == [[0, 1], [2, 3]]
    rows["both"]["seeds"] = [3]
    with pytest.raises(UserError, match="plain has no run of seed 4; give both rows the same"):
        read_plan(written(folder, rows=rows))


def test_a_student_is_what_its_teachers_make_it(folder: Path) -> None:
    def identity(epochs: int) -> str:
        rows = {"plain": {"train.epochs": epochs}, "taught": student("plain")}
        return read_plan(written(folder, rows=rows)).jobs["taught", 0, None].identity

    assert identity(2) == identity(2) != identity(3)
