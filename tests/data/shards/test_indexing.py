"""Existing WebDataset tars are indexed as they are; what is bad in one is named in a line."""

import gzip
import tarfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import curate
from guie.base.errors import UserError
from guie.curation.indexing import index_tars
from guie.curation.packing import pack
from guie.data.images import open_as_seen
from guie.data.manifest import load_manifest, save_manifest
from guie.data.shards.index import PARTS
from sharded import SHARD_BYTES, data_set, picture_bytes, tar_of

HEIC = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(200)


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
    files = data_set(tmp_path / "files")
    sizes = files.table.assign(width="40", height=["30", *[""] * (len(files.table) - 1)])
    save_manifest(sizes, files.path, files.sidecar)
    path = pack(load_manifest(files.path), tmp_path / "shards", SHARD_BYTES, 1)
    before = pd.read_parquet(path)
    path.unlink()
    index_tars(path.parent, "other", "train", 1)
    after = pd.read_parquet(path)
    assert (after["width"] == 40).all() and after["height"].sum() == 30
    before, after = (
        index.sort_values(["image_path", "split"], ignore_index=True)[before.columns]
        for index in (before, after)
    )
    numbers = ["width", "height"]
    before[numbers] = before[numbers].apply(pd.to_numeric)
    pd.testing.assert_frame_equal(before, after, check_dtype=False)


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


def cut(path: Path, bytes_left: int) -> None:
    path.write_bytes(path.read_bytes()[:bytes_left])


def compressed(path: Path) -> None:
    Path(f"{path}.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()


ONE = ("b.jpg", picture_bytes(0))


def row_of(about: str) -> list[tuple[str, bytes]]:
    """An image, and its row in JSON, where ROW stands for the usual keys."""
    row = '"image_path": "b", "label": "x/a", "domain": "x", "split": "train", "role": "train"'
    return [ONE, ("b.json", about.replace("ROW", row).encode())]


# What is done to a good tar, or the members that it has instead; and the message
BAD = {
    "cut in an image": (lambda tar: cut(tar, 2000), "x.tar: damaged or not an archive"),
    "cut between members": (lambda tar: cut(tar, 512 * 12), "x.tar: damaged or not an archive"),
    "compressed": (compressed, r"x.tar.gz: is compressed"),
    "no tar": (lambda tar: tar.write_bytes(b"nothing" * 200), "x.tar: damaged or not an archive"),
    "nothing": (lambda tar: tar.unlink(), "no .tar in it"),
    "twice": (samples(0) + samples(0, 1), r"x.tar: '0000.jpg': occurs twice"),
    "climbs": ([("../a/b.jpg", picture_bytes(0))], "leaves the folder"),
    "absolute": ([("/a/b.jpg", picture_bytes(0))], "an absolute path"),
    "no class": ([ONE], "'b.jpg': has no class"),
    "no image": ([("b.cls", b"1")], "x/b.cls: text or label of no image"),
    "line break": ([ONE, ("b.cls", b"a\nb")], r"x/b.jpg: label 'art/a\\nb' has a line break"),
    "GBK": ([ONE, ("b.cls", "\u8336".encode("gbk"))], r"x.tar: 'b.cls': not in UTF-8"),
    "no JSON": (row_of("{"), "x.tar: .*b.json: not JSON"),
    "surrogate": (row_of('{"label": "\\ud800"}'), "x.tar: .*its name or row is not in UTF-8"),
    "null": (row_of('{"label": null}'), "x.tar: .*has no class"),
    "a list": (row_of('{"label": ["x"]}'), "x.tar: .*b.json: label must be a text or a number"),
    "rows": (row_of('{ROW, "rows": 5}'), "x.tar: .*b.json: rows must be a list of objects"),
    "weight": (row_of('{ROW, "weight": "heavy"}'), "x.tar: .*b.json: weight must be a number"),
    "width": (row_of('{ROW, "width": 1e30}'), "x.tar: .*b.json: width must be a number"),
    "caption": (row_of('{ROW, "caption": ["x"]}'), "x.tar: .*b.json: caption must be a text"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_tar_is_named_in_a_line(tmp_path: Path, case: str) -> None:
    tar, (bad, message) = tar_of(tmp_path / "x.tar", samples(0, 8)), BAD[case]
    if callable(bad):
        bad(tar)
    else:
        tar_of(tar, bad)
    with pytest.raises(UserError, match=message):
        index_tars(tmp_path, "art", "train", 1)
    assert not (tmp_path / "index.parquet").exists()


def test_tars_are_read_once_for_a_domain_and_split(tmp_path: Path) -> None:
    tar_of(tmp_path / "a.tar", samples(0))
    bad = tar_of(tmp_path / "b.tar", samples(3))
    whole = bad.read_bytes()
    cut(bad, 2000)
    with pytest.raises(UserError, match=r"b\.tar"):
        index_tars(tmp_path, "art", "train", 1)
    (part,) = (tmp_path / PARTS).glob("a.tar.*")
    bad.write_bytes(whole)
    # a part that is used as it stands: the tar itself is no longer looked into
    table = pd.read_parquet(part)
    table.assign(label="art/kept").to_parquet(part)
    index_tars(tmp_path, "art", "train", 1)
    with pytest.raises(UserError, match=r"index.parquet: exists"):
        index_tars(tmp_path, "art", "train", 1)
    labels = load_manifest(tmp_path / "index.parquet").table["label"]
    assert labels.tolist() == ["art/kept"] * 3 + ["art/1", "art/0", "art/1"]
    (tmp_path / "index.parquet").unlink()
    cut(bad, 2000)
    with pytest.raises(UserError, match=r"b\.tar"):
        index_tars(tmp_path, "art", "train", 1)
    bad.write_bytes(whole)
    index_tars(tmp_path, "birds", "val", 1)
    table = load_manifest(tmp_path / "index.parquet").table
    assert set(table["domain"]) == {"birds"} and set(table["split"]) == {"val"}


def index_of(folder: Path) -> dict[str, str]:
    """Label by member of the tar x.tar."""
    index_tars(folder, "d", "train", 1)
    table = pd.read_parquet(folder / "index.parquet")
    return dict(zip(table["image_path"].str.removeprefix("x/"), table["label"], strict=True))


def left_out(folder: Path) -> dict[str, str]:
    dropped = pd.read_csv(folder / "index.dropped.csv")
    return dict(zip(dropped["image_path"].str.removeprefix("x/"), dropped["reason"], strict=True))


DOTTED = {
    # an image, its sidecar, and what is in it
    "p/shoe_0.5x.jpg": ("p/shoe_0.5x.cls", b"shoe"),
    "img.0.jpg": ("img.0.json", b'{"label": "shoe"}'),
    "235342 Track 2.0 (Clean Version).jpg": ("235342 Track 2.0 (Clean Version).cls", b"shoe"),
    "a/22.0/1.1.png": ("a/22.0/1.1.CLS", b"shoe"),
    "0001.seg.png": ("0001.cls", b"shoe"),
    "f/0001.left.jpg": ("f/0001.json", b'{"label": "shoe"}'),
    "clip/7.jpg": ("clip/7.jpg.json", b'{"label": "shoe"}'),
    "S_02/VE1.wav.jpg": ("S_02/VE1.wav.cls", "\ufeffshoe\n".encode()),
    "g/b.jpg": ("g/b.cls", b" shoe "),
}


@pytest.mark.parametrize("reverse", [False, True])
def test_a_name_with_dots_keeps_its_label(reverse: bool, tmp_path: Path) -> None:
    members = []
    for number, (image, sidecar) in enumerate(DOTTED.items()):
        members += [(image, picture_bytes(number, "PNG")), sidecar]
    tar_of(tmp_path / "x.tar", members[::-1] if reverse else members)
    assert index_of(tmp_path) == dict.fromkeys(DOTTED, "d/shoe")
    assert not (tmp_path / "index.dropped.csv").exists()
    (tmp_path / "index.parquet").unlink()
    members = [(name, picture_bytes(n)) for n, name in enumerate(("a.1.jpg", "a.2.jpg", "a.jpg"))]
    tar_of(tmp_path / "x.tar", [*members, ("a.cls", b"all"), ("a.1.cls", b"one")])
    assert index_of(tmp_path) == {"a.1.jpg": "d/one", "a.2.jpg": "d/all", "a.jpg": "d/all"}


def test_members_that_are_no_images_are_named(tmp_path: Path, capsys) -> None:
    """Names obey the rules for folders, see test_folders.py."""
    members = [("c/1.jpg", picture_bytes(0)), ("c/1.cls", b"7"), ("c/5.jfif", picture_bytes(5))]
    members += [("c/5.cls", b"7"), ("c/._1.jpg", b"\0\5\x16\7"), ("c/._1.cls", b"\0\5\x16\7")]
    members += [("c/4.heic", HEIC), ("c/6.cls", b"8"), ("c/9.jpg", picture_bytes(9)[:600])]
    tar_of(tmp_path / "x.tar", [*members, ("c/9.cls", b"1")])
    with tarfile.open(tmp_path / "x.tar", "a") as tar:
        for name, kind in (("c/7.jpg", tarfile.SYMTYPE), ("c/8.jpg", tarfile.LNKTYPE)):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, "c/1.jpg"
            tar.addfile(entry)
    curate.main(["--index-shards", str(tmp_path), "--domain", "d"])
    table = pd.read_parquet(tmp_path / "index.parquet")
    assert table["image_path"].tolist() == ["x/c/1.jpg", "x/c/5.jfif"]
    found = left_out(tmp_path)
    assert found.pop("c/9.jpg").startswith("not a readable image")
    assert found == {
        "c/._1.jpg": "hidden or system file (._*)",
        "c/._1.cls": "hidden or system file (._*)",
        "c/4.heic": "HEIC image, which is not read; convert it to JPEG or PNG",
        "c/6.cls": "text or label of no image",
        "c/7.jpg": "symlink, which is not followed",
        "c/8.jpg": "hardlink, which is not followed",
    }
    said = capsys.readouterr().out
    assert "2 images in 1 shards" in said and "7 members left out" in said
    assert "c/._1.jpg: hidden or system file (._*) (and 1 more)" in said


def test_an_image_without_the_label_that_its_siblings_have_is_left_out(tmp_path: Path) -> None:
    members = [("p/1.jpg", picture_bytes(0)), ("p/1.cls", b"7"), ("p/2.jpg", picture_bytes(1))]
    members += [("q/3.jpg", picture_bytes(2)), ("p/4.jpg", picture_bytes(3)), ("p/4.cls", b"")]
    members += [("p/5.jpg", picture_bytes(4)), ("p/5.cls", b"a|b")]
    members += [(f"p/caf{chr(0xDCE9)}.jpg", picture_bytes(5))]
    tar_of(tmp_path / "x.tar", members)
    assert index_of(tmp_path) == {"p/1.jpg": "d/7", "q/3.jpg": "d/q"}
    assert left_out(tmp_path) == {
        "p/2.jpg": "no .cls and no label in .json, unlike other images of its folder",
        "p/4.jpg": "empty label",
        "p/5.jpg": "class name with |, which joins several labels",
        "p/caf\\udce9.jpg": "name with a control character or not in UTF-8",
    }


@pytest.mark.parametrize(
    ("tars", "message"),
    [
        ({"x": ["train/a/1.jpg", "valid/a/1.jpg"]}, "train, valid: the names of splits"),
        ({"net-train-0001": ["a/1.jpg"], "net-val-0000": ["a/2.jpg"]}, "the names of splits"),
        ({"x": ["Cat/1.jpg"], "y": ["cat/1.jpg"]}, "'Cat' and 'cat' differ only in case"),
    ],
)
def test_classes_out_of_tars_obey_the_rules_for_folders(tars, message, tmp_path: Path) -> None:
    for number, (name, members) in enumerate(tars.items()):
        files = [(one, picture_bytes(10 * number + n)) for n, one in enumerate(members)]
        tar_of(tmp_path / f"{name}.tar", files)
    with pytest.raises(UserError, match=message):
        index_tars(tmp_path, "d", "train", 1)
    assert not (tmp_path / "index.parquet").exists()
