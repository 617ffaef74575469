"""Image folders: what becomes a row, files of other programs, splits, classes that differ in form."""

import os
from pathlib import Path

import pytest
from PIL import Image

from guie.base.errors import UserError
from guie.data.datasets import read_folder
from guie.data.datasets.folder import image_files
from guie.data.images import open_as_host, open_as_seen
from guie.data.names import refuse_splits
from sharded import picture_bytes


def made(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return root


def labels(root: Path) -> set[str]:
    return set(read_folder(root, "d", "train")[0]["label"])


def test_rows_are_sorted_and_labelled_by_folder(tmp_path: Path) -> None:
    made(tmp_path / "set", "b/2.png", "b/10.PNG", "b/c/d/1.jpg", "x.jpg/x y.jpeg")
    (tmp_path / "link").symlink_to(tmp_path / "set")
    for split, role in (("train", "train"), ("val", "both"), ("test", "both")):
        table, skipped = read_folder(tmp_path / "link", "toys", split)
        assert table.to_numpy().tolist() == [
            ["b/10.PNG", "toys/b", "toys", split, role],
            ["b/2.png", "toys/b", "toys", split, role],
            ["b/c/d/1.jpg", "toys/b/c/d", "toys", split, role],
            ["x.jpg/x y.jpeg", "toys/x.jpg", "toys", split, role],
        ]
        assert not skipped


def test_nothing_to_read_is_refused_with_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere: no such folder"):
        read_folder(tmp_path / "nowhere", "d", "train")
    with pytest.raises(UserError, match="found: 2 not in a class folder"):
        read_folder(made(tmp_path, "1.jpg", "2.jpg"), "d", "train")


HEIC = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(200)
SKIPPED = {  # next to cat/1.jpg, with their content
    "@eaDir/1.jpg/SYNOPHOTO_THUMB_XL.jpg": ("hidden or system folder (@eaDir)", b""),
    ".ipynb_checkpoints/1.jpg": ("hidden or system folder (.ipynb_checkpoints)", b""),
    "__MACOSX/cat/1.jpg": ("hidden or system folder (__MACOSX)", b""),
    "$RECYCLE.BIN/1.jpg": ("hidden or system folder ($RECYCLE.BIN)", b""),
    "Thumbnails/1.jpg": ("copy made by a photo tool (Thumbnails)", b""),
    "._1.jpg": ("hidden or system file (._*)", b""),
    ".DS_Store": ("hidden or system file", b""),
    "Thumbs.db": ("hidden or system file (Thumbs.db)", b""),
    "1.jpg_original": ("backup, preview or partial file (.jpg_original)", b""),
    "3.THM": ("backup, preview or partial file (.thm)", picture_bytes(0)),
    "notes.txt": ("no image by its extension (.txt)", b""),
    "README": ("no image by its extension (none)", b""),
    # a raw photograph begins like TIFF
    "2.nef": ("no image by its extension (.nef)", b"II*\0" + bytes(100)),
    "4.heic": ("HEIC image, which is not read; convert it to JPEG or PNG", HEIC),
    "5.jxl": ("JPEG XL image, which is not read; convert it to JPEG or PNG", b"\xff\n" + bytes(99)),
    "../top.jpg": ("not in a class folder", b""),
    "../a|b/1.jpg": ("class name with |, which joins several labels", b""),
    **{
        os.fsdecode(name): ("name with a control character or not in UTF-8", b"")
        for name in (b"line\nbreak.jpg", b"line\xe2\x80\xa8.jpg", b"latin\xe9.jpg")
    },
}


@pytest.mark.parametrize("name", SKIPPED)
def test_what_is_no_image_of_a_class_is_counted(name: str, tmp_path: Path) -> None:
    reason, content = SKIPPED[name]
    root = made(tmp_path, "cat/1.jpg", f"cat/{name}", "dog/1.jpg")
    (root / "cat" / name).write_bytes(content)
    table, skipped = read_folder(root, "d", "train")
    assert table["image_path"].tolist() == ["cat/1.jpg", "dog/1.jpg"]
    assert skipped == {reason: 1}
    if "class" not in reason:
        assert image_files(root)[0] == ["cat/1.jpg", "dog/1.jpg"]


SPLITS = {
    "train valid test": ("train/cat/1.jpg", "valid/cat/1.jpg", "test/cat/1.jpg"),
    "another case": ("Train/cat/1.jpg", "TEST/cat/1.jpg"),
    "deeper": ("data/train/cat/1.jpg", "data/val/cat/1.jpg", "data/val/dog/1.jpg"),
    "twice": ("training_set/training_set/cat/1.jpg", "test_set/test_set/cat/1.jpg"),
    "with a word": ("seg_train/cat/1.jpg", "seg_test/cat/1.jpg", "seg_pred/1/1.jpg"),
    "below the class": ("cat/train/1.jpg", "cat/test/1.jpg", "dog/1.jpg"),
    "beside the classes": ("cat/1.jpg", "dog/1.jpg", "holdout/cat/1.jpg"),
    "other classes in each": ("train/cat/1.jpg", "test/owl/1.jpg"),
    "no classes": ("train/1.jpg", "test/1.jpg"),
    "with a year": ("train2017/cat/1.jpg", "val2017/cat/1.jpg"),
    "folds": ("fold_1/cat/1.jpg", "fold_2/cat/1.jpg"),
    "roles": ("query/cat/1.jpg", "gallery/cat/1.jpg", "train/cat/1.jpg"),
}


@pytest.mark.parametrize("case", SPLITS)
def test_splits_are_refused_as_classes(case: str, tmp_path: Path) -> None:
    root = made(tmp_path, *SPLITS[case])
    with pytest.raises(UserError, match="names of splits would become classes") as refused:
        labels(root)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "classes",
    [
        ["train", "car", "bus", "test"],
        ["test", *(f"c{n}" for n in range(500))],
        ["train/front", "car/front", "bus/front"],
        ["train_station", "test_tube", "dev_board", "cup"],
        ["validation", "dog"],
        ["train/cat", "train/dog"],
        ["a", "a/b", "a/b/c"],
    ],
)
def test_a_class_may_have_the_name_of_a_split(classes: list[str]) -> None:
    refuse_splits("x", classes)


def test_what_the_decoders_read_is_taken_whatever_its_name(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    kinds = {"avif": "AVIF", "jfif": "JPEG", "pjpeg": "JPEG", "HEIC": "JPEG", "jpg_large": "JPEG"}
    kinds |= {"": "PNG", "img": "WEBP", "dat": "BMP", "pgm": "PPM", "jp2": "JPEG2000"}
    kinds |= {"jpeg": "MPO", "PNG": "GIF", "jpg": "TIFF"}
    names = [f"{number}.{suffix}".rstrip(".") for number, suffix in enumerate(kinds)]
    for name, kind in zip(names, kinds.values(), strict=True):
        Image.new("RGB", (20, 10), "red").save(tmp_path / "cat" / name, kind)
        assert open_as_seen(tmp_path / "cat" / name).size == (20, 10)
        assert open_as_host(tmp_path / "cat" / name).size == (20, 10)
    found = read_folder(tmp_path, "d", "train")[0]["image_path"]
    assert found.tolist() == sorted(f"cat/{name}" for name in names)
