"""Faults of the manifest and of the images are named by place."""

import numpy as np
import pandas as pd
import pytest
from PIL import Image, UnidentifiedImageError
from scorer_toys import arguments

import score
from scorer.embedding import decode
from scorer.errors import UserError
from scorer.manifest import read_manifest

HEADER = "image_path,label,domain,split,role\n"


def read(path, split="test"):
    return read_manifest(str(path), split, str(path.parent))


def refusal(path, split="test"):
    with pytest.raises(UserError) as caught:
        read(path, split)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_parquet_reads_like_csv(manifest, tmp_path):
    pd.read_csv(manifest).to_parquet(tmp_path / "manifest.parquet")
    from_csv, from_parquet = read(manifest), read(tmp_path / "manifest.parquet")
    tables = (one.table.drop(columns="row") for one in (from_csv, from_parquet))
    pd.testing.assert_frame_equal(*tables)
    assert from_csv.table["row"][0] == "line 2" and from_parquet.table["row"][0] == "row 0"
    assert len(from_csv.part("query")) == 10 and len(from_csv.part("index")) == 14
    assert len(from_csv.images) == 16


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("x.png,toys/red,toys,test,probe", "role 'probe' is not one of query, index, both"),
        ("x.png,toys/red|,toys,test,index", "image_path, domain or a label is empty"),
        ("../x.png,toys/red,toys,test,index", "image_path '../x.png' must be below the root, and"),
        ("./x.png,toys/red,toys,test,index", "image_path './x.png' must be below the root, and"),
        ("gone.png,toys/red,toys,test,index", "no image: 'gone.png' under "),
        (
            "images/toys/red_0.jpg,toys/red,toys,test,index",
            "image 'images/toys/red_0.jpg' has this role in an earlier row already",
        ),
    ],
)
def test_a_bad_row_is_named_with_its_line(manifest, row, fault):
    Image.new("RGB", (2, 2)).save(manifest.parent / "x.png")
    good = "x.png,NA,toys,test,index\ngone.png,,,train,nonsense\n"  # a class NA; another split
    manifest.write_text(f"{manifest.read_text()}{good}{row}\n{row}\n")
    faults = refusal(manifest).removeprefix(f"{manifest}: ").split("; ")
    assert faults[0].startswith(f"line 20: {fault}") and faults[1].startswith("line 21: ")
    assert len(faults) == 2
    manifest.write_text(f"{manifest.read_text()}{row}\n\n{row}\n{row}\n{row}\n")
    assert refusal(manifest).endswith("; and 1 more")


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "cannot be read as a table"),
        (HEADER.encode(), "split 'test' has no row; splits there: none"),
        (b"image_path;label\na;b\n", "no column image_path, label, domain, split, role"),
        (HEADER.encode() + b"a,b,c,test,both\na,b,c,test,both,x\n", "fields in line 3, saw 6"),
        (HEADER.encode() + b"a,b,c,test,both,x\n", "cannot be read as a table"),
    ],
)
def test_unusable_tables(tmp_path, content, fault):
    (tmp_path / "manifest.csv").write_bytes(content)
    assert fault in refusal(tmp_path / "manifest.csv")


def test_a_split_without_a_task_is_refused(manifest):
    assert "split 'val' has no row; splits there: test" in refusal(manifest, "val")
    table = pd.read_csv(manifest)
    for changed, fault in (
        ({"split": "val"}, "splits there: val; use --split val"),
        ({"role": "index"}, "no row of role query or both"),
        (
            {"label": [f"class {i}" for i in range(16)]},
            "no query shares a label with an index image",
        ),
    ):
        table.assign(**changed).to_csv(manifest, index=False)
        assert fault in refusal(manifest)


def test_unreadable_images_are_all_named(submission, manifest):
    whole = (manifest.parent / "images/toys/red_0.jpg").read_bytes()
    (manifest.parent / "images/toys/red_0.jpg").write_bytes(whole[: len(whole) // 2])
    (manifest.parent / "images/art/grey_3.png").write_text("<html>")
    with pytest.raises(UserError) as caught:
        score.main(arguments(submission, manifest, manifest.parent / "score.json"))
    message = str(caught.value)
    assert "line 2: image 'images/toys/red_0.jpg' cannot be decoded (" in message
    assert "line 17: image 'images/art/grey_3.png' cannot be decoded (cannot identify" in message


def test_each_format_is_decoded_like_by_the_host(tmp_path):
    image, exif = Image.new("RGB", (30, 10)), Image.Exif()
    for orientation, expected in ((1, False), (6, True)):
        exif[0x0112] = orientation
        image.save(tmp_path / "turned.jpg", exif=exif)
        pixels_HW3, rotated = decode(tmp_path / "turned.jpg")
        assert pixels_HW3.shape == (10, 30, 3) and rotated is expected
    Image.fromarray(np.full((2, 2), 40000, np.uint16)).save(tmp_path / "deep.png")
    assert (decode(tmp_path / "deep.png")[0] == 255).all()  # 16 bits are clipped
    image.save(tmp_path / "eps.jpg", "EPS")  # whose reader would start a program
    with pytest.raises(UnidentifiedImageError):
        decode(tmp_path / "eps.jpg")
