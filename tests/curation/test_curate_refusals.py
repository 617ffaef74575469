"""Configs and folders that curate.py refuses: each fault by its name, and nothing written."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
from curate_runs import REPOSITORY, draw_folder, folder, run, write_manifest

import curate
from guie.base.errors import UserError
from guie.curation import pipeline


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"sources": [folder(path="nowhere")]}, "nowhere: no such file or folder"),
        ({"sources": [folder()], "root": "runs"}, "is outside the mix's root runs"),
        ({"sources": [folder()], "min_images": 50}, "no class has 50 images"),
        ({"sources": [folder(split="test")]}, "no source has train images"),
        ({"sources": [folder(), folder()]}, "sources 0 and 1 both contain toys/bus/0.png"),
        ({"sources": [folder()], "min_images": 4, "max_images": 3}, "max_images 3 is below"),
        ({"sources": [folder(max_images=3)], "min_images": 4}, "sources.0: max_images 3 is below"),
        ({"sources": []}, "sources"),
        ({"sources": [{"path": "input/toys"}]}, "sources.0"),
        ({"sources": [folder(domian="x")]}, "did you mean domain?"),
        ({"sources": [folder()], "out": "input/mix.json"}, "out"),
        ({"sources": [folder()], "val_fraction": 1}, "val_fraction"),
    ],
)
def test_refusals_name_the_fault_and_write_nothing(place, change, fault):
    before = {path.name for path in Path("input").iterdir()}
    with pytest.raises(UserError) as caught:
        run(change)
    assert fault in str(caught.value)
    after = {path.name for path in Path("input").iterdir()}
    assert after == before


PLACES = [
    ({"sources": [folder(), folder(path="elsewhere")]}, "elsewhere: is outside the mix's"),
    (
        {"sources": [folder(), {"kind": "manifest", "path": "elsewhere/m.csv"}]},
        "elsewhere: is outside the mix's",
    ),
    ({"out": "input/file/mix.csv", "root": "input"}, "input/file: needed"),
    ({"sources": [folder(), folder(path="input/gone")]}, "input/gone: no such file"),
    (
        {"sources": [folder(), {"kind": "manifest", "path": "input/gone.csv"}]},
        "input/gone.csv: no such file",
    ),
    ({"clean": {"model": "runs/gone"}}, "runs/gone: no such run folder"),
    ({"selection": {"evaluator": "full", "full": "gone.yaml"}}, "gone.yaml: no such file"),
    ({"selection": {"proxy": {"model": "runs/gone"}}}, "runs/gone: no such run folder"),
    ({"shards": "input/file"}, "input/file: needed as a folder"),
    ({"shards": "input/file/shards"}, "input/file: needed as a folder"),
]


@pytest.mark.parametrize(("change", "fault"), PLACES)
def test_places_are_refused_before_a_source_is_read(place, change, fault, monkeypatch):
    Path("input/file").write_text("mine")
    draw_folder(place / "elsewhere", {"bus": 1})
    (place / "elsewhere/m.csv").write_text("")
    monkeypatch.setattr(pipeline, "read_one", None)
    words = ["--shards", change["shards"]] if "shards" in change else []
    change = {"sources": [folder()], **{k: v for k, v in change.items() if k != "shards"}}
    with pytest.raises(UserError, match=fault):
        run(change, *words)


def test_refusals_of_manifests(place):
    write_manifest("input/a.csv", ["toys/car/0.png,toys/car,toys,test,both"])
    source = {"kind": "manifest", "path": "input/a.csv"}
    (place / "input/toys/car/0.png").rename(place / "input/other.png")
    with pytest.raises(UserError, match="none of 1 images can be used.*no such image"):
        run({"sources": [source]})
    (place / "input/other.png").rename(place / "input/toys/car/0.png")
    with pytest.raises(UserError, match="no domain cars; it has: toys"):
        run({"sources": [{**source, "domains": ["cars"]}]})
    with pytest.raises(UserError, match="out: input/a.csv is source 0"):
        run({"sources": [source], "out": "input/a.csv"})


def test_a_mix_replaces_no_manifest_that_is_not_a_mix(place):
    for theirs in (f"mix.{end}" for end in ("csv", "sidecar.yaml", "html", "findings.csv")):
        Path("input", theirs).write_text("domains: {}\n")
        with pytest.raises(UserError, match=f"out: input/{theirs} exists, and no .* elsewhere"):
            run({"sources": [folder()]})
        assert Path("input", theirs).read_text() == "domains: {}\n"
        Path("input", theirs).unlink()
    for _ in range(2):  # the second replaces the first
        run({"sources": [folder()]})


def test_classes_trained_on_and_tested_across_sources_are_refused(place):
    draw_folder(place / "input/exam", {"car": 2})
    exam = {"kind": "folder", "path": "input/exam", "domain": "toys", "split": "test"}
    with pytest.raises(UserError, match="exam/car/0.png: class 'toys/car' is in train and in test"):
        run({"sources": [folder(), exam], "val_fraction": 0.0})
    assert not Path("input/mix.csv").exists()


def test_a_user_error_is_one_line(place, monkeypatch, capsys):
    command = str(REPOSITORY / "src/curate.py")
    monkeypatch.setattr(sys, "argv", [command, "--config", "nowhere.yaml"])
    with pytest.raises(SystemExit, match="^2$"):
        runpy.run_path(command, run_name="__main__")
    assert capsys.readouterr().err == "error: nowhere.yaml: no such config file\n"


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ("--manifest m.csv --shards out --workers 0", "--workers: 0: must be 1 to"),
        ("--manifest m.csv", "--manifest: needs --shards DIR"),
        ("--index-shards d", "--index-shards and --domain: need each other"),
        ("--config m.yaml --shard 0/2 --shards out", "--shard: needs --config, without --shards"),
        ("--list --shards out", "--shards: needs --config or --manifest"),
        ("--manifest m.csv --shards out --shard-mb 0", "--shard-mb 0: must be above 0"),
        ("", "--config --list --manifest --index-shards is required"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(words: str, fault: str, capsys):
    with pytest.raises(SystemExit):
        curate.main(words.split())
    assert fault in capsys.readouterr().err
