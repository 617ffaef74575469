"""Images are decoded before training, each once: what is found, remembered, refused and dropped."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from guie.base.errors import UserError
from guie.data.images import DECODERS
from guie.data.manifest import Manifest, load_manifest
from guie.rows import states as asking
from guie.rows.checks import VERIFY, Checks, drop_unreadable, find_unreadable, refuse_unreadable

ROWS = [
    *(f"t/{n}.png,toys/car,toys,train,train" for n in range(4)),
    "t/4.png,toys/bus,toys,train,train",
    *(f"v/{n}.png,toys/cat,toys,val,both" for n in range(3)),
    *(f"v/{n}.png,toys/dog,toys,val,both" for n in range(3, 5)),
    "v/5.png,toys/lone,toys,val,both",
]


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own for what is found out."""
    monkeypatch.setenv("GUIE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """Eleven good images on disk, and a manifest of them."""
    random = np.random.default_rng(0)
    for row in ROWS:
        file = tmp_path / "set" / row.split(",")[0]
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (5, 4, 3), dtype=np.uint8)).save(file)
    path = tmp_path / "set/m.csv"
    path.write_text("\n".join(["image_path,label,domain,split,role", *ROWS]) + "\n")
    return load_manifest(path)


@pytest.fixture
def opened(monkeypatch) -> list[str]:
    """The names of the files that are decoded from here on, in order."""
    names: list[str] = []

    def spied(opener):
        def open_and_note(path):
            names.append(f"{opener.__name__} {Path(path).name}")
            return opener(path)

        open_and_note.__name__ = opener.__name__
        return open_and_note

    for name, opener in DECODERS.items():
        monkeypatch.setitem(DECODERS, name, spied(opener))
    return names


def find(manifest: Manifest, decode: str = "seen") -> pd.DataFrame:
    return find_unreadable(manifest.table, manifest.root, 1, decode)


@pytest.mark.parametrize("decode", ["seen", "host"])
def test_all_splits_are_decoded_as_the_sidecar_says_and_only_once(manifest, opened, decode):
    names = [f"open_as_{decode} {n}.png" for n in (*range(5), *range(6))]
    path = manifest.path.with_name("m.sidecar.yaml")
    path.write_text(f"decode: {decode}\n")
    asked = load_manifest(manifest.path)
    assert asked.sidecar.decode == decode
    find(asked, asked.sidecar.decode)
    assert sorted(opened) == sorted(names)
    opened.clear()
    find(asked, asked.sidecar.decode)
    assert opened == []


def test_the_host_reads_what_was_seen_without_a_second_look(manifest, opened):
    """As curation has seen it."""
    names = [row.split(",")[0] for row in ROWS][5:]
    Image.fromarray(np.full((4, 4), 300, np.uint16)).save(manifest.file(names[0]))
    Checks(VERIFY, manifest.root, names).fill(1, "seen")
    opened.clear()
    assert find(manifest, "host").empty
    assert opened == [f"open_as_host {n}.png" for n in range(5)]  # those of train
    file = manifest.file(names[1])
    file.write_bytes(file.read_bytes()[:60])  # another file now: all of it
    assert find(manifest, "host")["image_path"].tolist() == ["v/1.png"]
    assert opened[-1] == "open_as_host 1.png"


def test_float_pixels_are_bad_for_a_person_alone(manifest):
    """What the decoders disagree on is judged by the one that will open it."""
    Image.fromarray(np.ones((4, 4), np.float32)).save(manifest.file("v/0.png"), "TIFF")
    assert find(manifest, "host").empty
    assert find(manifest)["image_path"].tolist() == ["v/0.png"]


def test_what_was_bad_is_known_until_it_is_repaired(manifest, opened):
    good = manifest.file("t/1.png").read_bytes()
    find(manifest)
    for content, bad in ((good[:20], 1), (good[:20], 1), (good, 0), (b"", 1)):
        if content != manifest.file("t/1.png").read_bytes():
            manifest.file("t/1.png").write_bytes(content)
        assert find(manifest).index.tolist() == [1] * bad
    assert opened.count("open_as_seen 1.png") == 5  # t/1.png four times, v/1.png once


def test_a_store_that_cannot_be_written_is_named(manifest, store):
    store.write_text("a file where the folder should be")
    with pytest.raises(UserError, match="recipe.json: cannot be written"):
        find(manifest)


def test_processes_find_what_one_finds(tmp_path, monkeypatch):
    """More images than one process takes at a time."""
    Image.new("RGB", (3, 3)).save(tmp_path / "good.png")
    names = [f"{n}.png" for n in range(150)]
    for name in names:
        shutil.copy(tmp_path / "good.png", tmp_path / name)
    for name in names[::40]:
        (tmp_path / name).write_bytes(b"bad")
    table = pd.DataFrame({"image_path": names, "split": "train"})
    found = []
    for workers in (1, 2):
        monkeypatch.setenv("GUIE_CACHE", str(tmp_path / f"cache {workers}"))
        found.append(find_unreadable(table, tmp_path, workers))
    assert found[0]["image_path"].tolist() == names[::40]
    pd.testing.assert_frame_equal(*found)
    assert find_unreadable(table, tmp_path, 2).equals(found[0])


def spoil(manifest: Manifest, *names: str) -> pd.DataFrame:
    for name in names:
        manifest.file(name).write_bytes(b"bad")
    return find(manifest)


def test_refusal_lists_files_with_reason_and_remedy_and_counts_the_rest(manifest, monkeypatch):
    monkeypatch.setattr("guie.rows.checks.SHOWN", 2)
    manifest.file("t/3.png").unlink()
    with pytest.raises(UserError) as caught:
        refuse_unreadable(spoil(manifest, "t/2.png", "v/0.png"), manifest)
    first, *listed = str(caught.value).splitlines()
    assert first.startswith(f"{manifest.path}: 3 rows have an image that cannot be read;")
    assert "--drop-bad" in first and "src/curate.py" in first
    assert listed[0].startswith("t/2.png (train): not a readable image: ")
    assert listed[1:] == ["t/3.png (train): no such image", "and 1 more"]


def test_a_wrong_root_is_guessed(manifest, tmp_path):
    elsewhere = Manifest(manifest.table, tmp_path, manifest.path, manifest.sidecar)
    bad = find_unreadable(elsewhere.table, tmp_path, 1)
    with pytest.raises(UserError, match=f"11 rows.*is {tmp_path} the folder that image_path"):
        refuse_unreadable(bad, elsewhere)
    with pytest.raises(UserError, match=f"none of 5 train images.*is {tmp_path} the folder"):
        drop_unreadable(elsewhere, bad)


def test_dropping_says_which_classes_and_queries_are_lost(manifest):
    bad = spoil(manifest, "t/0.png", "t/4.png", "v/0.png", "v/3.png")
    kept, lines = drop_unreadable(manifest, bad)
    good = manifest.table[~manifest.table["image_path"].isin(bad["image_path"])]
    pd.testing.assert_frame_equal(kept.table, good.reset_index(drop=True))
    assert all(line.startswith("dropped ") for line in lines[:4])
    assert lines[4:] == [
        "train: 2 of 5 images dropped; 1 classes lost with their last image: toys/bus",
        "val: 2 of 6 images dropped; 1 queries lost their last positive;"
        " scores are not comparable with those on the whole set",
    ]


def test_states_are_asked_for_at_the_same_time_and_stay_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a network disk each answer takes milliseconds; here four have to wait for each other."""
    files = [str(tmp_path / f"{number}.jpg") for number in range(40)]
    for number, file in enumerate(files[:-1]):  # the last is missing
        Path(file).write_bytes(bytes(number))
    together = threading.Barrier(4)
    monkeypatch.setattr(asking, "STAT_FILES", 10)
    found = asking._size_and_time

    def waiting(file, *by_content):
        if file in files[::10]:  # the first of its part
            together.wait(timeout=300)
        return found(file, *by_content)

    monkeypatch.setattr(asking, "_size_and_time", waiting)
    states = asking.states(tmp_path, [Path(file).name for file in files])
    assert states.size_N.tolist() == [*range(39), -1]
    assert states.names == [f"{number}.jpg" for number in range(40)]
