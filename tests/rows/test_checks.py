"""What is found out about an image is kept until its file changes; unreadable ones are refused or dropped."""

import argparse
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import curate
import embed
import search
import train
from guie.base import arguments
from guie.base.errors import UserError
from guie.data.images import DECODERS, open_as_seen
from guie.data.manifest import Manifest, load_manifest
from guie.rows import filling
from guie.rows.checks import (
    THUMBNAIL,
    VERIFY,
    Checks,
    drop_unreadable,
    find_unreadable,
    refuse_unreadable,
)
from guie.rows.comparison import content
from guie.rows.fingerprints import FINGERPRINTS, thumbnail_pixels, thumbnails

NAMES = [f"{number}.png" for number in range(5)]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of its own for what is found out."""
    monkeypatch.setenv("GUIE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder of five pictures and one that is none."""
    folder = tmp_path / "images"
    folder.mkdir()
    for number, name in enumerate(NAMES):
        draw(folder / name, number)
    (folder / "bad.png").write_text("none")
    return folder


def draw(path: Path, seed: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    Image.fromarray(pixels).resize((40 + seed, 30), Image.Resampling.BICUBIC).save(path)


def rows(root: Path, names: list[str], check=FINGERPRINTS) -> pd.DataFrame:
    checks = Checks(check, root, names)
    checks.fill(1, "set")
    return checks.table()


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that are looked at from here on."""
    asked: list[str] = []
    mapped = filling.mapped

    def asked_for(look, paths, *rest, **settings):
        asked.extend(paths)
        return mapped(look, paths, *rest, **settings)

    monkeypatch.setattr(filling, "mapped", asked_for)
    return asked


def plain(names: list[str], root: Path, check=FINGERPRINTS) -> pd.DataFrame:
    """What the check finds, without a cache and without thumbnails."""
    found = [check.look(str(root), "seen", name) for name in names]
    table = pd.DataFrame(found, index=pd.Index(names, dtype=object), columns=list(check.columns))
    return table.drop(columns="thumbnail", errors="ignore")


def test_a_file_that_appears_meanwhile_is_not_taken_for_good_later(root: Path) -> None:
    """Its state was taken while it was missing, and it may be missing again."""
    away = root.parent / "away.png"
    (root / "0.png").rename(away)
    checks = Checks(FINGERPRINTS, root, ["0.png"])
    away.rename(root / "0.png")
    assert not len(checks.fill(1, "set")) and checks.table()["reason"].tolist() == [""]
    (root / "0.png").unlink()
    assert rows(root, ["0.png"])["reason"].tolist() == ["no such image"]


@pytest.mark.parametrize("check", [VERIFY, FINGERPRINTS])
def test_rows_are_those_of_the_check_first_and_again(root: Path, looked, check) -> None:
    names = ["3.png", "bad.png", *NAMES[:3]]
    expected = plain(names, root, check)
    for asked in (names, []):
        pd.testing.assert_frame_equal(rows(root, names, check), expected)
        assert looked == asked
        looked.clear()
    pd.testing.assert_frame_equal(rows(root, NAMES, check), plain(NAMES, root, check))
    assert looked == ["4.png"]
    assert rows(root, [], check).empty


def test_pictures_are_known_by_their_pixels_as_seen(root: Path) -> None:
    """Reasons name no folder."""
    turned = Image.Exif()
    turned[0x0112] = 6  # a quarter turn
    image = Image.open(root / "0.png")
    image.save(root / "same.bmp")
    image.transpose(Image.Transpose.ROTATE_90).save(root / "turned.png", exif=turned)
    (root.parent / "outside.png").write_bytes((root / "0.png").read_bytes())
    (root / "link.png").symlink_to(root.parent / "outside.png")
    found = rows(root, ["0.png", "1.png", "same.bmp", "turned.png", "bad.png", "none", "link.png"])
    pixels = found["pixels"].tolist()
    assert pixels[0] == pixels[2] == pixels[3] != pixels[1] and pixels[4:] == [""] * 3
    assert found.loc["turned.png", ["width", "height", "differs"]].tolist() == [40, 30, "EXIF turn"]
    reasons = found["reason"].tolist()
    assert reasons[:4] == [""] * 4 and "not a readable image" in reasons[4]
    assert reasons[5:] == ["no such image", "a link that leaves the source's folder"]
    assert not found["reason"].str.contains(str(root)).any()


def grow(file: Path) -> None:
    """More bytes, and the time of change as it was."""
    changed_at = file.stat().st_mtime_ns
    file.write_bytes(file.read_bytes() + b"more")
    os.utime(file, ns=(changed_at, changed_at))


@pytest.mark.parametrize("change", [grow, lambda file: os.utime(file, ns=(0, 1))])
def test_a_file_of_another_size_or_time_is_looked_at_again(root: Path, looked, change) -> None:
    rows(root, NAMES)
    change(root / "1.png")
    looked.clear()
    rows(root, NAMES)
    assert looked == ["1.png"]


def test_what_another_version_found_does_not_count(root: Path, looked: list[str]) -> None:
    rows(root, NAMES, FINGERPRINTS._replace(version="older"))
    looked.clear()
    rows(root, NAMES)
    assert looked == NAMES


def test_thumbnails_are_those_of_the_records(root: Path, looked: list[str]) -> None:
    rows(root, NAMES[1:])
    looked.clear()
    found = thumbnails(NAMES, "content", root, 1)
    assert looked == ["0.png"]
    alone = [thumbnail_pixels(content(open_as_seen(root / name))) for name in NAMES]
    kept = Checks(FINGERPRINTS, root, NAMES).table([THUMBNAIL])[THUMBNAIL]
    assert [*kept] == [pixels.tobytes() for pixels in alone]
    assert np.linalg.norm(found, axis=1) == pytest.approx(1, abs=1e-5)
    with pytest.raises(UserError, match="bad.png: not a readable image"):
        thumbnails(["bad.png"], "content", root, 1)


def test_a_file_replaced_within_size_and_time_is_looked_at_with_check_content(
    root: Path, looked, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for color, check in (("red", ""), ("navy", ""), ("navy", "1"), ("navy", "1"), ("red", "1")):
        monkeypatch.setenv("GUIE_CHECK_CONTENT", check)
        Image.new("RGB", (30, 30), color).save(root / "0.bmp")
        os.utime(root / "0.bmp", ns=(0, 0))
        found.append(rows(root, ["0.bmp"])["pixels"].item())
    assert found[0] == found[1] == found[4] != found[2] == found[3]
    assert looked == ["0.bmp"] * 3


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (curate, ["--list"]),
        (train, ["--config", "c"]),
        (embed, ["--model", "m", "--manifest", "m", "--out", "E.npz"]),
        (search, ["index", "--model", "m", "--images", "p", "--out", "i"]),
    ],
)
def test_every_command_that_knows_files_by_their_time_offers_to_check_them(
    command, words, monkeypatch
):
    """The main function sets the variable for its children."""
    set_environment = arguments.set_environment

    def and_stop(args: argparse.Namespace) -> None:
        set_environment(args)
        raise KeyboardInterrupt

    monkeypatch.setattr(arguments, "set_environment", and_stop)
    monkeypatch.setenv("GUIE_ENGINE", "")  # restored afterwards
    monkeypatch.setenv("GUIE_CHECK_CONTENT", "")
    for more, found in (([], ""), (["--check-content"], "1")):
        with pytest.raises(KeyboardInterrupt):
            command.main([*words, *more])
        assert os.environ["GUIE_CHECK_CONTENT"] == found


ROWS = [
    *(f"t/{n}.png,toys/car,toys,train,train" for n in range(4)),
    "t/4.png,toys/bus,toys,train,train",
    *(f"v/{n}.png,toys/cat,toys,val,both" for n in range(3)),
    *(f"v/{n}.png,toys/dog,toys,val,both" for n in range(3, 5)),
    "v/5.png,toys/lone,toys,val,both",
]


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """Eleven good images on disk, and a manifest of them."""
    random = np.random.default_rng(0)
    for row in ROWS:
        file = tmp_path / "set" / row.split(",")[0]
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (5, 4, 3), dtype=np.uint8)).save(file)
    path = tmp_path / "set/m.csv"
    path.write_text("\n".join(["image_path,label,domain,split,role", *ROWS]) + "\n")
    return load_manifest(path)


@pytest.fixture
def opened(monkeypatch) -> list[str]:
    """The names of the files that are decoded from here on, in order."""
    names: list[str] = []

    def spied(opener):
        def open_and_note(path):
            names.append(f"{opener.__name__} {Path(path).name}")
            return opener(path)

        open_and_note.__name__ = opener.__name__
        return open_and_note

    for name, opener in DECODERS.items():
        monkeypatch.setitem(DECODERS, name, spied(opener))
    return names


def find(manifest: Manifest, decode: str = "seen") -> pd.DataFrame:
    return find_unreadable(manifest.table, manifest.root, 1, decode)


@pytest.mark.parametrize("decode", ["seen", "host"])
def test_all_splits_are_decoded_as_the_sidecar_says_and_only_once(manifest, opened, decode):
    names = [f"open_as_{decode} {n}.png" for n in (*range(5), *range(6))]
    path = manifest.path.with_name("m.sidecar.yaml")
    path.write_text(f"decode: {decode}\n")
    asked = load_manifest(manifest.path)
    assert asked.sidecar.decode == decode
    find(asked, asked.sidecar.decode)
    assert sorted(opened) == sorted(names)
    opened.clear()
    find(asked, asked.sidecar.decode)
    assert opened == []


def test_the_host_reads_what_was_seen_without_a_second_look(manifest, opened):
    """As curation has seen it."""
    names = [row.split(",")[0] for row in ROWS][5:]
    Image.fromarray(np.full((4, 4), 300, np.uint16)).save(manifest.file(names[0]))
    Checks(VERIFY, manifest.root, names).fill(1, "seen")
    opened.clear()
    assert find(manifest, "host").empty
    assert opened == [f"open_as_host {n}.png" for n in range(5)]  # those of train
    file = manifest.file(names[1])
    file.write_bytes(file.read_bytes()[:60])  # another file now: all of it
    assert find(manifest, "host")["image_path"].tolist() == ["v/1.png"]
    assert opened[-1] == "open_as_host 1.png"


def test_float_pixels_are_bad_for_a_person_alone(manifest):
    """What the decoders disagree on is judged by the one that will open it."""
    Image.fromarray(np.ones((4, 4), np.float32)).save(manifest.file("v/0.png"), "TIFF")
    assert find(manifest, "host").empty
    assert find(manifest)["image_path"].tolist() == ["v/0.png"]


def spoil(manifest: Manifest, *names: str) -> pd.DataFrame:
    for name in names:
        manifest.file(name).write_bytes(b"bad")
    return find(manifest)


def test_refusal_lists_files_with_reason_and_remedy_and_counts_the_rest(manifest, monkeypatch):
    monkeypatch.setattr("guie.rows.checks.SHOWN", 2)
    manifest.file("t/3.png").unlink()
    with pytest.raises(UserError) as caught:
        refuse_unreadable(spoil(manifest, "t/2.png", "v/0.png"), manifest)
    first, *listed = str(caught.value).splitlines()
    assert first.startswith(f"{manifest.path}: 3 rows have an image that cannot be read;")
    assert "--drop-bad" in first and "src/curate.py" in first
    assert listed[0].startswith("t/2.png (train): not a readable image: ")
    assert listed[1:] == ["t/3.png (train): no such image", "and 1 more"]


def test_a_wrong_root_is_guessed(manifest, tmp_path):
    elsewhere = Manifest(manifest.table, tmp_path, manifest.path, manifest.sidecar)
    bad = find_unreadable(elsewhere.table, tmp_path, 1)
    with pytest.raises(UserError, match=f"11 rows.*is {tmp_path} the folder that image_path"):
        refuse_unreadable(bad, elsewhere)
    with pytest.raises(UserError, match=f"none of 5 train images.*is {tmp_path} the folder"):
        drop_unreadable(elsewhere, bad)


def test_dropping_says_which_classes_and_queries_are_lost(manifest):
    bad = spoil(manifest, "t/0.png", "t/4.png", "v/0.png", "v/3.png")
    kept, lines = drop_unreadable(manifest, bad)
    good = manifest.table[~manifest.table["image_path"].isin(bad["image_path"])]
    pd.testing.assert_frame_equal(kept.table, good.reset_index(drop=True))
    assert all(line.startswith("dropped ") for line in lines[:4])
    assert lines[4:] == [
        "train: 2 of 5 images dropped; 1 classes lost with their last image: toys/bus",
        "val: 2 of 6 images dropped; 1 queries lost their last positive;"
        " scores are not comparable with those on the whole set",
    ]
