"""The exported preprocessing against a slow twin in numpy, and against PIL; views of an image."""

import numpy as np
import pytest
import torch
from PIL import Image
from pydantic import ValidationError
from torch import Tensor
from torch.nn import functional
from torchvision import transforms

from guie.base.errors import UserError
from guie.config.ensemble import ViewConfig
from guie.data.preprocess import Inputs, Preprocess, ViewSpec

FITS = ("squash", "pad", "crop")
SIZE_PX = 32
SIZES = [(1, 1), (1, 2000), (2000, 1), (33, 900), (32, 32), (33, 31), (480, 320), (320, 481)]


def grey(fit: str, size_px: int = SIZE_PX) -> Preprocess:
    """The preprocessing without normalisation: its output is in 0..1."""
    return Preprocess(size_px, [0.0] * 3, [1.0] * 3, fit)


def noise(height: int, width: int) -> Tensor:
    generator = torch.Generator().manual_seed(height * 4096 + width)
    return torch.randint(0, 256, (1, 3, height, width), generator=generator, dtype=torch.uint8)


def photo(height: int, width: int) -> Image.Image:
    """Blurred noise and an edge: the spectrum of a photograph, roughly."""
    small = noise(max(2, height // 6), max(2, width // 6))[0].permute(1, 2, 0).numpy()
    image = np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))
    image = image.copy()
    image[: height // 2, : width // 2] //= 2
    return Image.fromarray(image)


def as_the_host(image: Image.Image) -> Tensor:
    """uint8 (1, 3, H, W) with the channels last in memory, as torchvision's PILToTensor."""
    return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1).unsqueeze(0)


def taps(source: int, target: int) -> np.ndarray:
    """(target, source) weights of the antialiased cubic kernel, a = -0.5, cut at the border."""
    stretch = max(source / target, 1.0)
    centres = (np.arange(target) + 0.5) * source / target
    x = np.abs(np.arange(source) + 0.5 - centres[:, None]) / stretch
    near, far = 1.5 * x**3 - 2.5 * x**2 + 1, -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2
    weights = np.where(x < 1, near, np.where(x < 2, far, 0))
    return weights / weights.sum(1, keepdims=True)


def resized(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """The slow twin: two matrix products in float64."""
    rows = np.einsum("hy,yxc->hxc", taps(image.shape[0], height), image)
    return np.einsum("wx,hxc->hwc", taps(image.shape[1], width), rows).clip(0, 255)


def twin(image: Image.Image, fit: str, border: float = 255.0) -> np.ndarray:
    """(S, S, 3) in grey levels."""
    array = np.asarray(image).astype(float)
    if fit == "squash":
        return resized(array, SIZE_PX, SIZE_PX)
    if fit == "crop":
        scale = SIZE_PX / min(image.size)
        strip = resized(array, int(image.height * scale + 1e-6), int(image.width * scale + 1e-6))
        cropped = transforms.CenterCrop(SIZE_PX)(torch.from_numpy(strip).permute(2, 0, 1))
        return cropped.permute(1, 2, 0).numpy()
    scale = SIZE_PX / max(image.size)
    width, height = (max(2, int(side * scale + 0.5)) for side in image.size)
    square = np.full((SIZE_PX, SIZE_PX, 3), border)
    top, left = (SIZE_PX - height) // 2, (SIZE_PX - width) // 2
    square[top : top + height, left : left + width] = resized(array, height, width)
    return square


def ours(image: Image.Image, fit: str, size_px: int = SIZE_PX) -> np.ndarray:
    """(S, S, 3) in grey levels."""
    return 255 * grey(fit, size_px)(as_the_host(image))[0].permute(1, 2, 0).numpy()


# Long strips are cropped first, which changes nothing if the strip has a whole number of pixels.
STRIPS = [(20, 100), (100, 20), (10, 60)]


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("size", [*SIZES, *STRIPS], ids=str)
def test_equals_the_slow_twin(fit: str, size: tuple[int, int]) -> None:
    if fit == "crop" and max(size) > 6 * min(size):
        pytest.skip("the twin would make a strip thousands of pixels long")
    image = photo(*size)
    np.testing.assert_allclose(ours(image, fit), twin(image, fit), atol=0.01)
    if fit == "pad":
        black = Preprocess(SIZE_PX, [0.0] * 3, [1.0] * 3, "pad", pad_color="black")
        found = black(as_the_host(image))
        assert torch.equal(torch.jit.script(black)(as_the_host(image)), found)
        expected = torch.from_numpy(twin(image, "pad", border=0.0)).permute(2, 0, 1)[None]
        torch.testing.assert_close(255 * found, expected.float(), atol=0.01, rtol=0)


@pytest.mark.parametrize("fit", FITS)
def test_scripted_is_eager_to_the_bit_at_every_size(fit: str) -> None:
    eager = Preprocess(SIZE_PX, [0.5] * 3, [0.25] * 3, fit)
    scripted = torch.jit.script(eager)
    for height, width in [*SIZES, (5, 7), (32, 400), (101, 20)]:
        images = noise(height, width)
        assert eager(images).shape == (1, 3, SIZE_PX, SIZE_PX)
        assert torch.equal(eager(images), scripted(images)), (height, width)


def test_crop_of_a_strip_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, resize = [], Preprocess._resize
    monkeypatch.setattr(
        Preprocess, "_resize", lambda s, x, h, w: asked.append((h, w)) or resize(s, x, h, w)
    )
    grey("crop")(noise(1, 200_001))
    assert asked == [(SIZE_PX, 5 * SIZE_PX)]


@pytest.mark.parametrize(
    "arguments",
    [
        (1, [0.5] * 3, [0.5] * 3),
        (32, [0.5], [0.5] * 3),
        (32, [0.5] * 3, [0.5, 0.5, 0.0]),
        (32, [0.5] * 3, [0.5] * 3, "stretch"),
        (32, [0.5] * 3, [0.5] * 3, "pad", "bicubic", True, "grey"),
    ],
)
def test_impossible_settings_are_refused(arguments: tuple) -> None:
    with pytest.raises(ValueError, match="must be"):
        Preprocess(*arguments)
    for images in (torch.zeros(1, 1, 4, 4), torch.zeros(3, 4, 4)):
        with pytest.raises(ValueError, match="B, 3, H, W"):
            grey("squash")(images)


MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
PICTURE = noise(50, 70)


def seen(image: torch.Tensor, **view) -> torch.Tensor:
    return ViewSpec(32, MEAN, STD).through(ViewConfig(**view)).build()(image)


def test_a_part_is_cut_out_of_a_larger_square() -> None:
    larger = Preprocess(40, MEAN, STD)(PICTURE)
    for at, (top, left) in {
        "center": (4, 4),
        "top_left": (0, 0),
        "top_right": (0, 8),
        "bottom_left": (8, 0),
        "bottom_right": (8, 8),
    }.items():
        expected = larger[:, :, top : top + 32, left : left + 32]
        assert torch.equal(seen(PICTURE, part=0.8, at=at), expected), at
    mirrored = larger[:, :, :32, :32].flip(3)
    assert torch.equal(seen(PICTURE, part=0.8, at="top_left", flip=True), mirrored)


@pytest.mark.parametrize("resize", ["bicubic", "bilinear"])
@pytest.mark.parametrize("antialias", [False, True])
def test_resize_modes_are_torchs(resize: str, antialias: bool) -> None:
    image = noise(90, 70)
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
def test_views_of_an_ensemble_are_one_row_at_any_size(size: tuple[int, int]) -> None:
    views = [ViewSpec(32, MEAN, STD), ViewSpec(16, MEAN, STD, "pad", part=0.9, flip=True)]
    row = Inputs(views)(noise(*size))
    expected = [view.build()(noise(*size)).flatten(1) for view in views]
    assert torch.equal(row, torch.cat(expected, dim=1))
    assert torch.equal(torch.jit.script(Inputs(views))(noise(*size)), row)


def recipe(**view) -> dict:
    return ViewSpec(32, MEAN, STD).through(ViewConfig(**view)).build().recipe()


def test_recipes_of_different_views_differ() -> None:
    """Features on disk are keyed by the recipe: no new key where nothing is new."""
    assert recipe(fit="squash").keys() == {"size_px", "fit", "mean", "std"}
    views = [{}, {"flip": True}, {"part": 0.9}, {"fit": "pad"}, {"resize": "bilinear"}]
    views += [{"fit": "pad", "pad_color": "black"}, {"antialias": False}]
    recipes = [recipe(**view) for view in views]
    assert all(recipes.count(one) == 1 for one in recipes)
    squashed = ViewSpec(32, MEAN, STD, pad_color="black")
    assert squashed.build().recipe() == recipes[0]  # it has no border


def test_a_view_pads_in_its_own_color_or_the_models() -> None:
    black = Preprocess(32, MEAN, STD, "pad", pad_color="black")(PICTURE)
    assert torch.equal(seen(PICTURE, fit="pad", pad_color="black"), black)
    of_model = ViewSpec(32, MEAN, STD, pad_color="black").through(ViewConfig(fit="pad"))
    assert torch.equal(of_model.build()(PICTURE), black)
    with pytest.raises(ValidationError, match="is for fit: pad; fit is crop"):
        ViewConfig(fit="crop", pad_color="black")
