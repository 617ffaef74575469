"""Tables that accompany a manifest: found, read, renamed, joined, and reduced to its rows."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from guie.base.errors import UserError
from guie.data.manifest.companions import (
    Box,
    boxes_of,
    companion_path,
    read_boxes,
    read_companions,
    within,
    write_companions,
)

GRADES = pd.DataFrame(
    {"query": ["q", "q", "r"], "image": ["a", "b", "a"], "grade": ["easy", "junk", "hard"]}
)
HEADER = "image_path,x1_px,y1_px,x2_px,y2_px"
BOXES = pd.DataFrame([["q", "0", "0", "9.5", "9"]], columns=HEADER.split(","))
TEXTS = pd.DataFrame(
    {"image_path": ["t", "u"], "text": ["a cup", "a pen"], "label": ["d/1", "d/2"], "domain": "d"}
)
ALL = {"relevance": GRADES, "boxes": BOXES, "texts": TEXTS}


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    manifest = tmp_path / "mix.parquet"
    write_companions(manifest, ALL)
    read = read_companions(manifest)
    assert set(read) == set(ALL)
    for kind, rows in ALL.items():
        pd.testing.assert_frame_equal(read[kind], rows, check_dtype=False)
    write_companions(manifest, {"boxes": BOXES.assign(x1_px="1")})
    again = read_companions(manifest)
    assert again["boxes"]["x1_px"].tolist() == ["1"] and len(again["texts"]) == 2
    # in a folder of one manifest its name may be left out; its own table goes first
    (tmp_path / "boxes.csv").touch()
    assert companion_path(manifest, "boxes").name == "mix.boxes.csv"
    assert companion_path(tmp_path / "other.csv", "boxes").name == "boxes.csv"


def test_rows_go_with_the_images_that_they_name() -> None:
    kept = within(ALL, pd.DataFrame({"image_path": ["q", "a"], "label": "d/1|d/3"}))
    assert kept["relevance"].to_numpy().tolist() == [["q", "a", "easy"]]
    assert len(kept["boxes"]) == 1
    assert kept["texts"]["text"].tolist() == ["a cup"], "a text is no image: its class decides"
    some = within(ALL, pd.DataFrame({"image_path": ["a", "r"], "label": "d/1"}))
    assert set(some) == {"relevance", "texts"}


def crops(folder: Path, text: str) -> list[Box | None]:
    """Of three images, 12 wide and 8 high."""
    images = ["a.png", "b.png", "c.png"]
    for name in images:
        Image.new("RGB", (12, 8)).save(folder / name)
    path = folder / "boxes.csv"
    path.write_text(text)
    return boxes_of(path, read_boxes(path, images), folder, images)


def test_sides_are_rounded_as_pillow_does(tmp_path: Path) -> None:
    sides = (0.5, 1.5, 9.51, 6.5)
    found = crops(tmp_path, f"{HEADER}\nb.png,{','.join(map(str, sides))}\nc.png,-1,0,13,8.4\n")
    assert found == [None, Box(0, 2, 10, 6), Box(-1, 0, 13, 8)]  # a pixel beyond is black
    image = Image.fromarray(np.arange(96, dtype=np.uint8).reshape(8, 12))
    assert np.array_equal(image.crop(sides), image.crop(found[1]))


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("d.png,0,0,4,4", "boxes.csv:5: d.png: the manifest has no such image"),
        ("a.png,0,0,4,4", "boxes.csv:5: a.png: already has a box; delete one"),
        ("b.png,0,,4,4", "boxes.csv:5: b.png: a side of its box is not a number"),
        ("b.png,0,0,inf,4", "boxes.csv:5: b.png: a side of its box is not a number"),
        ("b.png,4,0,4.3,4", "boxes.csv:5: b.png: its box is empty"),
        ("b.png,0,0,14,4", "boxes.csv:5: b.png: its box 0, 0, 14, 4 is outside.* is 12 x 8"),
        ("b.png,0,-2,4,4", "boxes.csv:5: b.png: its box 0, -2, 4, 4 is outside"),
        ("b.png,1,2,3", "boxes.csv:5: 4 columns where the header has 5"),
        (None, "boxes.csv: missing columns y2_px; found 'image_path, x1_px, y1_px, x2_px'"),
    ],
)
def test_a_box_that_cannot_be_is_refused_by_its_line(line, fault: str, tmp_path: Path) -> None:
    text = f"{HEADER}\n\na.png,0,0,4,4\n\n{line}\n" if line else HEADER.removesuffix(",y2_px")
    with pytest.raises(UserError, match=fault) as caught:
        crops(tmp_path, text)
    assert "\n" not in str(caught.value)
