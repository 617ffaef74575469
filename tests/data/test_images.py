"""Decoding as a person sees it and as the scorer does, also of odd, damaged and large files."""

import io
import os
import struct
import subprocess
import sys
import zlib
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from pictures import NO_AUGMENT, jpeg, preprocess, whole
from PIL import EpsImagePlugin, Image, PngImagePlugin

from guie.base.errors import UserError
from guie.data.augmentation import Augment
from guie.data.dataset import EvalDataset, TrainDataset
from guie.data.images import (
    DECODERS,
    Region,
    difference,
    open_as_host,
    open_as_seen,
    open_part,
    picture_of,
    size_as,
    whole_px,
)
from guie.data.loader import eval_loader
from guie.data.manifest.companions import Box
from guie.rows.checks import VERIFY, find_unreadable
from scorer.embedding import decode as decode_of_scorer

GRADIENT = np.linspace(0, 255, 40 * 20).reshape(20, 40).astype(np.uint8)


@pytest.mark.parametrize("reader", [open_as_seen, open_as_host, partial(size_as, "seen")])
def test_other_formats_and_what_is_no_file_are_refused(tmp_path: Path, reader, monkeypatch) -> None:
    """A pipe is not waited for, and PostScript (EPS) under another name starts no program."""
    with pytest.raises(UserError, match="no such image"):
        reader(tmp_path / "absent.jpg")
    started = []
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *args: started.append(args))
    os.mkfifo(tmp_path / "pipe.jpg")
    for path in (tmp_path / "pipe.jpg", tmp_path):
        with pytest.raises(UserError, match="not a regular file"):
            reader(path)
    path = tmp_path / "picture.png"
    for kind in ("ICO", "TGA", "PCX", "EPS", "PDF"):
        Image.fromarray(np.stack([GRADIENT] * 3, axis=-1)).save(path, kind)
        with pytest.raises(UserError, match=r"picture\.png: not a readable image: it is none of"):
            reader(path)
    path.write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(200))
    with pytest.raises(UserError, match="not a readable image: HEIC image, which is not"):
        reader(path)
    assert not started


PICTURE = np.random.default_rng(0).integers(0, 256, (20, 40, 3), np.uint8)
SMOOTH = np.asarray(Image.fromarray(PICTURE[:4, :4]).resize((40, 20), Image.Resampling.BICUBIC))
GREY = SMOOTH[:, :, 0]


def alpha(image: Image.Image, least: int = 0) -> Image.Image:
    """The image with transparency that grows to the right, down to `least`."""
    image.putalpha(Image.fromarray(np.tile(np.linspace(255, least, 40).astype(np.uint8), (20, 1))))
    return image


def exif(orientation: int) -> Image.Exif:
    found = Image.Exif()
    found[0x0112] = orientation
    return found


RGB, DEEP = Image.fromarray(SMOOTH), GREY.astype(np.uint16) * 257
MPO = {"exif": exif(6), "save_all": True, "append_images": [RGB]}
KEY = tuple(SMOOTH[0, 0].tolist())
# By file name: `difference`, Pillow's format, image, options of saving.
KINDS: dict[str, tuple[str, str, Image.Image, dict]] = {
    "plain.png": ("", "PNG", RGB, {}),
    "plain.jpg": ("", "JPEG", RGB, {}),
    "grey.jpg": ("", "JPEG", Image.fromarray(GREY), {}),
    "one_bit.png": ("", "PNG", Image.fromarray(GREY).convert("1"), {}),
    "cmyk.jpg": ("", "JPEG", RGB.convert("CMYK"), {}),
    "opaque.png": ("", "PNG", alpha(RGB.copy(), 255), {}),
    "deep.png": ("16 bits", "PNG", Image.fromarray(DEEP), {}),
    "big_endian.tiff": ("16 bits", "TIFF", Image.fromarray(DEEP.astype(">u2")), {}),
    "integer.tiff": ("16 bits", "TIFF", Image.fromarray(DEEP.astype(np.int32)), {}),
    "rgba.png": ("transparency", "PNG", alpha(RGB.copy()), {}),
    "rgba.webp": ("transparency", "WEBP", alpha(RGB.copy()), {"lossless": True}),
    "la.png": ("transparency", "PNG", alpha(Image.fromarray(GREY)), {}),
    "palette.png": ("transparency", "PNG", RGB.quantize(8), {"transparency": 0}),
    "palette.gif": ("transparency", "GIF", RGB.quantize(8), {"transparency": 0}),
    "key.png": ("transparency", "PNG", RGB, {"transparency": KEY}),
    "grey_key.png": ("transparency", "PNG", Image.fromarray(GREY), {"transparency": KEY[0]}),
    "turned.png": ("EXIF turn", "PNG", RGB, {"exif": exif(6)}),
    "deep_turned.png": ("EXIF turn", "PNG", Image.fromarray(DEEP), {"exif": exif(6)}),
    "turned.webp": ("EXIF turn", "WEBP", RGB, {"exif": exif(8)}),
    "turned.tiff": ("", "TIFF", RGB, {"tiffinfo": {274: 6}}),  # Pillow turns these itself
    "turned_mpo.jpg": ("EXIF turn", "MPO", RGB, MPO),
    **{f"exif_{n}.jpg": ("EXIF turn", "JPEG", RGB, {"exif": exif(n)}) for n in range(2, 9)},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("kinds")
    for name, (_, kind, image, options) in KINDS.items():
        image.save(made / name, kind, **options)
    return made


def same_everywhere(path: Path, decode: str) -> None:
    """Training, embedding and the decoder itself have the same bytes."""
    expected = np.asarray(DECODERS[decode](path))
    part, size = open_part(path, whole, lambda *_: False, decode)
    assert np.array_equal(part, expected) and size == expected.shape[:2]
    embedded = EvalDataset([path], preprocess(), decode=decode)
    assert np.array_equal(embedded.pixels(0), expected)


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize("name", KINDS)
def test_training_has_the_pixels_of_embedding(folder: Path, name: str, decode: str) -> None:
    same_everywhere(folder / name, decode)
    row = {"image_path": [name], "label": ["l"]}
    augment = Augment(NO_AUGMENT)
    given = (pd.DataFrame(row), ["l"], folder, augment, preprocess(), (0,), decode)
    trained = preprocess().normalised(TrainDataset(*given)[(0, 0, 0)]["image"][None])[0]
    scored, _ = EvalDataset([folder / name], preprocess(), decode=decode)[0]
    assert ((trained - scored).abs() * preprocess().std[0]).mean() < 0.6


@pytest.mark.parametrize("name", KINDS)
def test_host_has_the_pixels_of_the_scorer_and_differs_where_said(folder: Path, name: str) -> None:
    host, seen = open_as_host(folder / name), open_as_seen(folder / name)
    pixels_HW3, _ = decode_of_scorer(folder / name)
    assert np.array_equal(np.asarray(host), pixels_HW3)
    assert difference(host) == difference(seen) == KINDS[name][0]
    assert (host.size == seen.size and host.tobytes() == seen.tobytes()) == (KINDS[name][0] == "")


def test_integers_beyond_sixteen_bit_are_refused_and_others_scaled(tmp_path, folder):
    path = tmp_path / "deep.tiff"
    Image.fromarray(GRADIENT.astype(np.int32) * 257).save(path)
    seen = np.asarray(open_as_seen(path))[:, :, 0]
    assert np.abs(seen.astype(int) - GRADIENT).max() <= 1
    for name in ("deep.png", "big_endian.tiff", "integer.tiff"):
        assert np.array_equal(np.asarray(open_as_seen(folder / name))[:, :, 0], GREY)
    for pixels in (GRADIENT.astype(np.int32) * 65_536, GRADIENT.astype(np.int32) - 1):
        Image.fromarray(pixels).save(path)
        with pytest.raises(UserError, match="32-bit integer"):
            open_as_seen(path)


@pytest.mark.parametrize("name", ["key.png", "grey_key.png", "palette.png", "rgba.webp", "la.png"])
def test_what_is_transparent_shows_white(folder: Path, name: str) -> None:
    with Image.open(folder / name) as image:
        alpha_HW = np.asarray(image.convert("RGBA"))[..., 3]
    pixels = np.asarray(open_as_seen(folder / name))[alpha_HW == 0]
    assert len(pixels) and (pixels == 255).all()
    assert (np.asarray(open_as_host(folder / name))[alpha_HW == 0] != 255).any()


def test_those_that_differ_are_counted_once(folder: Path, capsys) -> None:
    table = pd.DataFrame({"image_path": list(KINDS), "split": "train"})
    assert find_unreadable(table, folder, 1).empty
    (said,) = [line for line in capsys.readouterr().err.splitlines() if "differently" in line]
    found = Counter(kind for kind, *_ in KINDS.values())
    assert f"{len(KINDS) - found['']} of {len(KINDS)}" in said
    assert all(f"{kind} {found[kind]}" in said for kind in ("EXIF turn", "16 bits"))
    find_unreadable(table, folder, 1, "host")
    assert "differently" not in capsys.readouterr().err
    data = EvalDataset([folder / name for name in KINDS], preprocess())
    list(eval_loader(data, [range(n, n + 1) for n in range(len(KINDS))], workers=2))
    assert (data.differs_N > 0).tolist() == [kind != "" for kind, *_ in KINDS.values()]


# ---------------------------------------------------------------- metadata that Pillow refuses


def png(*chunks: tuple[bytes, bytes], last: bool = False, **options) -> bytes:
    """A PNG with more chunks, after its header or at its end."""
    buffer = io.BytesIO()
    Image.fromarray(PICTURE).save(buffer, "PNG", **options)
    data = buffer.getvalue()
    more = b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )
    at = len(data) - 12 if last else 33
    return data[:at] + more + data[at:]


XMP = PngImagePlugin.PngInfo()
XMP.add_itxt("XML:com.adobe.xmp", "y" * 3_000_000, zip=True)
LARGE = zlib.compress(bytes(3_000_000))
METADATA = {
    "text": png((b"zTXt", b"workflow\0\0" + LARGE)),
    "text at the end": png((b"zTXt", b"workflow\0\0" + LARGE), last=True),
    "XMP": png(pnginfo=XMP),
    "colour profile": png((b"iCCP", b"icc\0\0" + LARGE)),
    "colour profile of an unknown kind": png((b"iCCP", b"icc\0\7" + LARGE)),
    "many texts": png(*[(b"zTXt", b"k\0\0" + zlib.compress(bytes(900_000)))] * 80),
    "a short chunk": png((b"gAMA", b"ab")),
}


@pytest.mark.parametrize("name", METADATA)
def test_a_picture_whose_metadata_pillow_refuses_is_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(METADATA[name])
    with pytest.raises((ValueError, Image.UnidentifiedImageError)):
        Image.open(path).load()
    for decode in DECODERS:
        assert np.array_equal(np.asarray(DECODERS[decode](path)), PICTURE)
        same_everywhere(path, decode)
    assert np.array_equal(np.asarray(picture_of(METADATA[name])), PICTURE)


def test_it_is_still_turned_and_still_refused_if_its_pixels_are_damaged(tmp_path: Path) -> None:
    turned = png((b"zTXt", b"k\0\0" + LARGE), exif=exif(6))
    assert picture_of(turned).size == (20, 40)
    for data in (turned[:-400], turned[:-900] + bytes(300) + turned[-600:]):
        with pytest.raises(UserError, match="not a readable image"):
            picture_of(data)


@pytest.mark.parametrize(
    "segment", [b"\xff\xe2\0\x0eICC_PROFILE\0", b"\xff\xe0\0\x06JFIF"], ids=["profile", "JFIF"]
)
def test_a_jpeg_with_a_damaged_segment_is_read(tmp_path: Path, segment: bytes) -> None:
    Image.fromarray(SMOOTH).save(tmp_path / "good.jpg")
    good = (tmp_path / "good.jpg").read_bytes()
    path = tmp_path / "bad.jpg"
    path.write_bytes(good[:2] + segment + good[2:])
    assert open_as_seen(path).tobytes() == open_as_seen(tmp_path / "good.jpg").tobytes()
    same_everywhere(path, "seen")


# ---------------------------------------------------------------- many pixels


def test_a_large_jpeg_is_read_at_half_its_sides(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "phone.jpg"
    Image.fromarray(SMOOTH).resize((400, 300)).save(path, exif=exif(6), quality=95)
    full = np.asarray(open_as_seen(path).resize((150, 200), Image.Resampling.BOX), float)
    part = EvalDataset([path], preprocess(), [Box(30, 40, 250, 380)])
    cut = np.asarray(
        Image.fromarray(part.pixels(0)).resize((110, 170), Image.Resampling.BOX), float
    )
    monkeypatch.setenv("GUIE_MAX_MEGAPIXELS", "0.031")
    seen = open_as_seen(path)
    assert seen.size == (150, 200) and whole_px(seen) == (300, 400)
    assert np.abs(np.asarray(seen, float) - full).mean() < 2
    halved = EvalDataset([path], preprocess(), [Box(30, 40, 250, 380)]).pixels(0)
    assert np.abs(halved.astype(float) - cut).mean() < 2
    pixels, size = open_part(path, whole, lambda *_: False)
    assert size == (400, 300) and np.array_equal(pixels, np.asarray(seen))
    assert VERIFY.look(str(tmp_path), "seen", "phone.jpg")[:3] == (300, 400, "")
    assert open_as_host(path).size == (400, 300)  # as the scorer, whole


@pytest.mark.parametrize(("name", "limit"), [("a.jpg", "0.029"), ("a.png", "0.1")])
def test_more_pixels_are_refused_with_the_knob_that_allows_them(tmp_path, monkeypatch, name, limit):
    Image.new("RGB", (400, 300)).save(tmp_path / name)
    monkeypatch.setenv("GUIE_MAX_MEGAPIXELS", limit)
    for decode in DECODERS:
        with pytest.raises(UserError, match=f"400 x 300 pixels.* {limit} .*GUIE_MAX_MEGAPIXELS"):
            DECODERS[decode](tmp_path / name)
    monkeypatch.setenv("GUIE_MAX_MEGAPIXELS", "0.2")
    assert open_as_seen(tmp_path / name).size == (400, 300)
    for wrong in ("many", "0", "inf", "nan", "-1"):
        monkeypatch.setenv("GUIE_MAX_MEGAPIXELS", wrong)
        with pytest.raises(UserError, match=f"GUIE_MAX_MEGAPIXELS={wrong}: must be a number"):
            open_as_seen(tmp_path / name)


MEASURE = """
import resource, sys
from guie.data.dataset import EvalDataset
from guie.data.images import Region, open_part
from guie.data.preprocess import Preprocess
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before = peak()
open_part(sys.argv[1], lambda *_: Region(0, 0, 1, 1), lambda height, width: min(height, width) >= 400)
trained = peak() - before
EvalDataset([sys.argv[1]], Preprocess(224, [.5] * 3, [.5] * 3))[0]
print(trained, peak() - before)
assert trained < 150 and peak() - before < 2500
"""


@pytest.mark.slow
def test_a_photograph_of_a_scanner_needs_bounded_memory(tmp_path: Path) -> None:
    """In MiB: training below 150, embedding below 2,500, though 352 megapixels are 1 GiB as RGB."""
    path = tmp_path / "large.jpg"
    draw = f"from PIL import Image; Image.new('L', (17_873, 19_709), 90).save({str(path)!r})"
    for code in (draw, MEASURE):
        done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


JPEGS = {
    "4:2:0": {},
    "4:4:4": {"subsampling": 0},
    "4:2:2": {"subsampling": 1},
    "4:1:1": {"subsampling": "4:1:1"},
    "progressive": {"progressive": True},
    "restart markers": {"restart_marker_rows": 1},
    "RGB inside": {"keep_rgb": True},
    "grey": {"mode": "L"},
    "CMYK": {"mode": "CMYK"},
}


@pytest.mark.parametrize("kind", JPEGS)
def test_parts_have_the_pixels_that_pillow_decodes(tmp_path: Path, kind: str) -> None:
    path = jpeg(tmp_path / "a.jpg", **JPEGS[kind])
    for reduction in (1, 2, 4, 8):
        with Image.open(path) as image:
            image.draft(None, (image.width // reduction, image.height // reduction))
            expected = np.asarray(image.convert("RGB"))
        enough = -(-251 // reduction)
        pixels, size = open_part(path, whole, lambda height, _, e=enough: height >= e)
        assert size == (251, 333)
        assert np.array_equal(pixels, expected)


def test_a_jpeg_of_many_bytes_that_pillow_forgives_is_not_refused(tmp_path: Path) -> None:
    path = jpeg(tmp_path / "a.jpg")
    data = bytearray(path.read_bytes())
    data[3000:3020] = bytes(20)
    path.write_bytes(data)
    pixels, _ = open_part(path, whole, lambda *_: False)
    assert np.array_equal(pixels, np.asarray(open_as_seen(path)))
    path.write_bytes(data[:-200])
    with pytest.raises(UserError, match="truncated"):
        open_part(path, whole, lambda *_: False)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_part_is_of_the_picture_as_seen(tmp_path: Path, orientation: int) -> None:
    path = jpeg(tmp_path / "a.jpg", size=(960, 640), exif=exif(orientation))
    seen, part, sizes = open_as_seen(path), Region(0.1, 0.2, 0.6, 0.9), []

    def part_of(*size: int) -> Region:
        sizes.append(size)  # of the whole image, however it is decoded
        return part

    for reduction in (1, 2, 4, 8):
        rows = seen.height // 2 // reduction
        pixels, size = open_part(path, part_of, lambda height, _, rows=rows: height >= rows - 1)
        assert size == sizes.pop() == (seen.height, seen.width)
        assert abs(pixels.shape[0] - rows) <= 1
        box = (0.2 * seen.width, 0.1 * seen.height, 0.9 * seen.width, 0.6 * seen.height)
        expected = seen.resize(pixels.shape[1::-1], Image.Resampling.BOX, box)
        apart = np.abs(np.asarray(expected, dtype=float) - pixels)
        assert apart.mean() < 2.0
