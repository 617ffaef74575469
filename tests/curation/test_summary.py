"""What a summary counts, and how sources are joined: pure functions."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from PIL import Image
from tables import rows

from guie.base.errors import UserError
from guie.curation import summary
from guie.curation.classes import cap_random, drop_rare
from guie.curation.pipeline import combine, prefix_of
from guie.rows.checks import VERIFY, Checks


def test_prefix_of_a_source_in_the_root(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert prefix_of(Path("input/toy"), Path("input")) == "toy/"
    assert prefix_of(Path("input/a/../b"), tmp_path) == "input/b/"
    assert prefix_of(Path("input"), tmp_path / "input") == ""
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "link").symlink_to("/usr")
    assert prefix_of(Path("input/link"), Path("input")) == "link/"
    with pytest.raises(UserError, match=f"for example root: {tmp_path}"):
        prefix_of(tmp_path / "data", tmp_path / "input")
    with pytest.raises(UserError, match="outside"):
        prefix_of(tmp_path / "input2", tmp_path / "input")


def test_combine_fills_columns_that_only_some_sources_have():
    first = rows(["a"]).assign(weight=2.0, width=5, height="")
    second = rows(["b"], domain="e").assign(caption="a bee")
    table = combine([first, second])
    assert table["weight"].tolist() == [2.0, 1.0]
    assert table["caption"].tolist() == ["", "a bee"]
    assert table["width"].tolist() == [5, pd.NA] and table["height"].isna().all()
    assert table.index.tolist() == [0, 1]
    twice = rows(["a", "a"])
    with pytest.raises(UserError, match="sources 0 and 2 both contain d/train/001.jpg"):
        combine([twice, rows(["b"], domain="e"), twice.tail(1)])


def test_verify_gives_sizes_as_seen_and_reasons(tmp_path):
    root = tmp_path / "set"
    root.mkdir()
    turned = Image.Exif()
    turned[0x0112] = 6  # a quarter turn
    Image.new("RGB", (8, 4)).save(root / "plain.png")
    Image.new("RGB", (8, 4)).save(root / "turned.jpg", exif=turned)
    (root / "text.jpg").write_text("no image")
    Image.new("RGB", (8, 4)).save(tmp_path / "outside.png")
    (root / "link.png").symlink_to(tmp_path / "outside.png")
    checks = Checks(VERIFY, root, ["turned.jpg", "plain.png", "text.jpg", "none.jpg", "link.png"])
    checks.fill(1, "set")
    found = checks.table()
    assert found.loc["turned.jpg"].tolist() == [4, 8, "", "EXIF turn"]
    assert found.loc["plain.png"].tolist() == [8, 4, "", ""]
    assert "not a readable image" in found["reason"]["text.jpg"]
    assert found["reason"].tolist()[3:] == [
        "no such image",
        "a link that leaves the source's folder",
    ]
    assert not found["reason"].str.contains(str(tmp_path)).any(), "reasons name no folder"


def test_losses_count_classes_that_lost_their_last_image():
    table = pd.concat([rows(["a"] * 5 + ["b"] * 2 + ["c"]), rows(["g"], domain="gone")])
    table = table.reset_index(drop=True)
    stages = {"read": table, "min_images": drop_rare(table, 2)}
    stages["max_images"] = cap_random(stages["min_images"], 3, 0)
    one = {"classes": 1, "images": 1}
    losses = summary.losses(stages)
    lost = {"min_images": one, "max_images": {"classes": 0, "images": 2}}
    assert losses == {"d": lost, "gone": {"min_images": one}}
    counts = summary.by_domain(stages["max_images"], losses, pd.Series(dtype=bool))
    assert counts["d"] == {"train": {"classes": 2, "images": 5}, "dropped": lost}
    assert counts["gone"] == {"dropped": {"min_images": one}}


def test_contents_count_roles():
    held = rows(["t", "t", "u|t"], "test").assign(role=["query", "index", "both"])
    table = pd.concat([rows(["a", "b|a"]), held], ignore_index=True)
    counts = summary.contents(table, alone=pd.Series([False, True], index=[2, 4]))
    test = {"classes": 2, "images": 3, "queries": 2, "index": 2, "queries_without_positive": 1}
    assert counts == {"d": {"train": {"classes": 2, "images": 2}, "test": test}}
