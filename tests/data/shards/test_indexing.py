"""Existing WebDataset tars are indexed as they are; what is bad in one is named in a line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import curate
from guie.base.errors import UserError
from guie.data.images import open_as_seen
from guie.data.manifest import load_manifest
from guie.data.shards.claiming import PARTS
from guie.data.shards.indexing import index_tars
from sharded import packed, picture_bytes, tar_of


def samples(first: int, count: int = 3) -> list[tuple[str, bytes]]:
    """Members as webdataset's writer orders them: by key, an image and its class."""
    pairs = [
        [(f"{n:04d}.jpg", picture_bytes(n)), (f"{n:04d}.cls", str(n % 2).encode())]
        for n in range(first, first + count)
    ]
    return [member for pair in pairs for member in pair]


def test_tars_are_indexed_in_place(tmp_path: Path) -> None:
    for number in range(3):
        tar_of(tmp_path / f"part-{number}.tar", samples(10 * number))
    (tmp_path / "part-0.tar.idx").write_bytes(b"of another tool")
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    curate.main(["--index-shards", str(tmp_path), "--domain", "art", "--workers", "2"])
    assert before == {file.name: file.read_bytes() for file in tmp_path.glob("*.tar*")}
    manifest = load_manifest(tmp_path / "index.parquet")
    assert manifest.table["image_path"].tolist()[:2] == ["part-0/0000.jpg", "part-0/0001.jpg"]
    assert manifest.table["label"].tolist() == [f"art/{n % 2}" for n in (0, 1, 0, 0, 1, 0, 0, 1, 0)]
    for row in manifest.table.itertuples():
        number = int(Path(row.image_path).stem)
        seen = np.asarray(open_as_seen(manifest.root / row.image_path))
        (tmp_path / "one.jpg").write_bytes(picture_bytes(number))
        assert (seen == np.asarray(open_as_seen(tmp_path / "one.jpg"))).all()


def test_the_index_of_packed_shards_can_be_written_again(tmp_path: Path) -> None:
    _, shards = packed(tmp_path)
    before = pd.read_parquet(shards.path)
    shards.path.unlink()
    index_tars(shards.path.parent, "other", "train", 1)
    after = pd.read_parquet(shards.path)
    before, after = (
        index.sort_values(["image_path", "split"], ignore_index=True)[before.columns]
        for index in (before, after)
    )
    pd.testing.assert_frame_equal(before, after)


def test_classes_come_from_json_or_folders_too(tmp_path: Path) -> None:
    members = [
        ("n01/a.jpg", picture_bytes(0)),
        ("b.png", picture_bytes(1, "PNG")),
        ("b.json", b'{"label": "owl", "caption": "an owl"}'),
        ("c.jpg", picture_bytes(2)),
        ("c.cls", b"7"),
        ("c.txt", b"a photo\n"),
    ]
    tar_of(tmp_path / "x.tar", members)
    index_tars(tmp_path, "art", "test", 1)
    table = load_manifest(tmp_path / "index.parquet").table
    assert table["label"].tolist() == ["art/n01", "art/owl", "art/7"]
    assert table["caption"].tolist() == ["", "an owl", "a photo"]
    assert set(table["role"]) == {"both"}


def test_an_undecodable_image_is_left_out_and_listed(tmp_path: Path, capsys) -> None:
    members = [*samples(0), ("0009.jpg", picture_bytes(9)[:600]), ("0009.cls", b"1")]
    tar_of(tmp_path / "x.tar", members)
    curate.main(["--index-shards", str(tmp_path), "--domain", "art"])
    assert len(load_manifest(tmp_path / "index.parquet").table) == 3
    dropped = pd.read_csv(tmp_path / "index.dropped.csv")
    assert dropped["image_path"].tolist() == ["x/0009.jpg"]
    assert "left out: x/0009.jpg: not a readable image" in capsys.readouterr().out


def cut(path: Path, bytes_left: int) -> None:
    path.write_bytes(path.read_bytes()[:bytes_left])


def compressed(path: Path) -> None:
    Path(f"{path}.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()


BAD = {
    "cut in an image": (lambda tar: cut(tar, 2000), "x.tar: damaged or not an archive"),
    "cut between members": (lambda tar: cut(tar, 512 * 12), "x.tar: damaged or not an archive"),
    "compressed": (compressed, r"x.tar.gz: is compressed"),
    "no tar": (lambda tar: tar.write_bytes(b"nothing" * 200), "x.tar: damaged or not an archive"),
    "twice": (lambda tar: tar_of(tar, samples(0) + samples(0, 1)), r"'0000.jpg': occurs twice"),
    "climbs": (lambda tar: tar_of(tar, [("../a/b.jpg", picture_bytes(0))]), "leaves the folder"),
    "absolute": (lambda tar: tar_of(tar, [("/a/b.jpg", picture_bytes(0))]), "an absolute path"),
    "no class": (lambda tar: tar_of(tar, [("b.jpg", picture_bytes(0))]), "'b.jpg': has no class"),
    "no JSON": (
        lambda tar: tar_of(tar, [("b.jpg", picture_bytes(0)), ("b.json", b"{")]),
        "b.json: not JSON",
    ),
    "line break": (
        lambda tar: tar_of(tar, [("b.jpg", picture_bytes(0)), ("b.cls", b"a\nb")]),
        r"x.tar: x/b.jpg: label 'art/a\\nb' has a line break",
    ),
    "no image": (lambda tar: tar_of(tar, [("b.cls", b"1")]), "no member of its tars has the name"),
    "nothing": (lambda tar: tar.unlink(), "no .tar in it"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_tar_is_named_in_a_line(tmp_path: Path, case: str) -> None:
    tar = tar_of(tmp_path / "x.tar", samples(0, 8))
    spoil, message = BAD[case]
    spoil(tar)
    with pytest.raises(UserError, match=message):
        index_tars(tmp_path, "art", "train", 1)
    assert not (tmp_path / "index.parquet").exists()


def test_tars_that_were_read_are_not_read_again(tmp_path: Path) -> None:
    good, bad = tar_of(tmp_path / "a.tar", samples(0)), tar_of(tmp_path / "b.tar", samples(3))
    whole = bad.read_bytes()
    cut(bad, 2000)
    with pytest.raises(UserError, match=r"b\.tar"):
        index_tars(tmp_path, "art", "train", 1)
    (part,) = (tmp_path / PARTS).glob("a.tar.*")
    written = part.stat().st_mtime_ns
    bad.write_bytes(whole)
    # a part that is used as it stands: the tar itself is no longer looked into
    table = pd.read_parquet(part)
    table.assign(label="art/kept").to_parquet(part)
    index_tars(tmp_path, "art", "train", 1)
    labels = load_manifest(tmp_path / "index.parquet").table["label"]
    assert labels.tolist() == ["art/kept"] * 3 + ["art/1", "art/0", "art/1"]
    assert written and good.exists()


def test_tars_are_read_again_for_another_domain_or_split(tmp_path: Path) -> None:
    tar_of(tmp_path / "a.tar", samples(0))
    bad = tar_of(tmp_path / "b.tar", samples(3))
    whole = bad.read_bytes()
    cut(bad, 2000)
    with pytest.raises(UserError, match=r"b\.tar"):
        index_tars(tmp_path, "art", "train", 1)
    bad.write_bytes(whole)
    index_tars(tmp_path, "birds", "val", 1)
    table = load_manifest(tmp_path / "index.parquet").table
    assert set(table["domain"]) == {"birds"} and set(table["split"]) == {"val"}


def test_an_index_is_not_replaced(tmp_path: Path) -> None:
    tar_of(tmp_path / "x.tar", samples(0))
    index_tars(tmp_path, "art", "train", 1)
    with pytest.raises(UserError, match=r"index.parquet: exists"):
        index_tars(tmp_path, "art", "train", 1)


@pytest.mark.parametrize(
    ("name", "said", "message"),
    [
        ("a/b\udcff.jpg", "{}", r"'a/b\\udcff.jpg': its name or row is not in UTF-8"),
        ("a/b.jpg", '{"label": "\\ud800"}', "its name or row is not in UTF-8"),
        ("b.jpg", '{"label": null}', "has no class"),
        ("a/b.jpg", '{"label": ["x"]}', "b.json: label must be a text or a number"),
        ("b.jpg", '{ROW, "rows": 5}', "b.json: rows must be a list of objects"),
        ("b.jpg", '{ROW, "rows": ["x"]}', "b.json: rows must be a list of objects"),
        ("b.jpg", '{ROW, "weight": "heavy"}', "b.json: weight must be a number"),
        ("b.jpg", '{ROW, "width": 1e30}', "b.json: width must be a number"),
        ("b.jpg", '{ROW, "caption": ["x"]}', "b.json: caption must be a text"),
    ],
)
def test_a_row_of_other_types_is_one_line(name, said, message, tmp_path: Path) -> None:
    row = '"image_path": "b", "label": "x/a", "domain": "x", "split": "train", "role": "train"'
    about = said.replace("ROW", row).encode()
    tar_of(tmp_path / "x.tar", [(name, picture_bytes(0)), (name[:-3] + "json", about)])
    with pytest.raises(UserError, match=message) as refused:
        index_tars(tmp_path, "art", "train", 1)
    assert str(refused.value).startswith(f"{tmp_path}/x.tar: ")


def test_texts_and_numbers_of_one_column_are_texts(tmp_path: Path) -> None:
    members = []
    for number, label in enumerate((5, "five")):
        row = {"image_path": str(number), "label": label, "domain": "x", "split": "train"}
        members.append((f"{number}.jpg", picture_bytes(number)))
        members.append((f"{number}.json", json.dumps(row | {"role": "train"}).encode()))
    tar_of(tmp_path / "x.tar", members)
    index_tars(tmp_path, "art", "train", 1)
    assert load_manifest(tmp_path / "index.parquet").table["label"].tolist() == ["5", "five"]
