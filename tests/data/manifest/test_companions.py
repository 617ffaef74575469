"""Tables beside a manifest: found, read, renamed, joined, and kept in step with its rows."""

from __future__ import annotations

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
    joined,
    read_boxes,
    read_companion,
    read_companions,
    renamed,
    within,
    write_companions,
)

GRADES = pd.DataFrame(
    {"query": ["q", "q", "r"], "image": ["a", "b", "a"], "grade": ["easy", "junk", "hard"]}
)
BOXES = pd.DataFrame(
    {"image_path": ["q"], "x1_px": ["0"], "y1_px": ["0"], "x2_px": ["9.5"], "y2_px": ["9"]}
)
TEXTS = pd.DataFrame(
    {"image_path": ["t", "u"], "text": ["a cup", "a pen"], "label": ["d/1", "d/2"], "domain": "d"}
)


def mix(*paths: str) -> pd.DataFrame:
    return pd.DataFrame({"image_path": paths, "label": "d/1|d/3"})


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    companions = {"relevance": GRADES, "boxes": BOXES, "texts": TEXTS}
    write_companions(tmp_path / "mix.parquet", companions)
    read = read_companions(tmp_path / "mix.parquet")
    assert set(read) == set(companions)
    for kind, rows in companions.items():
        pd.testing.assert_frame_equal(read[kind], rows, check_dtype=False)
    write_companions(tmp_path / "mix.parquet", {"boxes": BOXES.assign(x1_px="1")})
    again = read_companions(tmp_path / "mix.parquet")
    assert again["boxes"]["x1_px"].tolist() == ["1"] and len(again["texts"]) == 2


def test_a_manifests_own_table_goes_before_that_of_its_folder(tmp_path: Path) -> None:
    """Several mixes may stand in one folder."""
    manifest = tmp_path / "mix.csv"
    assert companion_path(manifest, "boxes").name == "mix.boxes.csv", "where there is none"
    (tmp_path / "boxes.csv").touch()
    assert companion_path(manifest, "boxes").name == "boxes.csv"
    (tmp_path / "mix.boxes.csv").touch()
    assert companion_path(manifest, "boxes").name == "mix.boxes.csv"


def test_rows_go_with_the_images_that_they_name() -> None:
    companions = {"relevance": GRADES, "boxes": BOXES, "texts": TEXTS}
    kept = within(companions, mix("q", "a"))
    assert kept["relevance"].to_numpy().tolist() == [["q", "a", "easy"]]
    assert len(kept["boxes"]) == 1
    assert kept["texts"]["text"].tolist() == ["a cup"], "a text is no image: its class decides"
    assert set(within(companions, mix("a", "r"))) == {"relevance", "texts"}


def test_sources_are_renamed_and_joined() -> None:
    one = renamed({"relevance": GRADES}, lambda paths: "one/" + paths)
    both = joined([one, {"relevance": GRADES, "boxes": BOXES}])
    assert both["relevance"]["query"].tolist() == ["one/q", "one/q", "one/r", "q", "q", "r"]
    assert both["relevance"]["image"].iloc[0] == "one/a"
    assert both["relevance"]["grade"].iloc[0] == "easy"
    assert both["boxes"].equals(BOXES)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            "image_path,x1_px,y1_px,x2_px\n",
            "boxes.csv: no column 'y2_px'; the columns must be image_path",
        ),
        ("", "boxes.csv: cannot be read"),
        (None, "boxes.csv: no such table"),
        ("image_path,x1_px,y1_px,x2_px,y2_px\na,1,2,3,4,\n", "boxes.csv:2: 6 columns where"),
        ("image_path,x1_px,y1_px,x2_px,y2_px\na,1,2,3\n", "boxes.csv:2: 4 columns where"),
    ],
)
def test_a_table_that_is_none_is_refused(text: str | None, fault: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "boxes.csv").write_text(text)
    with pytest.raises(UserError, match=fault):
        read_companion(tmp_path / "boxes.csv", "boxes")


HEADER = "image_path,x1_px,y1_px,x2_px,y2_px"


def crops(folder: Path, *lines: str) -> list[Box | None]:
    """Of three images, 12 wide and 8 high."""
    images = ["a.png", "b.png", "c.png"]
    for name in images:
        Image.new("RGB", (12, 8)).save(folder / name)
    path = folder / "boxes.csv"
    path.write_text("\n".join([HEADER, *lines]) + "\n")
    return boxes_of(path, read_boxes(path, images), folder, images)


def test_sides_are_rounded_as_pillow_does(tmp_path: Path) -> None:
    sides = (0.5, 1.5, 9.51, 6.5)
    found = crops(tmp_path, f"b.png,{','.join(map(str, sides))}")
    assert found == [None, Box(0, 2, 10, 6), None]
    image = Image.fromarray(np.arange(96, dtype=np.uint8).reshape(8, 12))
    assert np.array_equal(image.crop(sides), image.crop(found[1]))


def test_a_pixel_beyond_the_image_is_black(tmp_path: Path) -> None:
    assert crops(tmp_path, "a.png,-1,0,13,8.4")[0] == Box(-1, 0, 13, 8)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("d.png,0,0,4,4", "boxes.csv:3: d.png: the manifest has no such image"),
        ("a.png,0,0,4,4", "boxes.csv:3: a.png: already has a box; delete one"),
        ("b.png,0,x,4,4", "boxes.csv:3: b.png: a side of its box is not a number"),
        ("b.png,0,,4,4", "boxes.csv:3: b.png: a side of its box is not a number"),
        ("b.png,0,0,inf,4", "boxes.csv:3: b.png: a side of its box is not a number"),
        ("b.png,4,0,4.3,4", "boxes.csv:3: b.png: its box is empty"),
        ("b.png,0,5,4,4", "boxes.csv:3: b.png: its box is empty"),
        ("b.png,0,0,14,4", "boxes.csv:3: b.png: its box 0, 0, 14, 4 is outside.* is 12 x 8"),
        ("b.png,0,-2,4,4", "boxes.csv:3: b.png: its box 0, -2, 4, 4 is outside"),
    ],
)
def test_a_box_that_cannot_be_is_refused_by_its_line(line: str, fault: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=fault) as caught:
        crops(tmp_path, "a.png,0,0,4,4", line)
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=fault.replace("csv:3", "csv:5")):
        crops(tmp_path, "", "a.png,0,0,4,4", "", line)
