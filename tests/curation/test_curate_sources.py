"""Sources of a mix, as curate.py reads them: manifests, archives, toys, public datasets."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from curate_runs import TOYS, draw_folder, folder, run, write_manifest
from PIL import Image
from scipy.io import savemat

import curate
import validate
from guie.base.errors import UserError
from guie.data.manifest import load_manifest


def test_manifest_source_keeps_its_domains_splits_and_declarations(place):
    images = [f"toys/car/{n}.png" for n in range(6)]
    write_manifest(
        "input/source.csv",
        [
            f"{images[0]},met/a,met,train,train",
            f"{images[1]},met/a,met,train,train",
            f"{images[0]},met/a,met,test,index",
            f"{images[2]},met/a,met,test,query",
            "toys/bus/0.png,met/b,met,train,train",
            "toys/bus/1.png,met/b,met,train,train",
            f"{images[3]},pets/a,pets,train,train",
            f"{images[4]},toys/b,toys,train,train",
        ],
    )
    Path("input/source.sidecar.yaml").write_text("domains: {met: {index_is_train: true}}")
    source = {"kind": "manifest", "path": "input/source.csv", "domains": ["met", "toys"]}
    table, summary = run({"sources": [source], "val_fraction": 0.9})
    assert set(table["domain"]) == {"met", "toys"}
    assert not (table["split"] == "val").any(), "met is left alone, toys has one class"
    assert load_manifest("input/mix.csv").sidecar.domains["met"].index_is_train
    assert "met: no val split" in summary["notes"]


def test_an_archive_is_unpacked_once_and_read_as_its_folder(place):
    rules = {"min_images": 3, "val_fraction": 0.3}
    archive = shutil.make_archive("input/toys", "gztar", "input/toys")
    shutil.rmtree("input/toys")
    packed = folder(path="input/toys.tar.gz")
    table, summary = run({"sources": [packed], **rules})
    assert table["label"].value_counts().to_dict() == {"toys/car": 9, "toys/cat": 5, "toys/bus": 4}
    assert table["image_path"].str.startswith("toys/").all()
    assert summary["dropped_files"][0]["file"] == "input/toys/cat/broken.png"
    Path(archive).unlink()  # unpacked, it is not needed any more
    pd.testing.assert_frame_equal(run({"sources": [packed], **rules})[0], table)


def test_a_toy_source_is_drawn_as_configured_and_read_as_a_manifest(place, capfd):
    Path("input/toy").mkdir()
    Path("input/toy/manifest.csv").write_text("mine")
    with pytest.raises(SystemExit, match="2"):
        run({"sources": [TOYS]})
    line = f"error: {place}/input/toy: holds a manifest.csv or images that are not ours"
    assert capfd.readouterr().err.splitlines() == [line]
    Path("input/toy/manifest.csv").unlink()
    table, _ = run({"sources": [TOYS]})
    drawn = pd.read_csv("input/toy/manifest.csv")
    assert set(table["image_path"]) <= set("toy/" + drawn["image_path"]) and len(drawn) >= 56
    recipe = json.loads(Path("input/toy/toy.json").read_text())
    assert {key: recipe[key] for key in ("images", "seed", "part")} == dict(list(TOYS.items())[2:])
    assert "toy: 100%" in capfd.readouterr().err


def test_a_drawing_that_is_killed_is_reported(place, monkeypatch):
    kill = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
    start = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda command, **options: start(kill, **options))
    with pytest.raises(UserError, match="input/toy: drawing was ended by SIGKILL"):
        run({"sources": [TOYS]})


def draw_sop(folder: Path) -> None:
    """Stanford Online Products with two train classes and one test class, of three images each."""
    for split, first, classes in (("train", 1, 2), ("test", 3, 1)):
        lines = ["image_id class_id super_class_id path"]
        for number in range(first, first + classes):
            draw_folder(folder, {f"chair_final/{number}": 3})
            lines += [f"0 {number} 1 chair_final/{number}/{n}.png" for n in range(3)]
        (folder / f"Ebay_{split}.txt").write_text("\n".join(lines) + "\n")


def test_a_public_dataset_is_found_by_its_name_and_read(place, capsys):
    draw_sop(place / "input/Stanford_Online_Products")
    curate.main(["--list"])
    listed = capsys.readouterr().out
    assert "1 of " in listed and "input/Stanford_Online_Products" in listed
    with pytest.raises(UserError, match="59,551 train images expected, 6 found"):
        run({"sources": [{"kind": "sop"}], "val_fraction": 0.0})
    table, summary = run({"sources": [{"kind": "sop", "partial": True}], "val_fraction": 0.5})
    assert table["split"].value_counts().to_dict() == {"train": 3, "val": 3, "test": 3}
    assert summary["domains"]["products"]["test"]["images"] == 3
    assert "59,551 train images expected" in capsys.readouterr().err


def draw_revisited(root: Path, name: str) -> Path:
    """Two queries, four index images, of any size; grades as of the miniature."""
    (root / name / "jpg").mkdir(parents=True)
    index = [f"{name}_{n}" for n in range(4)]
    for n, image in enumerate(["q0", "q1", *index]):
        Image.new("RGB", (9, 9), (40 * n, 0, len(name))).save(root / name / f"jpg/{image}.jpg")
    fields = [("bbx", "O"), ("easy", "O"), ("hard", "O"), ("junk", "O")]
    boxes = [[0.4, 1.6, 8.0, 9.0]] * 2
    gnd = np.array([[(boxes[0], [1], [2, 3], []), (boxes[1], [], [2], [1, 3])]], dtype=fields)
    content = {"imlist": np.array([index], "O"), "qimlist": np.array([["q0", "q1"]], "O")}
    savemat(root / name / f"gnd_{name}.mat", {**content, "gnd": gnd})
    return root / name


def test_grades_and_boxes_of_several_sources_are_written_next_to_the_mix(place, capsys):
    """One manifest serves easy, medium and hard; the grades of a dropped image go too."""
    folders = {name: draw_revisited(place / "input", name) for name in ("roxford5k", "rparis6k")}
    (folders["rparis6k"] / "jpg/rparis6k_0.jpg").write_bytes(b"no picture")
    sources = [{"kind": n, "path": str(p), "partial": True} for n, p in folders.items()]
    with pytest.raises(UserError, match="no source has train images.*benchmark: true"):
        run({"sources": sources})
    table, summary = run({"sources": sources, "benchmark": True})
    grades = pd.read_csv("input/mix.relevance.csv")
    boxes = pd.read_csv("input/mix.boxes.csv")
    assert set(grades["query"]) | set(grades["image"]) <= set(table["image_path"])
    assert grades["grade"].value_counts().to_dict() == {"hard": 6, "junk": 3, "easy": 1}
    assert boxes["image_path"].tolist() == [f"{n}/jpg/q{q}.jpg" for n in folders for q in (0, 1)]
    assert any("relevance: 2 of 12 rows belong to dropped images" in n for n in summary["notes"])
    # The graded images of a set are equal, the ungraded one is far: 1 at every level.
    paths = table["image_path"].to_numpy(str)
    groups = [2 * path.startswith("rparis") + path.endswith("_3.jpg") for path in paths]
    np.savez("E.npz", image_path=paths, embedding=np.eye(4, dtype=np.float32)[groups])
    words = ["--manifest", "input/mix.csv", "--protocol", "revisited", "--out", "report.json"]
    validate.main(["--embeddings", "E.npz", *words, "--draws", "0"])
    headline = json.loads(Path("report.json").read_text())["protocols"]["revisited"]["headline"]
    assert headline["mAP, easy"] == headline["mAP, medium"] == headline["mAP, hard"] == 1.0
    # A manifest as a source brings its companions.
    again = {"kind": "manifest", "path": "input/mix.csv"}
    run({"sources": [again], "out": "input/again.csv", "benchmark": True})
    assert pd.read_csv("input/again.relevance.csv").equals(grades)


def test_the_decoder_of_the_sources_is_the_mixs_and_must_be_one(place):
    for name in ("a", "b"):
        images = range(3) if name == "a" else range(3, 6)
        write_manifest(
            f"input/{name}.csv", [f"toys/car/{n}.png,toys/{name},toys,train,train" for n in images]
        )
    grey = np.linspace(0, 65_535, 400).reshape(20, 20).astype(np.uint16)
    Image.fromarray(grey).save("input/toys/car/1.png")
    sources = [{"kind": "manifest", "path": f"input/{name}.csv"} for name in ("a", "b")]
    _, summary = run({"sources": sources})
    assert not Path("input/mix.sidecar.yaml").exists()
    (note,) = [note for note in summary["notes"] if "differently" in note]
    assert "1 of 6 images differently (16 bits 1), such as toys/car/1.png" in note
    Path("input/a.sidecar.yaml").write_text("decode: host\n")
    with pytest.raises(UserError, match=r"sources 1 \(input/b.csv\) and 0 \(input/a.csv\): decode"):
        run({"sources": sources})
    Path("input/b.sidecar.yaml").write_text("decode: host\n")
    run({"sources": sources})
    assert load_manifest("input/mix.csv").sidecar.decode == "host"
