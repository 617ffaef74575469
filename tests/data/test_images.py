"""Decoding as a person sees it, and as the host's scorer does."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image

from guie.base.errors import UserError
from guie.data.images import open_as_host, open_as_seen, size_as

GRADIENT = np.linspace(0, 255, 40 * 20).reshape(20, 40).astype(np.uint8)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "cut.jpg"
    Image.fromarray(GRADIENT).save(path)
    path.write_bytes(path.read_bytes()[:-200])
    for reader in (open_as_seen, open_as_host):
        with pytest.raises(UserError, match=r"cut\.jpg"):
            reader(path)
    with pytest.raises(UserError, match="no such image"):
        open_as_seen(tmp_path / "absent.jpg")


def test_a_bomb_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.png"
    Image.new("1", (11_000, 10_000)).save(path)
    with pytest.raises(UserError, match="bomb"):
        open_as_seen(path)


def test_float_pixels_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "float.tiff"
    Image.fromarray(GRADIENT.astype(np.float32) / 255).save(path)
    with pytest.raises(UserError, match="float"):
        open_as_seen(path)


def test_sixteen_bit_pictures_are_turned_too(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    path = tmp_path / "deep.png"
    Image.fromarray(GRADIENT.astype(np.uint16) * 257).save(path, exif=exif)
    assert open_as_seen(path).size == (20, 40)


def test_integers_beyond_sixteen_bit_are_refused_and_others_scaled(tmp_path: Path) -> None:
    path = tmp_path / "deep.tiff"
    Image.fromarray(GRADIENT.astype(np.int32) * 257).save(path)
    seen = np.asarray(open_as_seen(path))[:, :, 0]
    assert np.abs(seen.astype(int) - GRADIENT).max() <= 1
    for pixels in (GRADIENT.astype(np.int32) * 65_536, GRADIENT.astype(np.int32) - 1):
        Image.fromarray(pixels).save(path)
        with pytest.raises(UserError, match="32-bit integer"):
            open_as_seen(path)


@pytest.mark.parametrize("reader", [open_as_seen, open_as_host])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, reader) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    with pytest.raises(UserError, match=r"pipe\.jpg: not a regular file"):
        reader(tmp_path / "pipe.jpg")
    with pytest.raises(UserError, match="not a regular file"):
        reader(tmp_path)


@pytest.mark.parametrize("reader", [open_as_seen, open_as_host, partial(size_as, "seen")])
def test_postscript_under_another_name_starts_no_program(tmp_path, reader, monkeypatch) -> None:
    path = tmp_path / "picture.jpg"
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n")
    started = []
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *args: started.append(args))
    with pytest.raises(UserError, match=r"picture\.jpg: not a readable image: it is none of JPEG"):
        reader(path)
    assert not started


@pytest.mark.parametrize(
    "kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF", "MPO"]
)
def test_formats_of_data_sets_are_read_whatever_the_name(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "picture.jpg"
    Image.fromarray(np.stack([GRADIENT] * 3, axis=-1)).save(path, kind)
    assert open_as_seen(path).size == open_as_host(path).size == (40, 20)


@pytest.mark.parametrize("kind", ["ICO", "TGA", "PCX", "EPS", "PDF"])
def test_other_formats_are_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "picture.png"
    Image.fromarray(np.stack([GRADIENT] * 3, axis=-1)).save(path, kind)
    with pytest.raises(UserError, match="it is none of"):
        open_as_seen(path)
