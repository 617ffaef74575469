"""A drawn set on disk: what is planned, what is written, and that it is worth training on."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from toydomains import DrawingError, dataset, draw
from toydomains.domains import label, subject
from toydomains.kit.subject import a


def table_of(plans):
    rows = [
        {"domain": p.domain, "index": p.index, "split": p.split, "role": role}
        for p in plans
        for role in p.roles
    ]
    return pd.DataFrame(rows)


def test_the_default_benchmark_is_as_large_and_as_uneven_as_promised():
    table = table_of(dataset.plan(6000, 0, "benchmark"))
    assert len(table) == 6000 and set(table["split"]) == {"train", "test"}
    sizes = table["domain"].value_counts()
    assert len(sizes) == 7 and 6 <= sizes.max() / sizes.min() <= 7
    assert table.groupby(["domain", "index"]).size().between(6, 14).all()
    test = table[table["split"] == "test"]
    assert (test.groupby("domain")["index"].nunique() >= 6).all()
    queries = test[test["role"].isin(["query", "both"])]
    assert (queries["domain"].value_counts() >= 60).all() and queries["domain"].nunique() == 7
    classes = [part.groupby("domain")["index"].nunique() for part in (test, table)]
    assert (1 - classes[0] / classes[1]).between(0.5, 0.62).all()


@pytest.mark.parametrize("images", [56, 999])
def test_a_small_benchmark_still_walks_the_whole_road(images):
    table = table_of(dataset.plan(images, 0, "benchmark"))
    classes = table.groupby(["domain", "split"])["index"].nunique().unstack()
    assert (classes[["train", "test"]] >= 2).all().all()
    assert (table.groupby(["domain", "index"]).size() >= 2).all()
    assert images - 5 <= len(table) <= images + 40
    prints = table[(table["domain"] == "illustrations") & (table["split"] == "test")]
    assert all(set(roles) == {"query", "index"} for _, roles in prints.groupby("index")["role"])


def test_pretraining_holds_out_some_classes_for_validation():
    table = table_of(dataset.plan(6000, 0, "pretrain"))
    held_out = table.drop_duplicates(["domain", "index"]).groupby("domain")["split"]
    assert set(table["split"]) == {"train", "val"}
    assert held_out.apply(lambda split: (split == "val").mean()).between(0.05, 0.11).all()


def test_the_manifest_and_its_pictures(toy_manifest):
    table = pd.read_csv(toy_manifest)
    assert list(table) == ["image_path", "label", "domain", "split", "role", "caption"]
    assert table["image_path"].is_unique and table["caption"].str.len().min() > 20
    assert (table["label"].str.split("/").str[0] == table["domain"]).all()
    by_split = table.groupby("split")["label"].agg(set)
    assert not by_split["train"] & by_split["test"]
    for path in table["image_path"]:
        with Image.open(toy_manifest.parent / path) as picture:
            assert picture.mode == "RGB" and 96 <= max(picture.size) <= 128
            assert np.asarray(picture).std() > 8


def test_captions_name_what_the_picture_shows(toy_manifest):
    table = pd.read_csv(toy_manifest).set_index("image_path")
    prints = table[table["domain"] == "illustrations"]
    assert prints.loc[prints["role"] == "query", "caption"].str.startswith("an ink sketch of").all()
    assert prints.loc[prints["role"] == "index", "caption"].str.contains("flat colour print").all()
    for p in dataset.plan(200, 1, "benchmark"):
        what = subject(1, "benchmark", p.domain, p.index)
        captions = table.loc[table["label"] == label(what, p.part, p.domain, p.index), "caption"]
        assert captions.str.contains(what.phrase, regex=False).all()
        assert captions.str.contains(r"\b(?:on|by|under|at|in) ", regex=True).all()
    assert a("orange duck") == "an orange duck"


@pytest.mark.slow
def test_the_number_of_workers_does_not_matter(toy_manifest, tmp_path, capsys):
    shared = draw(tmp_path / "shared", images=200, seed=1, workers=2)
    assert capsys.readouterr().out == ""
    assert shared.read_bytes() == toy_manifest.read_bytes()
    for path in pd.read_csv(toy_manifest)["image_path"]:
        with Image.open(shared.parent / path) as one, Image.open(toy_manifest.parent / path) as two:
            assert np.array_equal(one, two), path


def test_a_colour_thumbnail_is_not_enough(toy_manifest):
    """Nearest neighbours of 8 x 8 pictures, by cosine, over the merged test index."""
    table = pd.read_csv(toy_manifest).query("split == 'test'").reset_index(drop=True)
    small = []
    for path in table["image_path"]:
        with Image.open(toy_manifest.parent / path) as picture:
            small.append(np.asarray(picture.resize((8, 8), Image.Resampling.BOX), float).ravel())
    features = np.array(small) / np.linalg.norm(small, axis=1, keepdims=True)
    similarity = features @ features.T
    similarity[:, table["role"] == "query"] = -1
    np.fill_diagonal(similarity, -1)
    labels = table["label"].to_numpy()
    hit = labels[similarity.argmax(axis=1)] == labels
    by_domain = pd.Series(hit)[table["role"] != "index"].groupby(table["domain"]).mean()
    assert by_domain.mean() < 0.5 and hit.mean() > 3 / len(set(labels))


def test_a_finished_set_is_left_alone_and_any_other_drawn_again(few, tmp_path):
    manifest = draw(tmp_path, images=56, workers=1)
    picture = tmp_path / pd.read_csv(manifest)["image_path"][0]
    picture.write_bytes(b"touched")
    assert draw(tmp_path, images=56, workers=1) == manifest
    assert picture.read_bytes() == b"touched"
    stale, theirs = picture.with_name("99.jpg"), picture.with_name("holiday.jpg")
    stale.touch()
    theirs.touch()
    draw(tmp_path, images=57, workers=1)
    assert picture.read_bytes() != b"touched" and not stale.exists() and theirs.exists()


def test_a_folder_with_a_manifest_or_images_of_a_user_is_refused(tmp_path):
    for name in ("manifest.csv", "images/mine.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine")
        with pytest.raises(DrawingError, match="that are not ours"):
            draw(tmp_path, images=56, workers=1)
        assert (tmp_path / name).read_text() == "mine" and not (tmp_path / "toy.json").exists()
        (tmp_path / name).unlink()


def test_an_interrupted_drawing_is_not_taken_for_a_finished_one(few, tmp_path, monkeypatch):
    draw(tmp_path, images=56, workers=1)
    whole, calls = dataset.draw_class, []

    def break_off(folder, plan):
        calls.append(plan)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return whole(folder, plan)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(dataset, "draw_class", break_off)
        draw(tmp_path, images=56, seed=1, workers=1)
    assert (tmp_path / "toy.json").read_text() == "{}\n"
    table = pd.read_csv(draw(tmp_path, images=56, seed=1, workers=1))
    assert all((tmp_path / path).exists() for path in table["image_path"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"images": 55}, "images: 55 is too few"),
        ({"part": "exam"}, "part: 'exam'"),
        ({"seed": -1}, "seed: -1"),
        ({"workers": 0}, "workers: 0 is too few"),
        ({"folder": "file"}, "file: is a file"),
    ],
)
def test_what_cannot_be_drawn_is_refused_by_name(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    with pytest.raises(DrawingError, match=words):
        draw(**{"folder": "new"} | arguments)
    assert not Path("new").exists()
