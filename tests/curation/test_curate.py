"""Runs of curate.py: which rows a config leaves, and what the summary lists of them."""

from __future__ import annotations

from pathlib import Path

from curate_runs import draw_folder, folder, run
from PIL import Image

from guie.data.manifest import load_manifest
from guie.rows.checks import Checks, find_unreadable


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


def test_workers_change_no_byte_and_the_seed_the_choice(place):
    config = {"sources": [folder()], "max_images": 3, "val_fraction": 0.5}
    contents, chosen = [], []
    for seed, workers in ((0, "1"), (0, "2"), (1, "1")):
        words = ("--workers", workers, "--set", "min_images=3")
        table, summary = run({**config, "seed": seed}, *words)
        assert set(table["label"]) == {"toys/car", "toys/cat", "toys/bus"}
        chosen.append(table["image_path"].tolist())
        contents.append([Path(f"input/mix{end}").read_bytes() for end in (".csv", ".summary.json")])
    assert contents[0] == contents[1]
    assert chosen[0] == chosen[1] != chosen[2]
    words = "python src/curate.py --config mix_config.yaml --set min_images=3"
    assert summary["command"] == words


def test_limits_of_a_source_come_before_those_of_the_mix_and_a_held_out_folder_has_none(place):
    """What is unusable there is dropped all the same, and noted."""
    draw_folder(place / "input/more", {"pen": 2, "cup": 9})
    draw_folder(place / "input/exam", {"pen": 1, "cup": 10})
    (place / "input/exam/cup/1.png").write_bytes(b"")
    more = folder("input/more", "more", min_images=2, max_images=8)
    exam = folder("input/exam", split="test")
    config = {"min_images": 5, "max_images": 6, "val_fraction": 0.0}
    table, summary = run({**config, "sources": [folder(), more, exam]})
    sizes = table.groupby("split")["label"].value_counts()
    train = {"toys/car": 6, "toys/cat": 5, "more/cup": 8, "more/pen": 2}
    assert sizes["train"].to_dict() == train
    assert sizes["test"].to_dict() == {"toys/pen": 1, "toys/cup": 9}
    assert summary["domains"]["toys"]["test"]["queries_without_positive"] == 1
    assert "toys: 1 of 10 test queries have no positive; metrics exclude them" in summary["notes"]
    assert summary["notes"][0].startswith("1 unusable files were in val or test")
    assert [entry["split"] for entry in summary["dropped_files"]] == ["train", "test"]


def test_test_fraction_cuts_classes_before_every_other_rule(place):
    """Mixes with other rules share one test, of whole classes; domains that bring a test keep theirs."""
    draw_folder(place / "input/more", {f"c{n}": 2 + n for n in range(10)})
    draw_folder(place / "input/exam", {"pen": 2, "cup": 9})
    more, exam = folder("input/more", "more"), folder("input/exam", split="test")
    sources = [folder(), exam, more]
    plain, summary = run({"sources": sources, "test_fraction": 0.3, "val_fraction": 0.2})
    test = plain[(plain["split"] == "test") & (plain["domain"] == "more")]
    assert test["label"].nunique() == 3 and set(test["role"]) == {"both"}
    assert all(size == 2 + int(label[-1]) for label, size in test["label"].value_counts().items())
    assert (plain.groupby("label")["split"].nunique() == 1).all(), "a class is in two splits"
    tested = plain.loc[plain["split"] == "test", "label"]
    assert {*tested} - {*test["label"]} == {"toys/pen", "toys/cup"}
    assert summary["domains"]["more"]["val"]["classes"] == 1  # a fifth of the seven that remain
    rules = {"min_images": 6, "max_images": 7, "clean": {"cap": "first", "near": None}}
    other, _ = run({"sources": [more], "test_fraction": 0.3, "val_fraction": 0.0, **rules})
    assert set(other.loc[other["split"] == "test", "image_path"]) == set(test["image_path"])
    merge = {"near": None, "merge": {f"more/c{n}": "more/c0" for n in (2, 4)}}
    config = {"sources": [more], "test_fraction": 0.5, "seed": 1, "clean": merge}
    merged, _ = run(config)
    assert "more/c2" not in set(merged["label"])
    assert (merged.groupby("label")["split"].nunique() == 1).all(), "merged classes move together"
    assert set(merged.loc[merged["split"] == "test", "label"]) != set(test["label"])


def test_without_verify_no_image_is_opened_and_paths_start_from_the_root(place, capsys):
    table, summary = run(
        {"sources": [folder()], "verify": False, "root": ".", "out": "mixes/mix.parquet"}
    )
    assert "input/toys/cat/broken.png" in set(table["image_path"])
    assert table["image_path"].str.startswith("input/toys/").all()
    assert summary["dropped_files"] == [] and "width" not in table
    assert "pass it to other commands as --root" in capsys.readouterr().out


def test_training_does_not_decode_again(place, monkeypatch):
    run({"sources": [folder()], "clean": {}})
    manifest = load_manifest("input/mix.csv")
    trained = manifest.table[manifest.table["split"] == "train"]
    decoded, fill = [], Checks.fill

    def counted(checks, *settings):
        decoded.extend(checks.paths[checks.missing()])
        return fill(checks, *settings)

    monkeypatch.setattr(Checks, "fill", counted)
    assert find_unreadable(trained, manifest.root, 1).empty and not decoded
    manifest.file(trained["image_path"].iloc[0]).touch()
    assert find_unreadable(trained, manifest.root, 1).empty
    assert decoded == trained["image_path"].tolist()[:1]
