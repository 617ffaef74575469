"""Names that would give wrong labels are refused; files of other programs are skipped."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

from guie.base.errors import UserError
from guie.data.datasets.folder import read_folder
from guie.data.names import refuse_alike, refuse_splits
from guie.data.shards.indexing import index_tars


def draw(folder: Path, *files: str) -> Path:
    for number, file in enumerate(files):
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (number, 0, 0)).save(path, "JPEG")
    return folder


def image(number: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), (number, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()


def packed(folder: Path, members: dict[str, bytes]) -> dict[str, str]:
    """The label of each image in the index of a tar."""
    with tarfile.open(folder / "a.tar", "w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    index_tars(folder, "d", "train", 1)
    table = pd.read_parquet(folder / "index.parquet")
    return dict(zip(table["image_path"], table["label"], strict=True))


@pytest.mark.parametrize(
    "classes",
    [
        ["train/cat", "train/dog", "valid/cat", "valid/dog"],
        ["Train/cat", "TEST/dog", "Validation/owl"],
        ["pets/train/cat", "pets/val/cat"],
        ["seg_train/sea", "seg_test/sea"],
        ["train2017/cat", "val2017/cat"],
        ["fold_1/a", "fold_2/a", "fold_3/a"],
        ["cat/train", "cat/test", "dog/train", "dog/test"],
    ],
)
def test_splits_are_no_classes(classes: list[str], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="names of splits would become classes; read each split by"):
        refuse_splits("x", classes)
    draw(tmp_path, *(f"{name}/0.jpg" for name in classes))
    with pytest.raises(UserError, match="names of splits would become classes"):
        read_folder(tmp_path, "d", "train")
    (tmp_path / "tars").mkdir()
    with pytest.raises(UserError, match="names of splits would become classes"):
        packed(tmp_path / "tars", {f"{c}/{n}.png": image(n) for n, c in enumerate(classes)})


def test_one_class_may_have_the_name_of_a_split() -> None:
    refuse_splits("x", ["test", "cat", "dog", "owl"])
    refuse_splits("x", ["train", "bus", "car", "plane"])
    refuse_splits("x", ["birds/owl", "birds/train", "fish/eel"])


@pytest.mark.parametrize(
    "second", ["caf\u0065\u0301", "Caf\u00e9", "caf\u00e9 ", "caf\u00e9\u200b"]
)
def test_classes_that_differ_only_in_form_are_refused(second: str) -> None:
    with pytest.raises(UserError, match="differ only in .*; rename"):
        refuse_alike("x", ["d/caf\u00e9", f"d/{second}"], "rename one")
    refuse_alike("x", ["d/a", "d/A", "d/tea cup", "d/teacup"], "rename one")


def test_folders_of_other_programs_are_skipped_and_named(tmp_path: Path) -> None:
    made = [
        *("cat/@eaDir/0.jpg", "cat/.ipynb_checkpoints/0.jpg", "__MACOSX/cat/0.jpg", "cat/._0.jpg"),
        *("#recycle/0.jpg", "$RECYCLE.BIN/0.jpg", "__pycache__/0.jpg", "cat/thumbs/0.jpg"),
    ]
    rows, skipped = read_folder(draw(tmp_path, "cat/0.jpg", "dog/1.jfif", *made), "d", "train")
    assert dict(zip(rows["image_path"], rows["label"], strict=True)) == {
        "cat/0.jpg": "d/cat",
        "dog/1.jfif": "d/dog",
    }
    said = " ".join(skipped)
    for name in ("@eaDir", "__MACOSX", "#recycle", "$RECYCLE.BIN", "__pycache__", "thumbs"):
        assert name in said


def test_a_label_is_found_for_a_name_with_dots(tmp_path: Path) -> None:
    labels = packed(
        tmp_path,
        {
            "p/shoe_0.5x.png": image(0),
            "p/shoe_0.5x.cls": b"shoe",
            "p/img.0.png": image(1),
            "p/img.0.json": b'{"label": "zero"}',
            "p/img.1.PNG": image(2),
            "p/img.1.json": b'{"label": "one"}',
            "p/a.seg.png": image(3),
            "p/a.cls": b"whole",
            "p/plain.png": image(4),
            "p/._plain.png": b"not an image",
            "__MACOSX/p/plain.png": b"not an image",
        },
    )
    assert {Path(name).name: label for name, label in labels.items()} == {
        "shoe_0.5x.png": "d/shoe",
        "img.0.png": "d/zero",
        "img.1.PNG": "d/one",
        "a.seg.png": "d/whole",
        "plain.png": "d/p",
    }


def test_labels_in_tars_differ_in_more_than_form(tmp_path: Path) -> None:
    members = {"0.png": image(0), "0.cls": b"Cat", "1.png": image(1), "1.cls": b"cat"}
    with pytest.raises(UserError, match="'d/Cat' and 'd/cat' differ only in case or space"):
        packed(tmp_path, members)
