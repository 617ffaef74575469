"""Image folders: what becomes a row, what is passed over, and that a walk always ends."""

from __future__ import annotations

import os

import pytest

from guie.base.errors import UserError
from guie.data.datasets import read_folder


@pytest.fixture
def folder(tmp_path):
    """Make files below a folder; empty ones will do, since reading a folder opens none."""

    def make(*names: str):
        for name in names:
            path = tmp_path / "set" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        return tmp_path / "set"

    return make


def test_rows_are_sorted_and_labelled_by_folder(folder):
    table, skipped = read_folder(folder("b/2.png", "b/10.PNG", "a/x y.jpeg"), "toys", "train")
    assert table.to_numpy().tolist() == [
        ["a/x y.jpeg", "toys/a", "toys", "train", "train"],
        ["b/10.PNG", "toys/b", "toys", "train", "train"],
        ["b/2.png", "toys/b", "toys", "train", "train"],
    ]
    assert not skipped


def test_nested_folders_are_classes_of_their_own(folder):
    table, _ = read_folder(folder("a/1.jpg", "a/b/1.jpg", "a/b/c/1.jpg"), "d", "train")
    assert table["label"].tolist() == ["d/a", "d/a/b", "d/a/b/c"]


@pytest.mark.parametrize("split", ["val", "test"])
def test_held_out_images_are_query_and_index(folder, split):
    table, _ = read_folder(folder("a/1.jpg"), "d", split)
    assert table[["split", "role"]].to_numpy().tolist() == [[split, "both"]]


def test_what_is_no_image_of_a_class_is_counted(folder):
    root = folder(
        "a/1.jpg", "a/._1.jpg", "a/.hidden.png", "a/Thumbs.db", ".git/1.jpg", "a/notes.txt",
        "a/README", "top.jpg", "a|b/1.jpg", "a/line\nbreak.jpg",
        "a/red\x1b[31m.jpg", "a/c1\x9b.jpg", "a/line\u2028.jpg", "a/suffix.\x07",
    )  # fmt: skip
    (root / os.fsdecode(b"a/latin\xe9.jpg")).touch()
    table, skipped = read_folder(root, "d", "train")
    assert table["image_path"].tolist() == ["a/1.jpg"]
    assert skipped == {
        "hidden or system file": 1,
        "hidden or system file (._*)": 1,
        "hidden or system file (Thumbs.db)": 1,
        "hidden or system folder (.git)": 1,
        "no image by its extension (.txt)": 1,
        "no image by its extension (none)": 1,
        "not in a class folder": 1,
        "class name with |, which joins several labels": 1,
        "name with a control character or not in UTF-8": 6,
    }


def test_links_in_a_loop_end_and_pipes_do_not_hang(folder):
    root = folder("a/1.jpg")
    (root / "a" / "loop").symlink_to("..")
    (root / "a" / "dangling.jpg").symlink_to("nowhere.jpg")
    (root / "a" / "link.jpg").symlink_to("1.jpg")
    os.mkfifo(root / "a" / "pipe.jpg")
    table, skipped = read_folder(root, "d", "train")
    assert table["image_path"].tolist() == ["a/1.jpg", "a/link.jpg"]
    assert skipped == {"link to a folder or to nowhere": 2, "not a regular file": 1}


def test_a_folder_named_like_an_image_is_a_class(folder):
    table, _ = read_folder(folder("x.jpg/1.jpg"), "d", "train")
    assert table["label"].tolist() == ["d/x.jpg"]


def test_the_folder_itself_may_be_a_link(folder, tmp_path):
    (tmp_path / "link").symlink_to(folder("a/1.jpg"))
    assert len(read_folder(tmp_path / "link", "d", "train")[0]) == 1


def test_nothing_to_read_is_refused_with_what_there_is(folder, tmp_path):
    with pytest.raises(UserError, match="nowhere: no such folder"):
        read_folder(tmp_path / "nowhere", "d", "train")
    with pytest.raises(UserError, match="found: 2 not in a class folder"):
        read_folder(folder("1.jpg", "2.jpg"), "d", "train")
