"""study.py from its config to its table: nothing twice, nothing lost, whatever happens on the way."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import study
from guie.base.errors import UserError
from guie.base.files import held
from guie.data.manifest import load_manifest
from guie.studies import runner
from guie.studies import study as studying
from guie.studies.results import read_results
from guie.studies.runner import Children
from kills import until
from small_studies import CODE, kinds, stand_in, table, trained, written
from tiny_runs import TINY_CLIP, mix_with_val

DRAW = studying.draw


def test_a_study_is_run_once(
    processes: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(studying, "draw", DRAW)
    rows = {
        "plain": {},
        "again": {"train.epochs": 2},
        "soft max!": {"task.loss": {"name": "softmax"}},
    }
    path = written(processes, rows=rows)
    assert study.main([str(path), "--jobs", "2"]) == 0
    out = processes / "runs/studies/s"
    assert len(trained(processes)) == 4  # `again` is `plain` under another name
    assert sorted(re.sub("_[0-9a-f]{8}$", "", name) for name in trained(processes)) == [
        "plain_0", "plain_1", "soft_max__0", "soft_max__1"]  # fmt: skip
    assert not list(out.glob("*.npz")) and (out / "table.png").stat().st_size > 5000
    text = capsys.readouterr().out
    assert text.rstrip("\n") == table(processes).rstrip("\n")
    assert "| plain | 2 |" in text and "| again | 2 |" in text and "missing" not in text
    line = next(iter(read_results(processes / "s.json").runs.values()))
    assert line["best_step"] == 5 and line["seconds"] == 7.0 and line["val"]["domains"]["cars"]

    before = (processes / "s.json").read_bytes()
    monkeypatch.setattr(studying, "draw", lambda *args: None)
    assert study.main([str(path)]) == 0
    (processes / "E.md").write_text("<!-- study: s -->\n<!-- /study -->\n")
    assert study.main([str(path), "--table", "--write", str(processes / "E.md")]) == 0
    assert study.main([str(path), "--list"]) == 0
    assert len(trained(processes)) == 4 and (processes / "s.json").read_bytes() == before
    assert table(processes).splitlines()[3] in (processes / "E.md").read_text()
    assert capsys.readouterr().out.count("done        ") == 6


def test_a_failure_is_kept_and_shown_and_tried_again_when_asked(
    processes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(
        processes, rows={"bad": {}, "plain": {"train.epochs": 5}}, baseline="plain", seeds=1
    )
    assert study.main([str(path)]) == 1
    assert kinds(processes) == (1, 1)
    said = "Failed, 1 of 2 runs: bad, seed 0 (train.py: error: disk: the disk is full)."
    assert said in table(processes) and "| bad | failed | failed |" in table(processes)
    assert str(processes) not in (processes / "s.json").read_text()
    assert "--retry-failed runs them again" in capsys.readouterr().err

    assert study.main([str(path)]) == 1
    assert len(trained(processes)) == 2  # not tried again unasked
    train = processes / "fakes/train.py"
    train.write_text(train.read_text().replace('"bad"', '"worse"'))
    assert study.main([str(path), "--retry-failed"]) == 0
    assert kinds(processes) == (2, 0) and len(trained(processes)) == 3


def test_a_config_changed_half_way(folder: Path) -> None:
    path = written(folder)
    assert study.main([str(path), "--seeds", "0"]) == 0
    assert "Yet to be run, 2 of 4 runs" in table(folder)
    written(folder, rows={"plain": {}, "softmax": {"task.loss": {"name": "softmax", "scale": 9}}})
    assert study.main([str(path)]) == 0
    assert len(trained(folder)) == 5 and kinds(folder) == (5, 0)
    assert "1 results of configs that are not in the study" in table(folder)


def test_other_code_is_run_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(folder, seeds=1)
    assert study.main([str(path)]) == 0
    newer = replace(CODE, src="6d" * 20, commit="d1" * 20)
    for module in (studying, runner):
        monkeypatch.setattr(module, "code_of", lambda: newer)
    monkeypatch.setattr("guie.studies.results.RESULT_VERSION", 2)
    assert study.main([str(path), "--any-code"]) == 0
    assert len(trained(folder)) == 2
    assert study.main([str(path), "--only", "plain"]) == 0
    assert len(set(trained(folder))) == 3  # in a folder of its own
    assert "outdated | outdated" in table(folder) and "commit c0c0c0c" in table(folder)

    monkeypatch.setattr(runner, "code_of", lambda: CODE)
    with pytest.raises(UserError, match="src/ was changed, or another commit checked out"):
        study.main([str(path)])


def test_a_kill_between_test_and_record_leaves_nothing_behind(folder: Path) -> None:
    path = written(folder, seeds=1, rows={"plain": {}})
    study.main([str(path)])
    (folder / "s.json").unlink()
    (run,) = (folder / "runs/studies/s").glob("plain_0_*/")
    (run / "checkpoints").mkdir()
    run.with_suffix(".npz").write_text("")
    assert study.main([str(path)]) == 0
    assert len(trained(folder)) == 1 and kinds(folder) == (1, 0)
    assert not (run / "checkpoints").exists() and not run.with_suffix(".npz").exists()


def test_a_run_that_is_not_whole_is_a_failure(folder: Path) -> None:
    path = written(folder, seeds=1, rows={"plain": {}})
    study.main([str(path)])
    (folder / "s.json").unlink()
    (log,) = (folder / "runs/studies/s").glob("plain_0_*/metrics.jsonl")
    log.write_text("")
    assert study.main([str(path)]) == 1
    assert "its files are not those of a run; delete" in table(folder)


def test_what_another_study_has_run_is_taken_from_there(folder: Path) -> None:
    written(folder, seeds=1)
    study.main([str(folder / "s.yaml")])
    (folder / "t.yaml").write_text((folder / "s.yaml").read_text().replace("softmax:", "other:"))
    assert study.main([str(folder / "t.yaml")]) == 0
    assert not (folder / "runs/studies/t/trained").exists()
    assert {r["row"] for r in read_results(folder / "t.json").runs.values()} == {"plain", "other"}


def test_a_second_study_in_the_folder_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(folder, seeds=1)
    monkeypatch.setattr(studying, "LOCK_WAIT_S", 0.1)
    with (
        held(folder / "runs/studies/s/.lock", "", ""),
        pytest.raises(
            UserError, match=r"another study.py uses this folder \(process \d+ on .*\); wait, or"
        ),
    ):
        study.main([str(path)])


def in_process(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patched:
        stand_in(folder, patched, processes=True)
        os._exit(study.main([str(folder / "s.yaml"), "--jobs", "2"]))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_study_that_is_killed_ends_with_the_same_table(
    number: signal.Signals, processes: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = written(processes)
    (processes / "runs/studies/s").mkdir(parents=True)
    (processes / "runs/studies/s/seconds").write_text("0.3")
    # Nobody trains there, so this process, which has imported all of it, may be forked
    process = multiprocessing.get_context("fork").Process(target=in_process, args=(processes,))
    process.start()
    assert until(lambda: (processes / "s.json").exists() and len(trained(processes)) > 2, 60)
    assert process.pid is not None
    os.kill(process.pid, number)
    process.join(120)
    assert process.exitcode == (-9 if number == signal.SIGKILL else 143)
    done = kinds(processes)
    assert 0 < done[0] < 4 and done[1] == 0
    (processes / "runs/studies/s/seconds").unlink()
    assert study.main([str(path)]) == 0

    undisturbed = tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as patched:
        stand_in(undisturbed, patched)
        study.main([str(written(undisturbed))])
    assert table(processes) == table(undisturbed)
    assert len(set(trained(processes))) == 4


def test_ctrl_c_ends_it_in_order(processes: Path) -> None:
    path = written(processes, seeds=3)
    (processes / "runs/studies/s").mkdir(parents=True)
    (processes / "runs/studies/s/seconds").write_text("30")
    threading.Timer(0.7, signal.raise_signal, [signal.SIGINT]).start()
    assert study.main([str(path)]) == 130
    assert not (processes / "s.json").exists()
    assert len(trained(processes)) == 1


@pytest.mark.parametrize("number", ["0", "two", "-1", "²", "9" * 5000])
def test_so_many_jobs_are_no_number(
    number: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        study.main([str(written(folder)), f"--jobs={number}"])
    assert f"--jobs: {number[:40]}: must be 1 to 2,147,483,647" in capsys.readouterr().err


def test_runs_at_once_take_gpus_in_turn(processes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(processes)
    (processes / "runs/studies/s").mkdir(parents=True)
    (processes / "runs/studies/s/seconds").write_text("0.3")
    taken: dict[str, set[str]] = {}

    def noting(self: Children, script: Path, words: Any, log: Path, more: dict[str, str]) -> None:
        taken.setdefault(log.name, set()).add(more["CUDA_VISIBLE_DEVICES"])
        started(self, script, words, log, more)

    started = Children.run
    monkeypatch.setattr(Children, "run", noting)
    monkeypatch.setattr(runner, "gpus", lambda: ["3", "5"])
    assert study.main([str(path), "--jobs", "2"]) == 0
    assert len(taken) == 4 and all(len(gpus) == 1 for gpus in taken.values())  # one a run
    assert set.union(*taken.values()) == {"3", "5"}


def test_headlines_of_protocols_and_costs_are_columns(folder: Path) -> None:
    path = written(folder, protocols=["puma"], costs=True, seeds=1)
    assert study.main([str(path)]) == 0
    heads, _, first, _ = (line.split("|") for line in table(folder).splitlines()[:4])
    columns = {head.strip(): cell.strip() for head, cell in zip(heads, first, strict=True)}
    assert columns["puma: unified R@1"] and columns["puma: harmonic MAP@R"] == ""
    assert columns["parameters that train"] == "1,234" and columns["memory, MB"] == "9"
    line = next(iter(read_results(folder / "s.json").runs.values()))
    unified, harmonic = (line["protocols"]["puma"][f"{k} R@1"] for k in ("unified", "harmonic"))
    assert harmonic == pytest.approx(unified / 2, abs=1e-5)

    # Without its protocols a result is another's: it has not all that the table asks for.
    written(folder, seeds=1)
    assert study.main([str(path)]) == 0
    assert kinds(folder) == (4, 0) and len(trained(folder)) == 2  # tested anew, not trained


@pytest.mark.slow
def test_the_road_of_a_study(toy_manifest: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """With the scripts as they are: two rows, one of them with a fold, on toy images."""
    manifest = mix_with_val(toy_manifest, toy_manifest.with_name("mix.csv"))
    domain = sorted(load_manifest(manifest).table["domain"].unique())[0]
    monkeypatch.setenv("TOYS", str(manifest.parent))
    monkeypatch.chdir(tmp_path)
    run = {
        "data": {"manifest": "${TOYS}/mix.csv", "workers": 0},
        "model": {"backbone": TINY_CLIP, "image": {"size_px": 32}},
        "train": {"epochs": 1, "batch_size": 32, "lr": {"head": 1e-2, "classes": 1e-2}},
    }
    both = {
        "members": ["plain", "frozen"],
        "join": "side_by_side",
        "reduce": {"name": "pca", "dim": 8},
    }
    both["reduce"]["images"] = {"manifest": "${TOYS}/mix.csv"}
    rows = {"plain": {"unseen": True}, "frozen": {"train": {"cached_views": 1}}}
    rows["both"] = {"compose": both}
    more = {"protocols": ["puma"], "unseen": {"A": [domain]}}
    path = written(tmp_path, run=run, rows=rows, seeds=1, **more)
    assert study.main([str(path), "--jobs", "2"]) == 0
    out = tmp_path / "runs/studies/s"
    whole, without = ((r["val"], r["test"]["domains"]) for r in sorted(
        (r for r in read_results(tmp_path / "s.json").runs.values() if r["row"] == "plain"),
        key=lambda r: r["fold"] or ""))  # fmt: skip
    assert domain in whole[0]["domains"] and domain not in without[0]["domains"]
    assert domain in whole[1] and domain in without[1]
    assert str(tmp_path) not in (tmp_path / "s.json").read_text()
    (report,) = out.glob("frozen_0_*/report_*.json")
    assert "| puma: unified R@1 |" in table(tmp_path)
    mean = json.loads(report.read_text())["mean"]["r_at_1"]
    assert f"{mean:.3f}" in table(tmp_path)
    assert list((out / ".cache/features").iterdir())  # of the folder that all runs share
    assert not list(out.glob("*/checkpoints")) and not list(out.glob("*.npz"))
