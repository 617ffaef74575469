"""study.py from its config to its table: nothing twice, nothing lost, also after failures and kills."""

import json
import multiprocessing
import os
import re
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import study
from guie.base.errors import UserError
from guie.base.files import held
from guie.config.loading import parsed
from guie.data.manifest import load_manifest
from guie.studies import runner
from guie.studies import study as studying
from guie.studies.results import read_results
from kills import until
from small_studies import CODE, kinds, stand_in, student, table, trained, written
from tiny_runs import TINY_CLIP, mix_with_val

DRAW = studying.draw
OUT = "runs/studies/s"


@pytest.fixture(params=[False])
def folder(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A folder with stand-ins for the four scripts; parameter True: each in a process of its own."""
    stand_in(tmp_path, monkeypatch, processes=request.param)
    (tmp_path / OUT).mkdir(parents=True)
    return tmp_path


processes = pytest.mark.parametrize("folder", [True], indirect=True)


def row_of(name: str) -> str:
    """Return row, seed and fold of a run's name, without the hash."""
    return re.sub("_[0-9a-f]{8}$", "", name)


@processes
def test_a_study_runs_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(studying, "draw", DRAW)
    softmax = {"task.loss": {"name": "softmax"}}
    rows = {"plain": {}, "again": {"train.epochs": 2}, "soft max!": softmax}
    path = written(folder, rows=rows, protocols=["puma"], costs=True)
    assert study.main([str(path), "--jobs", "2"]) == 0
    runs = ["plain_0", "plain_1", "soft_max__0", "soft_max__1"]  # `again` equals `plain`
    assert sorted(map(row_of, trained(folder))) == runs
    out = folder / OUT
    assert not list(out.rglob("embedded_*.npz")) and (out / "table.png").stat().st_size > 5000
    text = capsys.readouterr().out
    assert text.rstrip("\n") == table(folder).rstrip("\n") and "missing" not in text
    heads, _, *lines = [
        [cell.strip() for cell in line.split("|")] for line in text.splitlines()[:5]
    ]
    for line in lines:
        cells = dict(zip(heads, line, strict=True))
        assert cells["seeds"] == "2" and cells["puma: unified R@1"]
        assert (cells["parameters that train"], cells["memory, MB"]) == ("1,234", "9")
    record = next(iter(read_results(folder / "s.json").runs.values()))
    assert (record["best_step"], record["seconds"]) == (5, 7.0) and record["val"]["domains"]["cars"]
    unified, harmonic = (record["protocols"]["puma"][f"{k} R@1"] for k in ("unified", "harmonic"))
    assert harmonic == pytest.approx(unified / 2, abs=1e-5)

    before = (folder / "s.json").read_bytes()
    monkeypatch.setattr(studying, "draw", lambda *args: None)
    (folder / "E.md").write_text("<!-- study: s -->\n<!-- /study -->\n")
    for words in ([], ["--table", "--write", str(folder / "E.md")], ["--list"]):
        assert study.main([str(path), *words]) == 0
    assert len(trained(folder)) == 4 and (folder / "s.json").read_bytes() == before
    assert table(folder).splitlines()[3] in (folder / "E.md").read_text()
    assert capsys.readouterr().out.count("done        ") == 6

    written(folder, rows=rows)  # without protocols: tested again, not trained
    assert study.main([str(path)]) == 0
    assert len(trained(folder)) == 4 and kinds(folder) == (8, 0)


@processes
def test_a_failure_is_kept_and_shown_and_retried_on_request(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = {"bad": {}, "plain": {"train.epochs": 5}}
    path = written(folder, rows=rows, baseline="plain", seeds=1)
    for _ in range(2):  # the second time it is not retried
        assert study.main([str(path)]) == 1
        assert kinds(folder) == (1, 1) and len(trained(folder)) == 2
    note = "Failed, 1 of 2 runs: bad, seed 0 (train.py: error: disk: the disk is full)."
    assert note in table(folder) and "| bad | failed | failed |" in table(folder)
    assert str(folder) not in (folder / "s.json").read_text()
    assert "--retry-failed runs them again" in capsys.readouterr().err
    train = folder / "fakes/train.py"
    train.write_text(train.read_text().replace('"bad"', '"worse"'))
    assert study.main([str(path), "--retry-failed"]) == 0
    assert kinds(folder) == (2, 0) and len(trained(folder)) == 3


def test_only_missing_rows_and_newer_code_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(folder)
    assert study.main([str(path), "--seeds", "0"]) == 0
    assert "Yet to be run, 2 of 4 runs" in table(folder)
    assert list(map(row_of, trained(folder))) == ["plain_0", "softmax_0"]  # in order
    written(folder, rows={"plain": {}, "softmax": {"task.loss": {"name": "softmax", "scale": 9}}})
    assert study.main([str(path)]) == 0
    assert len(trained(folder)) == 5 and kinds(folder) == (5, 0)
    assert "1 results of configs that are not in the study" in table(folder)

    newer = replace(CODE, src="6d" * 20, commit="d1" * 20)
    for module in (studying, runner):
        monkeypatch.setattr(module, "code_of", lambda: newer)
    monkeypatch.setattr("guie.studies.results.RESULT_VERSION", 2)
    assert study.main([str(path), "--any-code"]) == 0
    assert len(trained(folder)) == 5
    assert study.main([str(path), "--only", "plain"]) == 0
    assert len(set(trained(folder))) == 7  # in folders of their own
    assert "outdated | outdated" in table(folder) and "commit c0c0c0c" in table(folder)
    monkeypatch.setattr(runner, "code_of", lambda: CODE)  # the code changes during the study
    with pytest.raises(UserError, match="src/ was changed, or another commit checked out"):
        study.main([str(path)])


def test_a_run_without_record_is_completed_or_fails(folder: Path) -> None:
    path = written(folder, seeds=1, rows={"plain": {}})
    study.main([str(path)])
    (run,) = (folder / OUT).glob("plain_0_*/")
    (folder / "s.json").unlink()  # as after a kill between test and record
    (run / "checkpoints").mkdir()
    (run / "embedded_test_0.npz").write_text("")
    assert study.main([str(path)]) == 0
    assert len(trained(folder)) == 1 and kinds(folder) == (1, 0)
    assert not (run / "checkpoints").exists() and not list(run.glob("*.npz"))

    (folder / "s.json").unlink()
    (run / "metrics.jsonl").write_text("")
    assert study.main([str(path)]) == 1
    assert "its files are not those of a run; delete" in table(folder)


def test_results_of_another_study_are_reused(folder: Path) -> None:
    written(folder, seeds=1)
    study.main([str(folder / "s.yaml")])
    (folder / "t.yaml").write_text((folder / "s.yaml").read_text().replace("softmax:", "other:"))
    assert study.main([str(folder / "t.yaml")]) == 0
    assert not (folder / "runs/studies/t/trained").exists()
    assert {r["row"] for r in read_results(folder / "t.json").runs.values()} == {"plain", "other"}


def test_ensembles_and_students_are_made_of_rows_above(folder: Path) -> None:
    both = {"members": ["plain", "plain, seed +1"], "join": "soup"}
    rows = {
        "plain": {"seeds": 2, "unseen": True},
        "soup": {"compose": both, "unseen": True},
        "taught": student("soup", "plain, seed 1", "runs/elsewhere") | {"unseen": True},
        "further": {"start_from": "soup"},
    }
    path = written(folder, rows=rows, seeds=1, unseen={"A": ["cars"]}, intervals=True)
    words = [str(path), "--only", "soup", "taught", "further"]
    assert study.main([*words, "--jobs", "2"]) == 0
    runs = [f"{run}{fold}" for run in ("plain_0", "plain_1", "taught_0") for fold in ("", "_A")]
    assert sorted(map(row_of, trained(folder))) == sorted([*runs, "further_0"])  # each once
    for fold in ("", "_A"):
        (made,) = folder.glob(f"{OUT}/soup_0{fold}_????????/composed.json")
        soup = json.loads(made.read_text())
        assert [*map(row_of, soup["members"])] == [f"plain_0{fold}", f"plain_1{fold}"]
        assert soup["val"]["leave_out"] == (["cars"] if fold else [])
        (config,) = folder.glob(f"{OUT}/taught_0{fold}_????????.yaml")
        models = [one["model"] for one in parsed(config.read_text()).plain["task"]["teachers"]]
        assert [Path(model).name for model in models[:1]] == [made.parent.name]
        assert row_of(models[1]).endswith(f"plain_1{fold}") and models[2] == "runs/elsewhere"
    (config,) = folder.glob(f"{OUT}/further_0_????????.yaml")
    assert row_of(parsed(config.read_text()).plain["start_from"]) == f"{OUT}/soup_0"
    assert re.search(r"\| soup \|.* 0\.500 / 0\.500 \|.* \d*\.\d+ to \d*\.\d+ \|", table(folder))
    assert study.main(words) == 0
    assert len(trained(folder)) == 7 and kinds(folder) == (5, 0)


def test_rows_are_evaluated_in_another_way_without_training(folder: Path) -> None:
    layer = {"models": "plain", "layers": ["layer3"], "pool": "max", "norm": "after"}
    library = {"models": "timm:resnet18:a1", "size_px": 32, "fit": "pad"}
    rows = {
        "plain": {},
        "softmax": {"task.loss": {"name": "softmax"}},
        "oracle": {"evaluate": {"models": {"cars": "plain", "food": "softmax, seed 1"}}},
        "layer": {"evaluate": layer | {"reduce": "pca"}},
        "random": {"evaluate": {"models": "plain", "reduce": "random", "dim": 8}},
        "raw": {"evaluate": library, "seeds": 1},
    }
    path = written(folder, rows=rows, seeds=2, protocols=["puma"])
    assert study.main([str(path), "--only", "oracle", "layer", "random", "raw"]) == 0
    assert len(trained(folder)) == 3 and kinds(folder) == (7, 0)  # each model once

    def words(run: str, file: str) -> list[str]:
        found = sorted((folder / OUT).glob(f"{run}_????????/{file}.words"))
        return [one.read_text() for one in found]

    reports = words("oracle_0", "*report_*")
    assert len(reports) == 3  # val, test, the protocol
    for report in reports:
        assert re.search(r"--specialists cars=\S+_0\.npz food=\S+_1\.npz --join oracle ", report)
    models = [Path(one.split()[1]).name for one in words("oracle_0", "embedded_test_*")]
    assert [*map(row_of, models)] == ["plain_0", "softmax_1"]
    for run, file, expected in (
        *(
            (
                "layer_1",
                f"embedded_{split}_0",
                f"--split {split} .*--layers layer3 --pool max --norm after",
            )
            for split in ("val", "test", "train")
        ),
        ("layer_1", "report_*", r"--reduce pca --dim 64 --fit \S+embedded_train_0\.npz"),
        *(("random_" + n, "report_*", f"--reduce random --dim 8 --seed {n}") for n in "01"),
        ("raw_0", "embedded_test_0", "^--model timm:resnet18:a1 .*--size-px 32 --fit pad$"),
    ):
        (said,) = words(run, file)
        assert re.search(expected, said)
    records = read_results(folder / "s.json").runs.values()
    (raw,) = [record for record in records if record["row"] == "raw"]
    assert raw["val"]["r_at_1"] == raw["test"]["r_at_1"] and raw["seconds"] is None
    assert raw["test"]["classes"] == {"cars": {"hits": [1, 1], "queries": [1, 2]}}


def test_a_second_study_in_the_folder_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(studying, "LOCK_WAIT_S", 0.1)
    message = r"another study.py uses this folder \(process \d+ on .*\); wait, or"
    with held(folder / OUT / ".lock", "", ""), pytest.raises(UserError, match=message):
        study.main([str(written(folder, seeds=1))])


def in_process(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patched:
        stand_in(folder, patched, processes=True)
        os._exit(study.main([str(folder / "s.yaml"), "--jobs", "2"]))


@processes
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_study_ends_with_the_same_table(
    number: signal.Signals, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = written(folder)
    (folder / OUT / "seconds").write_text("0.3")
    # Nobody trains there, so this process, which has imported all of it, may be forked
    process = multiprocessing.get_context("fork").Process(target=in_process, args=(folder,))
    process.start()
    assert until(lambda: (folder / "s.json").exists() and len(trained(folder)) > 2, 60)
    assert process.pid is not None
    os.kill(process.pid, number)
    process.join(120)
    assert process.exitcode == (-9 if number == signal.SIGKILL else 143)
    done, failed = kinds(folder)
    assert 0 < done < 4 and failed == 0
    (folder / OUT / "seconds").unlink()
    assert study.main([str(path)]) == 0

    undisturbed = tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as patched:
        stand_in(undisturbed, patched)
        study.main([str(written(undisturbed))])
    assert table(folder) == table(undisturbed)
    assert len(set(trained(folder))) == 4


@processes
def test_ctrl_c_ends_the_study_in_order(folder: Path) -> None:
    path = written(folder, seeds=3)
    (folder / OUT / "seconds").write_text("30")

    def interrupt() -> None:
        until(lambda: trained(folder))
        signal.raise_signal(signal.SIGINT)

    threading.Thread(target=interrupt).start()
    assert study.main([str(path)]) == 130
    assert not (folder / "s.json").exists()
    assert len(trained(folder)) == 1


@pytest.mark.slow
def test_a_study_with_the_real_scripts(
    toy_manifest: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    """A row with a fold, and an ensemble, on toy images."""
    manifest = mix_with_val(toy_manifest, toy_manifest.with_name("mix.csv"))
    domain = sorted(load_manifest(manifest).table["domain"].unique())[0]
    monkeypatch.setenv("TOYS", str(manifest.parent))
    monkeypatch.chdir(tmp_path)
    run = {
        "data": {"manifest": "${TOYS}/mix.csv", "workers": 0},
        "model": {"backbone": TINY_CLIP, "image": {"size_px": 32}},
        "train": {"epochs": 1, "batch_size": 32, "lr": {"head": 1e-2, "classes": 1e-2}},
    }
    pca = {"name": "pca", "dim": 8, "images": {"manifest": "${TOYS}/mix.csv"}}
    plain = {"unseen": True, "train.cached_views": 1}
    rows = {"plain": plain, "small": {"compose": {"members": ["plain"], "reduce": pca}}}
    more = {"rows": rows, "unseen": {"A": [domain]}, "protocols": ["puma"]}
    path = written(tmp_path, run=run, seeds=1, **more)
    assert study.main([str(path), "--jobs", "2"]) == 0
    results = [r for r in read_results(tmp_path / "s.json").runs.values() if r["row"] == "plain"]
    whole, fold = sorted(results, key=lambda r: r["fold"] or "")
    assert domain in whole["val"]["domains"] and domain not in fold["val"]["domains"]
    assert domain in whole["test"]["domains"] and domain in fold["test"]["domains"]
    assert str(tmp_path) not in (tmp_path / "s.json").read_text()
    out = tmp_path / OUT
    (report,) = out.glob("small_0_*/report_*.json")
    mean = json.loads(report.read_text())["mean"]["r_at_1"]
    assert f"{mean:.3f}" in table(tmp_path) and "| puma: unified R@1 |" in table(tmp_path)
    assert list((out / ".cache/features").iterdir())  # shared by all runs
    assert not list(out.glob("*/checkpoints")) and not list(out.rglob("embedded_*.npz"))
