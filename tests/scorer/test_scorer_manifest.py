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
    table = pd.read_csv(manifest)
    table.to_parquet(tmp_path / "manifest.parquet")
    columns = ["image_path", "label", "domain", "role"]
    from_csv, from_parquet = read(manifest), read(tmp_path / "manifest.parquet")
    pd.testing.assert_frame_equal(from_csv.table[columns], from_parquet.table[columns])
    assert from_csv.table["row"][0] == "line 2" and from_parquet.table["row"][0] == "row 0"


def test_parts_and_images(manifest):
    read_back = read(manifest)
    assert len(read_back.part("query")) == 10 and len(read_back.part("index")) == 14
    assert len(read_back.images) == 16


def test_every_bad_row_is_named_with_its_line(manifest):
    folder = manifest.parent
    Image.new("RGB", (2, 2)).save(folder / "x.png")
    rows = [
        "x.png,NA,toys,test,index",  # fine: a class may be called NA
        "",
        "x.png,toys/red,toys,test,probe",
        "x.png, ,toys,test,index",
        "x.png,toys/red|,toys,test,index",
        "../x.png,toys/red,toys,test,index",
        "/x.png,toys/red,toys,test,index",
        "gone.png,toys/red,toys,test,index",
        "x.png,toys/red,toys,test,both",
        "gone.png,,,train,nonsense",  # another split: not this command's business
    ]
    manifest.write_text(manifest.read_text() + "\n".join(rows) + "\n")
    first = 18
    message = refusal(manifest)
    for line, fault in {
        first + 2: "role 'probe' is not one of",
        first + 3: "image_path, domain or a label is empty",
        first + 4: "image_path, domain or a label is empty",
        first + 5: "image_path '../x.png' must be below the root, and written without",
        first + 6: "image_path '/x.png' must be below the root",
    }.items():
        assert f"line {line}: {fault}" in message
    assert message.endswith("; and 2 more")


def test_one_image_by_two_names_is_refused(manifest):
    with open(manifest, "a", encoding="utf-8") as file:
        file.write("./images/toys/red_0.jpg,toys/red,toys,test,both\n")
        file.write("images//toys/red_0.jpg,toys/red,toys,test,both\n")
    message = refusal(manifest)
    for line, path in ((18, "./images/toys/red_0.jpg"), (19, "images//toys/red_0.jpg")):
        assert f"line {line}: image_path {path!r} must be below the root, and" in message


def test_a_format_that_would_start_a_program_is_not_decoded(tmp_path):
    path = tmp_path / "x.jpg"
    Image.new("RGB", (8, 8)).save(path, "EPS")
    with pytest.raises(UnidentifiedImageError):
        decode(path)


def test_missing_file_and_repeated_row(manifest):
    with open(manifest, "a") as file:
        file.write("gone.png,toys/red,toys,test,index\n")
        file.write("n" * 300 + ".png,toys/red,toys,test,index\n")
        file.write("images/toys/red_0.jpg,toys/red,toys,test,index\n")
    message = refusal(manifest)
    assert "line 18: no image: 'gone.png' under" in message
    assert "line 19: no image: 'nnn" in message
    assert "line 20: image 'images/toys/red_0.jpg' has this role in an earlier row" in message


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "cannot be read as a table"),
        (HEADER.encode(), "split 'test' has no row; splits there: none"),
        (b"image_path;label\na;b\n", "no column image_path, label, domain, split, role"),
        (HEADER.encode("utf-16"), "cannot be read as a table"),
        (HEADER.encode() + b"a,b,c,test,both\na,b,c,test,both,x\n", "fields in line 3, saw 6"),
        (HEADER.encode() + b"a,b,c,test,both,x\n", "cannot be read as a table"),
    ],
)
def test_unusable_tables(tmp_path, content, fault):
    (tmp_path / "manifest.csv").write_bytes(content)
    assert fault in refusal(tmp_path / "manifest.csv")


def test_an_empty_split_lists_the_others(manifest):
    assert "split 'val' has no row; splits there: test" in refusal(manifest, "val")
    text = manifest.read_text().replace(",test,", ",val,")
    manifest.write_text(text)
    assert "splits there: val; use --split val" in refusal(manifest)


def test_nothing_to_find_is_refused_before_any_work(manifest):
    table = pd.read_csv(manifest)
    table.assign(role="index").to_csv(manifest, index=False)
    assert "no row of role query or both" in refusal(manifest)
    table.assign(label=[f"class {i}" for i in range(16)]).to_csv(manifest, index=False)
    assert "no query shares a label with an index image" in refusal(manifest)


def test_unreadable_images_are_all_named(submission, manifest):
    whole = (manifest.parent / "images/toys/red_0.jpg").read_bytes()
    (manifest.parent / "images/toys/red_0.jpg").write_bytes(whole[: len(whole) // 2])
    (manifest.parent / "images/art/grey_3.png").write_text("<html>")
    out = manifest.parent / "score.json"
    with pytest.raises(UserError) as caught:
        score.main(arguments(submission, manifest, out))
    message = str(caught.value)
    assert "line 2: image 'images/toys/red_0.jpg' cannot be decoded (" in message
    assert "line 17: image 'images/art/grey_3.png' cannot be decoded (cannot identify" in message


def test_exif_orientation_is_counted_and_not_applied(tmp_path):
    image = Image.new("RGB", (30, 10))
    exif = Image.Exif()
    for orientation, expected in ((1, False), (6, True)):
        exif[0x0112] = orientation
        image.save(tmp_path / "turned.jpg", exif=exif)
        pixels_HW3, rotated = decode(tmp_path / "turned.jpg")
        assert pixels_HW3.shape == (10, 30, 3) and rotated is expected


def test_sixteen_bits_are_clipped_as_the_host_clips_them(tmp_path):
    Image.fromarray(np.full((2, 2), 40000, np.uint16)).save(tmp_path / "deep.png")
    pixels_HW3, _ = decode(tmp_path / "deep.png")
    assert (pixels_HW3 == 255).all()
