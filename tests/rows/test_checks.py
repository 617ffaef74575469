"""What curation found out about an image is kept until its file changes."""

from __future__ import annotations

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
from guie.data.images import open_as_seen
from guie.rows import filling
from guie.rows.checks import THUMBNAIL, VERIFY, Checks
from guie.rows.comparison import content
from guie.rows.fingerprints import FINGERPRINTS, thumbnail_pixels, thumbnails

NAMES = [f"{number}.png" for number in range(5)]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of five pictures and one that is none, and a cache of its own."""
    monkeypatch.setenv("GUIE_CACHE", str(tmp_path / "cache"))
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


def test_every_command_that_knows_files_by_their_time_offers_to_check_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The main function sets the variable for its children; parsing sets nothing."""
    commands = {
        curate: ["--list"],
        train: ["--config", "c"],
        embed: ["--model", "m", "--manifest", "m", "--out", "E.npz"],
        search: ["index", "--model", "m", "--images", "p", "--out", "i"],
    }
    set_environment = arguments.set_environment

    def and_stop(args: argparse.Namespace) -> None:
        set_environment(args)
        raise KeyboardInterrupt

    monkeypatch.setattr(arguments, "set_environment", and_stop)
    monkeypatch.setenv("GUIE_ENGINE", "")  # restored afterwards
    for command, words in commands.items():
        monkeypatch.setenv("GUIE_CHECK_CONTENT", "")
        command.parse_args([*words, "--check-content"])
        for more, found in (([], ""), (["--check-content"], "1")):
            with pytest.raises(KeyboardInterrupt):
                command.main([*words, *more])
            assert os.environ["GUIE_CHECK_CONTENT"] == found
