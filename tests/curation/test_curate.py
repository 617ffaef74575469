"""Runs of curate.py: which rows a config leaves, what sources bring, what is refused."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from scipy.io import savemat

import curate
import validate
from guie.base.errors import UserError
from guie.config.loading import to_yaml
from guie.curation import sources
from guie.data.manifest import load_manifest

TOYS = {"kind": "toy", "path": "input/toy", "images": 56, "seed": 3, "part": "pretrain"}


def draw_folder(root: Path, classes: dict[str, int]) -> None:
    """`root/<class>/<n>.png`: so many small images a class."""
    random = np.random.default_rng(0)
    for name, images in classes.items():
        (root / name).mkdir(parents=True)
        for n in range(images):
            pixels = random.integers(0, 256, (4 + n, 5, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{n}.png")


def run(config: dict, *arguments: str) -> tuple[pd.DataFrame, dict]:
    """Curate; return the mix's table and the summary."""
    config = {"name": "mix", "out": "input/mix.csv", **config}
    Path("mix_config.yaml").write_text(to_yaml(config))
    curate.main(["--config", "mix_config.yaml", "--workers", "1", *arguments])
    out = Path(config["out"])
    summary = json.loads(out.with_suffix(".summary.json").read_text())
    return load_manifest(out, config.get("root")).table, summary


def folder(path: str = "input/toys", domain: str = "toys", **more) -> dict:
    return {"kind": "folder", "path": path, "domain": domain, **more}


def write_manifest(path: str, rows: list[str]) -> None:
    header = "image_path,label,domain,split,role"
    Path(path).write_text("\n".join([header, *rows]) + "\n")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder to work in, with one dataset of four classes, one bad file and one stray one."""
    monkeypatch.chdir(tmp_path)
    draw_folder(tmp_path / "input/toys", {"car": 9, "bus": 4, "cat": 5, "lone": 1})
    (tmp_path / "input/toys/cat/broken.png").write_text("not a picture")
    (tmp_path / "input/toys/cat/notes.txt").write_text("notes")
    return tmp_path


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


MANIFEST = {"kind": "manifest", "path": "input/a.csv"}
FAULTS = [
    ({"min_images": 50}, "no class has 50 images"),
    ({"sources": [folder(split="test")]}, "no source has train images"),
    ({"sources": [folder(), folder()]}, "sources 0 and 1 both contain toys/bus/0.png"),
    (
        {"sources": [folder(), {**folder(path="input/exam"), "split": "test"}], "val_fraction": 0},
        "exam/car/0.png: class 'toys/car' is in train and in test",
    ),
    ({"sources": [folder(), folder(path="input/form")]}, "'toys/Car' and .* differ only in case"),
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
    ({"sources": [TOYS | {"images": 55}]}, "sources.0.images: .* 56 .found 55"),
    ({"sources": [TOYS | {"part": "exam"}]}, "sources.0.part: .*exam"),
]


@pytest.mark.parametrize(("change", "fault"), [*FAULTS, *PLACES])
def test_refusals_name_the_fault_and_write_nothing(place, change, fault, monkeypatch):
    Path("input/file").write_text("mine")
    draw_folder(place / "elsewhere", {"bus": 1})
    (place / "elsewhere/m.csv").write_text("")
    draw_folder(place / "input/exam", {"car": 2})
    draw_folder(place / "input/form", {"Car": 2})
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
