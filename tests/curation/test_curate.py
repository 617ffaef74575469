"""curate.py from the outside: configs in, a legal mix and an honest summary out."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from PIL import Image

import curate
import guie.curation.steps.reading
from guie.base.errors import UserError
from guie.config import MixConfig, load_config
from guie.config.base import real_root
from guie.data.looks import precheck
from guie.data.looks.decoded import decoded_folder
from guie.data.manifest import load_manifest

REPOSITORY = Path(__file__).parents[2]


def draw_folder(root: Path, classes: dict[str, int]) -> None:
    """`root/<class>/<n>.png`: so many small images a class."""
    random = np.random.default_rng(0)
    for name, images in classes.items():
        (root / name).mkdir(parents=True)
        for n in range(images):
            pixels = random.integers(0, 256, (4 + n, 5, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{n}.png")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder to work in, with one dataset of four classes, one bad file and one stray one."""
    monkeypatch.chdir(tmp_path)
    draw_folder(tmp_path / "input/toys", {"car": 9, "bus": 4, "cat": 5, "lone": 1})
    (tmp_path / "input/toys/cat/broken.png").write_text("not a picture")
    (tmp_path / "input/toys/cat/notes.txt").write_text("notes")
    return tmp_path


def run(config: dict, *arguments: str) -> tuple[pd.DataFrame, dict]:
    """Curate; return the mix's table and the summary."""
    config = {"name": "mix", "out": "input/mix.csv", **config}
    Path("mix_config.yaml").write_text(yaml.safe_dump(config))
    curate.main(["--config", "mix_config.yaml", "--workers", "1", *arguments])
    out = Path(config["out"])
    return load_manifest(out, config.get("root")).table, json.loads(
        out.with_suffix(".summary.json").read_text()
    )


def folder(**more) -> dict:
    return {"kind": "folder", "path": "input/toys", "domain": "toys", **more}


def write_manifest(path: str, rows: list[str]) -> None:
    header = "image_path,label,domain,split,role"
    Path(path).write_text("\n".join([header, *rows]) + "\n")


def test_mix_and_summary_of_a_folder(place, capsys):
    rules = {"min_images": 3, "max_images": 6, "val_fraction": 0.3}
    table, summary = run({"sources": [folder()], **rules})
    assert len(table) == 4 + 5 + 6
    toys = summary["domains"]["toys"]
    assert toys["dropped"] == {
        "unusable": {"classes": 0, "images": 1},
        "min_images": {"classes": 1, "images": 1},
        "max_images": {"classes": 0, "images": 3},
    }
    assert toys["train"]["classes"] == 2 and toys["val"]["classes"] == 1
    assert toys["train"]["images"] + toys["val"]["images"] == len(table) == summary["rows"]
    assert summary["dropped_files"][0]["file"] == "input/toys/cat/broken.png"
    assert summary["sources"][0]["skipped"] == {"no image by its extension (.txt)": 1}
    assert summary["config"]["max_images"] == 6
    for path, width, height in table[["image_path", "width", "height"]].to_numpy():
        assert Image.open(place / "input" / path).size == (int(width), int(height))
    shown = capsys.readouterr().out
    assert "broken.png" in shown and "max_images 0 / 3" in shown


def test_same_bytes_for_any_number_of_workers(place):
    config = {"sources": [folder()], "max_images": 3, "val_fraction": 0.5}
    contents = []
    for workers in ("1", "2", "1"):
        run(config, "--workers", workers)
        contents.append([Path(f"input/mix{end}").read_bytes() for end in (".csv", ".summary.json")])
    assert contents[0] == contents[1] == contents[2]


def test_seed_changes_the_choice(place):
    chosen = [
        tuple(run({"sources": [folder()], "max_images": 3, "seed": seed})[0]["image_path"])
        for seed in range(4)
    ]
    assert len(set(chosen)) > 1


def test_overrides_are_applied_and_recorded(place):
    table, summary = run(
        {"sources": [folder()]}, "--set", "min_images=5", "--set", "val_fraction=0"
    )
    assert table["label"].value_counts().to_dict() == {"toys/car": 9, "toys/cat": 5}
    assert summary["command"] == (
        "python src/curate.py --config mix_config.yaml --set min_images=5 --set val_fraction=0"
    )


def test_limits_of_a_source_come_before_those_of_the_mix(place):
    draw_folder(place / "input/more", {"pen": 2, "cup": 9})
    more = {"kind": "folder", "path": "input/more", "domain": "more"}
    config = {"min_images": 5, "max_images": 6, "val_fraction": 0.0}
    table, _ = run({**config, "sources": [folder(), {**more, "min_images": 2, "max_images": 8}]})
    assert table["label"].value_counts().to_dict() == {
        "toys/car": 6,
        "toys/cat": 5,
        "more/cup": 8,
        "more/pen": 2,
    }


def test_held_out_folder_is_neither_filtered_nor_split(place):
    draw_folder(place / "input/exam", {"pen": 1, "cup": 9})
    exam = {"kind": "folder", "path": "input/exam", "domain": "toys", "split": "test"}
    table, summary = run({"sources": [folder(), exam], "min_images": 4, "max_images": 5})
    test = table[table["split"] == "test"]
    assert test["label"].value_counts().to_dict() == {"toys/pen": 1, "toys/cup": 9}
    assert summary["domains"]["toys"]["test"]["queries_without_positive"] == 1
    assert "toys: 1 of 10 test queries have no positive; metrics leave them out" in summary["notes"]


def test_unusable_held_out_images_are_noted(place):
    exam = {"kind": "folder", "path": "input/exam", "domain": "exam", "split": "test"}
    draw_folder(place / "input/exam", {"cup": 3})
    (place / "input/exam/cup/1.png").write_bytes(b"")
    _, summary = run({"sources": [folder(), exam]})
    assert summary["notes"][0].startswith("1 unusable files were in val or test")
    assert [entry["split"] for entry in summary["dropped_files"]] == ["train", "test"]


def test_without_verify_no_image_is_opened(place):
    table, summary = run({"sources": [folder()], "verify": False})
    assert "toys/cat/broken.png" in set(table["image_path"])
    assert summary["dropped_files"] == [] and "width" not in table


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
    Path("input/source.yaml").write_text("domains: {met: {index_is_train: true}}")
    source = {"kind": "manifest", "path": "input/source.csv", "domains": ["met", "toys"]}
    table, summary = run({"sources": [source], "val_fraction": 0.9})
    assert set(table["domain"]) == {"met", "toys"}
    assert not (table["split"] == "val").any(), "met is left alone, toys has one class"
    assert load_manifest("input/mix.csv").sidecar.domains["met"].index_is_train
    assert "met: no val split" in summary["notes"]


def test_an_archive_is_unpacked_once_and_read_as_its_folder(place):
    rules = {"min_images": 3, "val_fraction": 0.3}
    plain, _ = run({"sources": [folder()], **rules})
    archive = shutil.make_archive("input/toys", "gztar", "input/toys")
    shutil.rmtree("input/toys")
    packed = folder(path="input/toys.tar.gz")
    table, summary = run({"sources": [packed], **rules})
    pd.testing.assert_frame_equal(table, plain)
    assert summary["dropped_files"][0]["file"] == "input/toys/cat/broken.png"
    Path(archive).unlink()  # unpacked, it is not needed any more
    pd.testing.assert_frame_equal(run({"sources": [packed], **rules})[0], plain)


def test_an_archive_that_leaves_its_folder_is_refused(place):
    with zipfile.ZipFile("input/more.zip", "w") as archive:
        archive.writestr("pens/1.png", b"")
        archive.writestr("../../escaped.png", b"")
    with pytest.raises(UserError, match="more.zip: not unpacked: '../../escaped.png': leaves the"):
        run({"sources": [folder(path="input/more.zip")]})
    assert not Path("input/more").exists() and not Path("escaped.png").exists()


def test_toy_source_is_drawn_as_asked_and_read_as_a_manifest(place, monkeypatch):
    asked = {}

    def draw(path, **how):
        asked.update(how, path=path)
        draw_folder(Path(path) / "images", {"a": 2})
        rows = [f"images/a/{n}.png,toy/a,toy,train,train" for n in range(2)]
        write_manifest(f"{path}/manifest.csv", rows)
        return Path(path) / "manifest.csv"

    # Drawing has tests of its own.
    monkeypatch.setattr(guie.curation.steps.reading.toydomains, "draw", draw)
    toy = {"kind": "toy", "path": "input/toy", "images": 7, "seed": 3, "part": "pretrain"}
    table, _ = run({"sources": [toy]})
    assert asked == {"path": "input/toy", "images": 7, "seed": 3, "part": "pretrain", "workers": 1}
    assert table["image_path"].tolist() == ["toy/images/a/0.png", "toy/images/a/1.png"]


def test_a_toy_source_that_cannot_be_drawn_is_the_users_to_mend(place):
    with pytest.raises(UserError, match="images: 7 is too few; ask for at least 80"):
        run({"sources": [{"kind": "toy", "path": "input/toy", "images": 7}]})


def test_paths_start_from_the_root(place, capsys):
    table, _ = run({"sources": [folder()], "root": ".", "out": "mixes/mix.parquet"})
    assert table["image_path"].str.startswith("input/toys/").all()
    assert "give it to other commands as --root" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"sources": [folder(path="nowhere")]}, "nowhere: no such folder"),
        ({"sources": [folder()], "root": "runs"}, "lies outside of the mix's root runs"),
        ({"sources": [folder()], "min_images": 50}, "no class has 50 images"),
        ({"sources": [folder(split="test")]}, "no source brings train images"),
        ({"sources": [folder(), folder()]}, "sources 0 and 1 both bring toys/bus/0.png"),
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
    assert after - {".cache"} == before  # which images are good is worth keeping


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


def test_classes_trained_on_and_tested_across_sources_are_refused(place):
    draw_folder(place / "input/exam", {"car": 2})
    exam = {"kind": "folder", "path": "input/exam", "domain": "toys", "split": "test"}
    with pytest.raises(UserError, match="exam/car/0.png: class 'toys/car' is in train and in test"):
        run({"sources": [folder(), exam], "val_fraction": 0.0})
    assert not Path("input/mix.csv").exists()


def test_command_line_tells_a_user_error_in_one_line(place):
    command = [sys.executable, str(REPOSITORY / "src/curate.py"), "--config", "nowhere.yaml"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "error: nowhere.yaml: no such config file\n"


@pytest.mark.parametrize(
    "path", sorted(REPOSITORY.glob("configs/mix_*.yaml")), ids=lambda p: p.name
)
def test_configs_of_the_repository_are_valid(path, monkeypatch, tmp_path):
    monkeypatch.setenv("GUIE_REAL", str(tmp_path))
    config = load_config(path, MixConfig)
    assert config.name == path.stem and Path(config.out).stem == path.stem


@pytest.mark.real
@pytest.mark.skipif(real_root() is None, reason="no real images: set GUIE_REAL")
def test_real_mix_has_the_published_counts(tmp_path):
    out = f"out={tmp_path / 'mix.csv'}"
    config = str(REPOSITORY / "configs/mix_real.yaml")
    curate.main(["--config", config, "--set", out, "--set", "verify=false"])
    table = load_manifest(tmp_path / "mix.csv").table
    assert len(table) == 24_217 and table["label"].nunique() == 2_231
    assert table["split"].value_counts().to_dict() == {"train": 13_357, "test": 8_467, "val": 2_393}


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


def test_config_or_list_must_be_given(capsys):
    with pytest.raises(SystemExit):
        curate.main([])
    assert "--config --list is required" in capsys.readouterr().err


def test_training_does_not_decode_again_what_curation_has(place, monkeypatch):
    run({"sources": [folder()]})
    manifest = load_manifest("input/mix.csv")
    trained = manifest.table[manifest.table["split"] == "train"]
    asked = []
    monkeypatch.setattr(precheck, "decode_all", lambda paths, *_: asked.extend(paths) or [])
    cache = decoded_folder(manifest.path, fallback="elsewhere")
    assert precheck.find_unreadable(trained, manifest.root, cache, 1).empty and not asked
    Path(manifest.file(trained["image_path"].iloc[0])).touch()
    with pytest.raises(ValueError):  # one that is asked for has no verdict here
        precheck.find_unreadable(trained, manifest.root, cache, 1)
    assert asked == trained["image_path"].tolist()[:1]
