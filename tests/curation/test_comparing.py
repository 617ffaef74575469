"""Copies against look-alikes: pictures are aligned and compared, limits come from each domain's images."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image, ImageDraw, ImageOps

from guie.config.data import NearConfig
from guie.curation.duplicates import comparing
from guie.curation.duplicates.comparing import ALTERATIONS, Pixels
from guie.curation.duplicates.limits import (
    ALIKE,
    APART,
    CROSS,
    UNLIKE,
    Grade,
    fit_tail,
    graded,
    limits,
)
from guie.rows.comparison import (
    NONE,
    Placement,
    align,
    compare,
    cut,
    difference_picture,
    overlap,
    working,
)


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


@pytest.mark.parametrize("number", range(len(ALTERATIONS)))
def test_copies_hardly_differ_and_other_pictures_do(number):
    image = picture(number)
    assert apart(image, ALTERATIONS[number](image)) < 0.4
    assert apart(image, picture(number + 100)) > 1.0


@pytest.mark.parametrize(("share", "scale"), [(0.03, 1), (0.06, 2), (0.08, 0.6)])
def test_a_cut_is_found_where_it_was_made(share, scale):
    image = picture(1, (300, 240))
    part = cut(image, share)
    part = part.resize((round(scale * part.width), round(scale * part.height)))
    placement = align(working(image), working(part)).placement
    # what is at the edge of the part is `share` inside of the whole
    assert placement.scale_x == pytest.approx(1 / (1 - 2 * share), abs=0.01)
    assert placement.scale_y == pytest.approx(1 / (1 - 2 * share), abs=0.01)
    assert placement.shift_x == pytest.approx(0, abs=0.01)


def test_a_picture_of_hardly_any_contrast_is_placed_alike():
    whole = working(picture(1, (300, 240)))
    part = working(picture(1, (300, 240)).crop((0, 0, 285, 240)))
    faint = [
        one._replace(grey_VSS=0.05 * one.grey_VSS, coarse_VCC=0.05 * one.coarse_VCC)
        for one in (whole, part)
    ]
    assert align(*faint).placement == pytest.approx(align(whole, part).placement, abs=0.005)


def test_the_overlap_is_what_lies_within_both():
    assert overlap(Placement(), 10) == (slice(0, 10), slice(0, 10))
    rows, columns = overlap(Placement(1.25, 1.0, 0.0, 0.2), 10)
    assert rows == slice(0, 8) and columns == slice(1, 9)


def test_one_part_that_differs_is_enough():
    image = picture(2)
    changed = image.copy()
    ImageDraw.Draw(changed).rectangle((80, 60, 95, 75), fill="white")
    assert apart(image, changed) > 1.0


def test_colour_is_kept_and_light_is_not():
    image = picture(3)
    red, green, blue = image.split()
    assert apart(image, Image.merge("RGB", (blue, green, red))) > 0.6
    assert apart(image, image.point(lambda level: 0.75 * level + 40)) < 0.1


def test_a_border_does_not_count_and_a_mirror_image_when_it_is_asked_for():
    image = picture(4)
    assert apart(image, ImageOps.expand(image, 20, "white")) < 0.3
    assert apart(image, ImageOps.mirror(image)) > 1.0
    assert apart(image, ImageOps.mirror(image), mirror=True) < 0.1


ODD = [(1, 1), (1, 400), (300, 2), (17, 900), (3000, 2000)]


@pytest.mark.parametrize(("one", "other"), [*product(ODD, ODD[:3])])
def test_odd_sizes_and_plain_pictures_have_a_difference(one, other):
    found = apart(picture(5, (200, 100)).resize(one), Image.new("RGB", other, "gray"))
    assert 0 <= found <= NONE


def test_the_difference_is_drawn():
    one, other = working(picture(6)), working(picture(6).rotate(2))
    drawn = difference_picture(one, other, mirror=False)
    assert drawn.dtype == np.uint8 and drawn.std() > 5
    same = difference_picture(one, one, mirror=True)
    assert same.shape == (96, 96, 3) and np.abs(same.astype(int) - 128).max() <= 1


def test_workers_change_nothing(tmp_path, monkeypatch):
    names = [f"{n}.png" for n in range(6)]
    for n, name in enumerate(names):
        picture(n % 4, (60 + n, 50)).save(tmp_path / name)
    pairs = list(product(names, names))

    def measured(workers: int) -> np.ndarray:
        monkeypatch.setenv("GUIE_CACHE", str(tmp_path / f"cache of {workers}"))
        return Pixels(tmp_path, workers, of(names)).between(pairs, False)

    alone, shared = measured(1), measured(2)
    np.testing.assert_array_equal(alone, shared)
    assert alone.shape == (36,) and (alone[::7] == 0).all(), "each is itself"
    assert Pixels(tmp_path, 1, of(names)).altered(names).shape == (18,)


def of(names): return pd.DataFrame({"image_path": names, "pixels": names})


def thinning(count: int, exponent: float, seed: int = 0) -> np.ndarray:
    """Differences of look-alikes: so many below APART, as a power law has it."""
    return APART * np.random.default_rng(seed).random(count) ** (1 / exponent)


@pytest.mark.parametrize(("count", "exponent"), [(100, 3.0), (2000, 4.0), (20_000, 8.0)])
def test_a_tail_foretells_the_look_alikes_below_what_it_was_fitted_to(count, exponent):
    """On the safe side: of many draws, nearly all expect at least what is there on average."""
    reach, below = 0.9, 0.5
    true = count * (below / APART) ** exponent
    message = [fit_tail(thinning(count, exponent, seed), reach).below(below) for seed in range(200)]
    assert np.mean(np.array(message) >= true) > 0.75
    assert np.median(message) < 5 * true + 1


def test_copies_do_not_count_among_the_look_alikes_however_many():
    look_alikes = thinning(500, 4.0)
    look_alikes = look_alikes[look_alikes > 0.6]
    copies = np.random.default_rng(1).uniform(0, 0.5, 5000)
    alone, together = (fit_tail(d, 0.6) for d in (look_alikes, np.r_[look_alikes, copies]))
    assert alone == together


def test_too_few_look_alikes_borrow_the_exponent_and_are_never_none():
    tail = fit_tail(np.array([0.1, 1.5]), 0.5, pooled=5.0)
    assert tail.exponent == 5.0 and tail.total > 1
    assert fit_tail(np.empty(0), 0.5).below(0.5) > 0


def test_a_flat_tail_does_not_break():
    assert fit_tail(np.full(50, 0.51), 0.5).limit(1.0, 0.5) <= 0.5
    assert fit_tail(np.full(50, 2.0), 0.5).limit(0.01, 0.5) == 0.5


def pairs_of(domain: str, differences: np.ndarray, labels: str = UNLIKE) -> pd.DataFrame:
    return pd.DataFrame({"domain": domain, "labels": labels, "difference": differences})


def test_limits_keep_the_expected_share_of_false_finds():
    altered = {name: np.linspace(0, 0.4, 100) for name in ("dense", "sparse")}
    images = pd.Series({"dense": 1000, "sparse": 1000})
    pairs = pd.concat(
        [
            pairs_of("dense", thinning(20_000, 2.0)),
            pairs_of("sparse", np.array([0.1, 0.2, 1.9])),
            pairs_of("sparse", np.array([0.3]), ALIKE),
            pairs_of(CROSS, np.array([1.2, 1.4])),
        ]
    )
    config = NearConfig(false_sure=0.01, false_copies=0.1)
    found = limits(pairs, images, altered, config).set_index(["domain", "labels"])
    dense, sparse = found.loc[("dense", UNLIKE)], found.loc[("sparse", UNLIKE)]
    assert dense["sure_limit"] < dense["copy_limit"] < dense["reach"] == sparse["reach"]
    assert dense["false_sure"] == pytest.approx(10) and dense["false_copies"] == pytest.approx(100)
    assert dense["recall_sure"] == np.mean(altered["dense"] <= dense["sure_limit"]) < 0.5
    assert sparse["sure"] == 2 and sparse["recall_sure"] == 1
    assert found.loc[(CROSS, UNLIKE), "images"] == 2000
    assert dense["reach"] == pytest.approx(1.5 * 0.396)
    kept = graded(pairs, found.reset_index())
    assert kept["difference"].max() <= dense["reach"]
    of_dense = kept[kept["domain"] == "dense"].groupby("grade")["difference"].max()
    assert of_dense[Grade.SURE] <= dense["sure_limit"] < of_dense[Grade.COPY]
    assert of_dense[Grade.COPY] <= dense["copy_limit"] < of_dense[Grade.NEAR]


def test_no_pair_needs_no_limit():
    pairs = pairs_of("d", np.empty(0))
    found = limits(pairs, pd.Series({"d": 3}), {}, NearConfig())
    assert found.empty and graded(pairs, found).empty


@pytest.mark.parametrize(("difference", "reach"), [(0.0, 0.5), (7.0, 1.0)])
def test_what_copies_reach_is_bounded_both_ways(difference: float, reach: float) -> None:
    altered = {"d": np.full(9, difference)}
    found = limits(pairs_of("d", np.array([0.4])), pd.Series({"d": 3}), altered, NearConfig())
    assert found["reach"].tolist() == [reach]


def test_what_was_measured_is_kept_by_the_pictures_digests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GUIE_CACHE", str(tmp_path / "cache"))
    names = [f"{number}.png" for number in range(4)]
    random = np.random.default_rng(0)
    for name in names:
        drawn = random.integers(0, 256, (7, 7, 3), dtype=np.uint8)
        Image.fromarray(drawn).resize((70, 60), Image.Resampling.BICUBIC).save(tmp_path / name)
    pairs = [("0.png", "1.png"), ("1.png", "2.png")]

    def kept(digests: str) -> Pixels:
        return Pixels(tmp_path, 1, pd.DataFrame({"image_path": names, "pixels": [*digests]}))

    other = kept("efgh")
    expected = other.between(pairs, False), other.between(pairs, True), other.altered(names)
    assert (kept("abcd").between(pairs[:1], False) == expected[0][:1]).all()
    compared: list[tuple[str, str]] = []
    compare_files = comparing.compare_files
    monkeypatch.setattr(
        comparing,
        "compare_files",
        lambda *given: compared.append(given[2]) or compare_files(*given),
    )
    assert (kept("abcd").between(pairs, False) == expected[0]).all()
    assert compared == pairs[1:]
    assert (kept("abcd").between(pairs, True) == expected[1]).all()
    assert compared == [*pairs[1:], *pairs]
    for _ in range(2):
        assert (kept("abcd").altered(names) == expected[2]).all()
    compared.clear()
    kept("abXd").between(pairs, False)  # another picture under the same name
    assert compared == pairs[1:]
    assert kept("abcd").between([], False).shape == kept("abcd").altered([]).shape == (0,)
