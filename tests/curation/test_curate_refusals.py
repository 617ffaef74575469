"""Configs and folders that curate.py refuses: each fault by its name, and nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest
from curate_runs import TOYS, draw_folder, folder, run, write_manifest

import curate
from guie.base.errors import UserError
from guie.curation import sources

MANIFEST = {"kind": "manifest", "path": "input/a.csv"}
FAULTS = [
    ({"min_images": 50}, "no class has 50 images"),
    ({"sources": [folder(split="test")]}, "no source has train images"),
    ({"sources": [folder(), folder()]}, "sources 0 and 1 both contain toys/bus/0.png"),
    (
        {"sources": [folder(), {**folder(path="input/exam"), "split": "test"}], "val_fraction": 0},
        "exam/car/0.png: class 'toys/car' is in train and in test",
    ),
    ({"sources": [MANIFEST]}, "none of 1 images can be used.*no such image"),
    ({"sources": [{**MANIFEST, "domains": ["cars"]}]}, "no domain cars; it has: toys"),
    ({"sources": [MANIFEST], "out": "input/a.csv"}, "out: input/a.csv is source 0"),
    ({"min_images": 4, "max_images": 3}, "max_images 3 is below"),
    ({"sources": [folder(max_images=3)], "min_images": 4}, "sources.0: max_images 3 is below"),
    ({"sources": []}, "sources"),
    ({"sources": [{"path": "input/toys"}]}, "sources.0"),
    ({"sources": [folder(domian="x")]}, r"did you mean domain\?"),
    ({"out": "input/mix.json"}, "out"),
    ({"val_fraction": 1}, "val_fraction"),
]
PLACES = [
    ({"sources": [folder(path="nowhere")]}, "nowhere: no such file or folder"),
    ({"root": "runs"}, "is outside the mix's root runs"),
    ({"sources": [folder(), folder(path="elsewhere")]}, "elsewhere: is outside the mix's"),
    ({"sources": [folder(), {**MANIFEST, "path": "elsewhere/m.csv"}]}, "elsewhere: is outside"),
    ({"out": "input/file/mix.csv", "root": "input"}, "input/file: needed"),
    ({"sources": [folder(), {**MANIFEST, "path": "input/gone.csv"}]}, "gone.csv: no such file"),
    ({"clean": {"model": "runs/gone"}}, "runs/gone: no such run folder"),
    ({"selection": {"evaluator": "full", "full": "gone.yaml"}}, "gone.yaml: no such file"),
    ({"selection": {"proxy": {"model": "runs/gone"}}}, "runs/gone: no such run folder"),
    ({"shards": "input/file/shards"}, "input/file: needed as a folder"),
    *(({"sources": [TOYS | {"images": 55}]}, "sources.0.images: .* 56 .found 55"),),
    *(({"sources": [TOYS | {"part": "exam"}]}, "sources.0.part: .*exam"),),
]


@pytest.mark.parametrize(("change", "fault"), [*FAULTS, *PLACES])
def test_refusals_name_the_fault_and_write_nothing(place, change, fault, monkeypatch):
    Path("input/file").write_text("mine")
    draw_folder(place / "elsewhere", {"bus": 1})
    (place / "elsewhere/m.csv").write_text("")
    draw_folder(place / "input/exam", {"car": 2})
    write_manifest("input/a.csv", ["toys/car/99.png,toys/car,toys,test,both"])
    if (change, fault) in PLACES:  # before a source is read
        monkeypatch.setattr(sources, "read_one", None)
    before = {path.name for path in Path("input").iterdir()}
    words = ["--shards", change["shards"]] if "shards" in change else []
    change = {"sources": [folder()], **{k: v for k, v in change.items() if k != "shards"}}
    with pytest.raises(UserError, match=fault):
        run(change, *words)
    assert {path.name for path in Path("input").iterdir()} == before


@pytest.mark.parametrize("end", ["csv", "sidecar.yaml", "html", "findings.csv"])
def test_a_mix_replaces_no_file_that_is_not_a_mixs(place, end):
    theirs = Path(f"input/mix.{end}")
    theirs.write_text("domains: {}\n")
    with pytest.raises(UserError, match=f"out: {theirs} exists, and no .* elsewhere"):
        run({"sources": [folder()]})
    assert theirs.read_text() == "domains: {}\n"


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
