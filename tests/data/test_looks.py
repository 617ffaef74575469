"""What a model sees of an image: parts, mirrors, resize modes; several looks in one row."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError
from torch.nn import functional

from guie.base.errors import UserError
from guie.config.ensemble import ViewConfig
from guie.data.preprocess import Inputs, Preprocess, ViewSpec

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


def picture(height: int = 50, width: int = 70) -> torch.Tensor:
    generator = torch.Generator().manual_seed(height + width)
    return torch.randint(0, 256, (1, 3, height, width), dtype=torch.uint8, generator=generator)


def seen(image: torch.Tensor, **view) -> torch.Tensor:
    return ViewSpec(32, MEAN, STD).through(ViewConfig(**view)).build()(image)


def test_a_part_is_cut_out_of_a_larger_square() -> None:
    larger = Preprocess(40, MEAN, STD)(picture())
    for at, (top, left) in {
        "center": (4, 4),
        "top_left": (0, 0),
        "top_right": (0, 8),
        "bottom_left": (8, 0),
        "bottom_right": (8, 8),
    }.items():
        expected = larger[:, :, top : top + 32, left : left + 32]
        assert torch.equal(seen(picture(), part=0.8, at=at), expected), at
    mirrored = larger[:, :, :32, :32].flip(3)
    assert torch.equal(seen(picture(), part=0.8, at="top_left", flip=True), mirrored)


@pytest.mark.parametrize("fit", ["squash", "pad", "crop"])
def test_a_mirror_image_is_that_of_the_picture(fit: str) -> None:
    expected = Preprocess(32, MEAN, STD, fit)(picture().flip(3))
    torch.testing.assert_close(seen(picture(), flip=True, fit=fit), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("resize", ["bicubic", "bilinear"])
@pytest.mark.parametrize("antialias", [False, True])
def test_resize_modes_are_torchs(resize: str, antialias: bool) -> None:
    image = picture(90, 70)
    resized = functional.interpolate(
        image.float(), (32, 32), mode=resize, antialias=antialias, align_corners=False
    ).clamp(0, 255)
    mean, std = (255 * torch.tensor(x).view(1, 3, 1, 1) for x in (MEAN, STD))
    found = seen(image, resize=resize, antialias=antialias)
    torch.testing.assert_close(found, (resized - mean) / std, atol=1e-4, rtol=0)


def test_views_of_views() -> None:
    look = ViewSpec(32, MEAN, STD).through(ViewConfig(flip=True, resize="bilinear", part=0.5))
    assert look.through(ViewConfig(flip=True, fit="pad")) == ViewSpec(
        32, MEAN, STD, "pad", "bilinear", part=0.5
    )
    with pytest.raises(UserError, match="part 0.9 applies to a member that already has part 0.5"):
        look.through(ViewConfig(part=0.9))


@pytest.mark.parametrize("size", [(1, 1), (1, 2000), (32, 32), (33, 31)])
def test_looks_stand_in_one_row_at_any_size(size: tuple[int, int]) -> None:
    looks = [ViewSpec(32, MEAN, STD), ViewSpec(16, MEAN, STD, "pad", part=0.9, flip=True)]
    row = Inputs(looks)(picture(*size))
    expected = [look.build()(picture(*size)).flatten(1) for look in looks]
    assert torch.equal(row, torch.cat(expected, dim=1))
    assert torch.equal(torch.jit.script(Inputs(looks))(picture(*size)), row)


def test_what_is_as_ever_is_known_as_ever() -> None:
    """Features on disk are known by the recipe: no new key where nothing is new."""
    recipe = ViewSpec(32, MEAN, STD).build().recipe()
    assert recipe.keys() == {"size_px", "fit", "mean", "std"}
    others = [seen_recipe(**view) for view in VIEWS]
    assert all(others.count(other) == 1 for other in [recipe, *others] if other != recipe)

    assert seen_recipe(fit="squash") == recipe
    black = ViewSpec(32, MEAN, STD, pad_color="black").build()
    assert black.recipe() == recipe  # a squashed image has no border


def test_a_view_pads_in_its_own_color_or_the_models() -> None:
    black = Preprocess(32, MEAN, STD, "pad", pad_color="black")(picture())
    assert torch.equal(seen(picture(), fit="pad", pad_color="black"), black)
    assert not torch.equal(seen(picture(), fit="pad"), black)
    of_model = ViewSpec(32, MEAN, STD, pad_color="black").through(ViewConfig(fit="pad"))
    assert torch.equal(of_model.build()(picture()), black)
    with pytest.raises(ValidationError, match="is for fit: pad; fit is crop"):
        ViewConfig(fit="crop", pad_color="black")


VIEWS = [
    {"flip": True},
    {"part": 0.9},
    {"fit": "pad"},
    {"fit": "pad", "pad_color": "black"},
    {"resize": "bilinear"},
    {"antialias": False},
]


def seen_recipe(**view) -> dict:
    return ViewSpec(32, MEAN, STD).through(ViewConfig(**view)).build().recipe()
