"""Whole runs of curation on toy images: planted copies, labels by CLIP, a selection, a report."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from test_evaluators import training

import curate
from guie.base.errors import UserError
from guie.config.loading import to_yaml
from guie.curation.duplicates.differences import EACH
from guie.data.manifest import load_manifest, save_manifest
from guie.models.backbones.open_clip import import_open_clip
from guie.rows.checks import VERSION
from guie.rows.filling import OnCores
from guie.rows.store import Store


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny CLIP with random weights, as a library's model with a weights file."""
    torch.manual_seed(0)
    model = import_open_clip().create_model("guie-tiny")
    path = tmp_path_factory.mktemp("clip") / "clip.safetensors"
    save_file({k: v.contiguous() for k, v in model.state_dict().items()}, path)
    return f"open_clip:guie-tiny:{path}"


@pytest.fixture
def toys(toy_manifest: Path, tmp_path: Path) -> Path:
    """Its own copy of the toy images: train is one copy of a train and one of a test image richer."""
    root = tmp_path / "input" / "toys"
    shutil.copytree(toy_manifest.parent, root)
    table = load_manifest(root / "manifest.csv").table
    train, test = table[table["split"] == "train"].iloc[0], first_test(table).iloc[0]
    planted = []
    for name, row in (("copy", train), ("leak", test)):
        path = f"images/{name}.png"
        Image.open(root / row["image_path"]).save(root / path)
        planted.append({**train, "image_path": path})
    save_manifest(pd.concat([table, pd.DataFrame(planted)]), root / "manifest.csv")
    return tmp_path


def first_test(table: pd.DataFrame) -> pd.DataFrame:
    """The row of a test image that train has a copy of."""
    return table[table["split"] == "test"].iloc[:1]


def run(folder: Path, domains: list[str], **blocks) -> tuple[pd.DataFrame, dict]:
    curate.main(arguments(folder, domains, **blocks))
    summary = json.loads((folder / "input/mix.summary.json").read_text())
    return load_manifest(folder / "input/mix.csv").table, summary


def arguments(folder: Path, domains: list[str], **blocks) -> list[str]:
    path = str(folder / "input/toys/manifest.csv")
    config = {
        "name": "mix",
        "out": str(folder / "input/mix.csv"),
        "sources": [{"kind": "manifest", "path": path, "domains": domains}],
        "val_fraction": 0.4,
        "features": str(folder / "features"),
        **blocks,
    }
    (folder / "mix.yaml").write_text(to_yaml(config))
    return ["--config", str(folder / "mix.yaml"), "--workers", "1"]


@pytest.mark.slow
def test_cleaning_stops_at_a_leak_and_drops_it_on_request(toys: Path, clip: str) -> None:
    table = load_manifest(toys / "input/toys/manifest.csv").table
    domains = sorted({*table["domain"].iloc[-2:], *first_test(table)["domain"], "cars"})
    with pytest.raises(UserError, match="(?s)1 training images are copies of val or test.*html"):
        run(toys, domains, clean={})
    assert (toys / "input/mix.html").exists()
    listed = pd.read_csv(toys / "input/mix.findings.csv")
    assert "toys/images/leak.png" in set(listed["image_path"]) | set(listed["other_path"])
    assert not (toys / "input/mix.csv").exists()
    clean = {"leaks": "drop_train", "model": clip, "size_px": 32, "cap": "diverse"}
    clean |= {"oversample": {"target": 20}, "suggest_merges": 0.5, "outliers": {}}
    table, summary = run(toys, domains, clean=clean, max_images=4)
    assert not table["image_path"].str.contains("leak.png").any()
    copies = pd.read_csv(toys / "input/mix.findings.csv").query("kind == 'exact duplicate'")
    both = {*copies["image_path"], *copies["other_path"]}
    assert any("copy.png" in path for path in both)
    assert table["image_path"].isin(both).sum() <= 1
    assert table[table["split"] == "train"].groupby("label").size().max() == 4
    assert (table["weight"] > 1).any() and "source" not in table
    rules = {rule for domain in summary["domains"].values() for rule in domain["dropped"]}
    assert {"leaks", "duplicates", "max_images"} <= rules
    page = (toys / "input/mix.html").read_text()
    assert summary["command"] in page and "leak.png" in page and "copy.png" in page
    assert (toys / "input/mix.merges.csv").exists()


@pytest.mark.slow
def test_labels_by_clip_are_marked_and_a_labelled_sample_calibrates(toys: Path, clip: str) -> None:
    sample = toys / "input/toys/manifest.csv"
    table = load_manifest(sample).table
    cars = table[(table["split"] == "train") & (table["domain"] == "cars")]
    names = {f"cars/guessed {word}": [word] for word in ("red", "blue", "green")}
    wanted = {"clip": {"model": clip, "cache": str(toys / "text")}, "domains": ["cars"]}
    wanted |= {"classes": names, "min_confidence": 0.0}
    few = {**wanted, "max_images": 3}
    labelled, summary = run(toys, ["cars", "dishes"], pseudo_labels=few, val_fraction=0.0)
    ours = labelled[labelled["label_source"] == "clip"]
    assert 0 < len(ours) == summary["pseudo_labels"]["kept"] <= len(cars)
    assert set(ours["label"]) <= set(names) and ours.groupby("label").size().max() <= 3
    trained = labelled[(labelled["split"] == "train") & (labelled["domain"] == "cars")]
    assert set(trained.index) == set(ours.index)  # the unsure ones are gone
    with pytest.raises(UserError, match="no train image in nowhere"):
        run(toys, ["cars"], pseudo_labels={**wanted, "domains": ["nowhere"]})
    wanted["classes"] = {label: [label] for label in sorted(cars["label"].unique())}
    wanted["calibration"] = {"manifest": str(sample)}
    _, summary = run(toys, ["cars"], pseudo_labels=wanted, val_fraction=0.0)
    found = summary["pseudo_labels"]
    curve = pd.DataFrame(found["calibration"])
    assert found["calibrated_on"] == len(cars) == found["looked_at"]
    assert curve["coverage"].iloc[-1] == 1 and curve["coverage"].is_monotonic_increasing
    # Labels and sample are the same images here.
    mixed = load_manifest(toys / "input/mix.csv").table.set_index("image_path")["label"]
    truth = cars.set_index("toys/" + cars["image_path"])["label"]
    right = (mixed[truth.index] == truth).mean()
    assert curve["precision"].iloc[-1] == pytest.approx(right, abs=1e-6)
    page = (toys / "input/mix.html").read_text()
    assert 'id="labels"' in page and "Precision over coverage" in page
    wanted["calibration"]["precision"] = 0.999
    with pytest.raises(UserError, match="no confidence reaches 0.999"):
        run(toys, ["cars"], pseudo_labels=wanted, val_fraction=0.0)


def test_a_selection_needs_val_and_resumes_from_its_log(toys: Path, clip: str) -> None:
    proxy = {"model": clip, "size_px": 32, "epochs": 1, "min_steps": 4, "batch_size": 32}
    rule = {"seeds": 2, "confirm_seeds": 0, "max_evaluations": 40}
    domains, selection = ["cars", "packages"], {"proxy": proxy, "rule": rule}
    with pytest.raises(UserError, match="selection: needs a val split"):
        run(toys, domains, selection=selection, val_fraction=0.0)
    table, _ = run(toys, domains, selection=selection)
    steps = json.loads((toys / "input/mix.selection.json").read_text())
    chosen = {name.partition("@")[0] for name in steps["mix"].split("+")}
    assert set(table.loc[table["split"] == "train", "domain"]) == chosen
    assert set(table.loc[table["split"] == "val", "domain"]) == set(domains)
    first = (toys / "input/mix.html").read_bytes()
    again, _ = run(toys, domains, selection=selection)  # from the log, to the same bytes
    assert again.equals(table) and (toys / "input/mix.html").read_bytes() == first


@pytest.mark.slow
@pytest.mark.parametrize("thumbnails", [True, False])
def test_jobs_compute_parts_and_the_mix_is_the_same(toys, clip, monkeypatch, capsys, thumbnails):
    table = load_manifest(toys / "input/toys/manifest.csv").table
    domains = sorted({*first_test(table)["domain"], "cars", "dishes"})
    blocks: dict = {"clean": {"leaks": "drop_train"}}
    if not thumbnails:
        blocks["clean"] |= {"model": clip, "size_px": 32, "cap": "diverse", "outliers": {}}
        names = {f"cars/guessed {word}": [word] for word in ("red", "blue")}
        guessed = {"clip": {"model": clip, "cache": str(toys / "text")}, "domains": ["cars"]}
        blocks["pseudo_labels"] = {**guessed, "classes": names, "min_confidence": 0.0}
        proxy = {"model": clip, "size_px": 32, "epochs": 1, "min_steps": 4, "batch_size": 32}
        rule = {"seeds": 2, "confirm_seeds": 0, "max_evaluations": 6}
        blocks["selection"] = {"proxy": proxy, "rule": rule}
    monkeypatch.setenv("GUIE_CACHE", str(toys / "cache of one job"))
    alone, _ = run(toys, domains, **blocks, max_images=4)
    (toys / "input/mix.selection.jsonl").unlink(missing_ok=True)

    monkeypatch.setenv("GUIE_CACHE", str(toys / "cache of two"))
    blocks |= {"max_images": 4, "features": str(toys / "features of two")}
    words = arguments(toys, domains, **blocks)
    monkeypatch.setattr(OnCores, "most", 16)
    for number in (0, 1, 0):  # the second finds all images checked, and compares pictures
        curate.main([*words, "--shard", f"{number}/2"])
    lines = capsys.readouterr().out.splitlines()[-3:]
    assert ["similar images compared" in line for line in lines] == [False, True, True]
    added, add = [], Store.add

    def adding(store, states, rows):
        # Altered copies, which measure how much copies differ, are made by no part
        if len(store.recipe.get("of", ())) != EACH and store.recipe.get("version") != VERSION:
            added.append(store.recipe)
        add(store, states, rows)

    monkeypatch.setattr(Store, "add", adding)
    joined, _ = run(toys, domains, **blocks)
    assert joined.equals(alone) and not added


@pytest.mark.slow
def test_whole_trainings_judge_a_selection(toys: Path) -> None:
    (toys / "judge.yaml").write_text(to_yaml(training()))
    rule = {"seeds": 2, "confirm_seeds": 0, "max_evaluations": 4}
    selection = {"evaluator": "full", "full": str(toys / "judge.yaml"), "rule": rule}
    table, _ = run(toys, ["cars", "packages"], selection=selection)
    message = json.loads((toys / "input/mix.selection.json").read_text())
    (runs_in,) = (toys / "input/mix.selection").iterdir()
    runs = sorted(path.name for path in runs_in.glob("*-?"))
    assert runs == ["cars-0", "cars-1", "packages-0", "packages-1"]
    assert message["stopped"] == "budget"
    mean = dict.fromkeys(("cars", "packages"), 0.0)
    for name in runs:
        summary = json.loads((runs_in / name / "summary.json").read_text())
        mean[name[:-2]] += summary["best"]["val_r_at_1"] / 2
    best = max(mean, key=mean.get)
    assert message["mix"] == best and message["steps"][0]["score"] == pytest.approx(mean[best])
    assert set(table.loc[table["split"] == "train", "domain"]) == {best}
