"""Copies against look-alikes: pictures are hashed, aligned and compared, and the results are stored."""

from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image, ImageDraw, ImageOps

from guie.curation.duplicates import differences
from guie.curation.duplicates.differences import ALTERATIONS, EACH, PixelDifferences
from guie.rows.comparison import (
    NONE,
    Placement,
    align,
    compare,
    content,
    cut,
    working,
)
from guie.rows.fingerprints import hash_bytes, perceptual_hashes

ODD = [(1, 1), (1, 400), (300, 2), (17, 900), (3000, 2000)]


def picture(seed: int, size: tuple[int, int] = (180, 140)) -> Image.Image:
    """Smooth colours with some shapes on them, like no other."""
    rng = np.random.default_rng(seed)
    image = Image.fromarray(rng.integers(60, 200, (5, 6, 3), dtype=np.uint8))
    image = image.resize(size, Image.Resampling.BICUBIC)
    pen = ImageDraw.Draw(image)
    for _ in range(6):
        x, y = rng.integers(0, size[0] - 30), rng.integers(0, size[1] - 30)
        colour = tuple(int(level) for level in rng.integers(30, 220, 3))
        pen.ellipse((x, y, x + rng.integers(12, 40), y + rng.integers(12, 40)), fill=colour)
    return image


def apart(one: Image.Image, other: Image.Image, mirror: bool = False) -> float:
    return compare(working(one), working(other), mirror)


def test_hashes_of_borders_mirror_images_and_odd_sizes():
    image = picture(0)
    hashes = perceptual_hashes(image)
    assert perceptual_hashes(ImageOps.mirror(image)).mirrored == hashes.content != hashes.mirrored
    for size in ((1, 1), (1, 500), (2, 2), (31, 7)):
        noise = Image.effect_noise(size, 80).convert("RGB")
        assert all(len(value) in (0, 16) for value in perceptual_hashes(noise))
    assert set(perceptual_hashes(Image.new("RGB", (50, 40), "red"))) == {""}, "no structure"
    speck = Image.new("RGB", (300, 300), "white")
    speck.putpixel((150, 150), (0, 0, 0))
    assert content(speck).size == (300, 300)
    for colour in ("white", "black", (90, 120, 60)):
        framed = ImageOps.expand(ImageOps.expand(image, 9, "white"), 7, colour)
        assert (np.abs(np.subtract(content(framed).size, image.size)) <= 2).all()
        pair = perceptual_hashes(framed).content, perceptual_hashes(content(image)).whole
        one, other = hash_bytes(pair)
        assert np.unpackbits(one ^ other).sum() <= 6


@pytest.mark.parametrize("number", range(len(ALTERATIONS)))
def test_copies_hardly_differ_and_other_pictures_do(number):
    image = picture(number)
    assert apart(image, ALTERATIONS[number](image)) < 0.4
    assert apart(image, picture(number + 100)) > 1.0


@pytest.mark.parametrize(("share", "scale"), [(0.03, 1), (0.06, 2), (0.08, 0.6)])
def test_a_cut_is_found_where_it_was_made_whatever_the_contrast(share, scale):
    image = picture(1, (300, 240))
    part = cut(image, share)
    part = part.resize((round(scale * part.width), round(scale * part.height)))
    both = working(image), working(part)
    # The edge of the part is `share` inside of the whole.
    inside = 1 / (1 - 2 * share)
    expected = Placement(inside, inside, 0, 0)
    assert align(*both).placement == pytest.approx(expected, abs=0.01)
    faint = (
        own._replace(grey_VSS=0.05 * own.grey_VSS, coarse_VCC=0.05 * own.coarse_VCC) for own in both
    )
    assert align(*faint).placement == pytest.approx(expected, abs=0.015)


def test_one_part_or_colour_that_differs_is_enough_and_light_a_border_or_a_mirror_is_not():
    image = picture(2)
    changed = image.copy()
    ImageDraw.Draw(changed).rectangle((80, 60, 95, 75), fill="white")
    assert apart(image, changed) > 1.0
    image = picture(3)
    red, green, blue = image.split()
    assert apart(image, Image.merge("RGB", (blue, green, red))) > 0.6
    assert apart(image, image.point(lambda level: 0.75 * level + 40)) < 0.1
    image = picture(4)
    assert apart(image, ImageOps.expand(image, 20, "white")) < 0.3
    assert apart(image, ImageOps.mirror(image)) > 1.0
    assert apart(image, ImageOps.mirror(image), mirror=True) < 0.1


@pytest.mark.parametrize(("one", "other"), [*product(ODD, ODD[:3])])
def test_odd_sizes_and_plain_pictures_have_a_difference(one, other):
    found = apart(picture(5, (200, 100)).resize(one), Image.new("RGB", other, "gray"))
    assert 0 <= found <= NONE


NAMES = [f"{number}.png" for number in range(6)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GUIE_CACHE", str(tmp_path / "cache"))
    for number, name in enumerate(NAMES):
        picture(number % 4, (60 + number, 50)).save(tmp_path / name)
    return tmp_path


def pixels(folder: Path, digests: str = "abcdef", workers: int = 1) -> PixelDifferences:
    return PixelDifferences(
        folder, workers, pd.DataFrame({"image_path": NAMES, "pixels": [*digests]})
    )


def test_every_alteration_is_used_alike_and_workers_change_nothing(folder, monkeypatch):
    assert 3 * EACH == len(ALTERATIONS)
    # Image 0 has the first three, and so on
    images = [image for n in range(3) for image in [picture(n, (60 + n, 50))] * EACH]
    expected = [
        apart(image, alter(image)) for image, alter in zip(images, ALTERATIONS, strict=True)
    ]
    assert pixels(folder).altered(NAMES[:3]) == pytest.approx(expected, abs=1e-4)
    pairs = list(product(NAMES, NAMES))
    alone = pixels(folder).between(pairs, False)
    monkeypatch.setenv("GUIE_CACHE", str(folder / "cache of two"))
    np.testing.assert_array_equal(alone, pixels(folder, workers=2).between(pairs, False))
    assert alone.shape == (36,) and (alone[::7] == 0).all() and alone[1] > 0.5


def test_measures_are_stored_by_the_pictures_digests(folder, monkeypatch) -> None:
    pairs, other = list(zip(NAMES[:2], NAMES[1:3], strict=True)), pixels(folder, "ghijkl")
    plain, mirrored = other.between(pairs, False), other.between(pairs, True)
    assert (pixels(folder).between(pairs[:1], False) == plain[:1]).all()
    compared: list[bool] = []
    between = differences.compare
    monkeypatch.setattr(
        differences, "compare", lambda *given: compared.append(given[2]) or between(*given)
    )
    assert (pixels(folder).between(pairs, False) == plain).all()
    assert (pixels(folder).between(pairs, True) == mirrored).all()
    assert compared == [False, True, True], "of a known pair and of mirror images there are others"
    compared.clear()
    pixels(folder, "abXdef").between(pairs, False)  # another picture under the same name
    assert compared == [False]
    assert pixels(folder).between([], False).shape == pixels(folder).altered([]).shape == (0,)
