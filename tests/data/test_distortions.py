"""Distortions: pure functions of their seed, on images of any size, each what its key says."""

import copy
import random

import albumentations as A
import cv2
import numpy as np
import pytest
import torch
from PIL import Image
from pydantic import ValidationError
from torchvision.transforms import AutoAugment, RandomCrop, RandomResizedCrop
from torchvision.transforms.v2 import functional as colours

from guie.config.sampling import AugmentConfig
from guie.data.augmentation import Augment, Distortions, recoloured

MOVES = {"affine": 1.0, "shift": 0.2, "zoom": 0.2, "rotate_deg": 30.0}
EACH = {
    "auto": {"auto": "imagenet"},
    "affine": MOVES,
    "mirrored": {**MOVES, "affine_border": "mirror"},
    "hue": {"hue": 0.3, "color_share": 1.0},
    "rgb_shift": {"rgb_shift": 30.0, "color_share": 1.0},
    "blur": {"blur": 1.0},
    "jpeg": {"jpeg": 1.0, "jpeg_quality": [5, 20]},
}
ALL = {
    **{"auto": "imagenet", **MOVES, "affine": 0.5, "hue": 0.1, "rgb_shift": 9.0},
    **{"blur": 0.5, "jpeg": 0.5, "color": 0.3, "gray": 0.3, "flip": 0.5, "erase": 0.5},
}
SIZES = [(1, 1), (1, 2000), (2000, 1), (2, 2), (7, 5)]


def photo(height: int = 64, width: int = 64, seed: int = 0) -> np.ndarray:
    """Smooth coloured patches."""
    small = np.random.default_rng(seed).integers(30, 226, (4, 4, 3)).astype(np.uint8)
    return cv2.resize(small, (width, height), interpolation=cv2.INTER_LINEAR)


@pytest.mark.parametrize("name", EACH)
@pytest.mark.filterwarnings("error")
def test_any_size_and_grey_images(name: str) -> None:
    distort = Distortions(AugmentConfig(**EACH[name]))
    for size in SIZES:
        colour = photo(*size)
        for image in (colour, np.repeat(colour[..., :1], 3, axis=2)):
            kept = image.copy()
            for seed in range(25):
                out = distort(image, seed)
                assert (out.shape, out.dtype) == (image.shape, np.uint8), size
            assert (image == kept).all(), size


@pytest.mark.parametrize("name", [*EACH, "all"])
def test_the_seed_alone_decides(name: str) -> None:
    config = AugmentConfig(**EACH.get(name, ALL))
    first, second = Augment(config), copy.deepcopy(Augment(config))
    image = photo()
    expected = [first(image, seed) for seed in range(20)]
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    for seed in reversed(range(20)):
        assert (second(image, seed) == expected[seed]).all()
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    assert len({out.tobytes() for out in expected}) > 5 and before == after
    assert (Augment(AugmentConfig())(image, 0) == image).all()


def test_settings_are_those_of_albumentations() -> None:
    """In one order: moved, then the hue, channels, blur and compression."""
    config = AugmentConfig(
        **{"auto": "imagenet", "affine": 0.5, "shift": 0.1, "zoom": 0.3, "rotate_deg": 20.0},
        **{"affine_border": "mirror", "hue": 0.1, "color_share": 0.7, "rgb_shift": 5.0},
        **{"rgb_shift_share": 0.2, "blur": 0.4, "jpeg": 0.6, "jpeg_quality": [5, 20]},
    )
    steps = {type(step).__name__: step for step in Distortions(config).compose.transforms}
    order = ["Affine", "ColorJitter", "RGBShift", "GaussianBlur", "ImageCompression"]
    assert list(steps)[1:] == order
    assert [step.p for step in steps.values()] == [1.0, 0.5, 0.7, 0.2, 0.4, 0.6]
    affine = steps["Affine"]
    assert affine.scale == {"x": (0.7, 1.3), "y": (0.7, 1.3)} and affine.keep_ratio
    assert affine.translate_percent == {"x": (-0.1, 0.1), "y": (-0.1, 0.1)}
    assert affine.rotate == (-20.0, 20.0) and affine.border_mode == cv2.BORDER_REFLECT
    colour, shift = steps["ColorJitter"], steps["RGBShift"]
    assert colour.hue == (-0.1, 0.1) and colour.brightness == colour.saturation == (1.0, 1.0)
    assert shift.r_shift_limit == shift.g_shift_limit == shift.b_shift_limit == (-5.0, 5.0)
    assert steps["ImageCompression"].quality_range == (5, 20)
    moved = Distortions(AugmentConfig(**MOVES))(np.full((32, 32, 3), 200, np.uint8), 0)
    assert (moved == 0).any(), "black at the border"


def test_auto_is_torchvisions() -> None:
    """By its own draws, our wrapper gives what torchvision gives."""
    ours = Distortions(AugmentConfig(auto="imagenet"))
    (transform,) = ours.compose.transforms
    theirs = AutoAugment()
    image = photo()
    for seed in range(40):
        out = ours(image, seed)
        draw = random.Random(seed)
        draw.random()  # whether it strikes
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(draw.getrandbits(63))
            expected = theirs(Image.fromarray(image))
        assert (out == np.asarray(expected)).all(), transform


def test_erased_boxes_have_the_sides_number_and_colour_that_are_set() -> None:
    """One of a quarter of the sides; eight black ones of 8 px at 224, the challenge's 6th place."""
    augment = Augment(AugmentConfig(erase=1.0, erase_side=[0.25, 0.25]))
    for seed in range(30):
        rows, columns = np.nonzero((augment(np.zeros((80, 40, 3), np.uint8), seed) == 128).all(-1))
        assert abs(np.ptp(rows) - 19) <= 1 and abs(np.ptp(columns) - 9) <= 1
    white = np.full((224, 224, 3), 255, np.uint8)
    side = [8 / 224, 8 / 224]
    augment = Augment(AugmentConfig(erase=1.0, erase_side=side, erase_boxes=8, erase_color="black"))
    gone = [(augment(white, seed) == 0).all(-1).sum() for seed in range(30)]
    assert (white == 255).all()
    assert max(gone) == 8 * 64 and min(gone) > 4 * 64


def test_brightness_in_grey_levels_is_albumentations() -> None:
    """Its brightness adds, its contrast multiplies about black: 2nd and 6th place of the challenge."""
    image = photo()
    theirs = A.RandomBrightnessContrast((0.1, 0.1), (0.05, 0.05), brightness_by_max=True, p=1.0)
    expected = theirs(image=image)["image"].astype(int)
    assert np.abs(recoloured(image, 1.05, 1.0, 1.0, 25.5).astype(int) - expected).max() <= 1
    augment = Augment(AugmentConfig(brightness_levels=25.5, color_share=1.0))
    shifts = [int(augment(image, seed)[0, 0, 0]) - int(image[0, 0, 0]) for seed in range(300)]
    assert -26 <= min(shifts) < -23 and 23 < max(shifts) <= 26 and abs(np.mean(shifts)) < 3


def test_random_parts_keep_their_promises() -> None:
    augment = Augment(AugmentConfig(crop_scale=[0.25, 0.5], crop_ratio=[0.5, 2.0]))
    parts = np.array([augment.part(seed, 375, 500) for seed in range(500)])
    sides = parts[:, 2:] - parts[:, :2]
    areas, ratios = sides.prod(axis=1), sides[:, 1] / sides[:, 0]
    assert 0.25 <= areas.min() < 0.27 and 0.48 < areas.max() <= 0.5 + 1e-9
    assert 0.5 <= ratios.min() < 0.55 and 1.9 < ratios.max() <= 2 + 1e-9
    assert (parts[:, :2] >= 0).all() and (parts[:, 2:] <= 1 + 1e-9).all()
    assert np.abs((parts[:, :2] / (1 - sides)).mean(axis=0) - 0.5).max() < 0.05


PUMA = {"crop_scale": [0.2, 1.0], "crop_ratio": [3 / 4, 4 / 3]}  # torchvision's ratio
ABSOLUTE = AugmentConfig(**PUMA, crop_ratio_of="absolute", fit="squash")


def drawn(config: AugmentConfig, height: int, width: int, draws: int) -> np.ndarray:
    """(N, 4) crops in pixels: top, left, height, width."""
    augment = Augment(config)
    parts = np.array([augment.part(seed, height, width) for seed in range(draws)])
    ends = parts * [height, width, height, width]
    return np.hstack([ends[:, :2], ends[:, 2:] - ends[:, :2]])


@pytest.mark.parametrize("size", [(375, 500), (600, 300), (100, 100)])
def test_absolute_ratios_draw_the_boxes_of_torchvision(size: tuple[int, int]) -> None:
    """4,000 boxes have the same mean and deviation of area, log aspect ratio and place."""
    torch.manual_seed(0)
    image = torch.empty(3, *size)
    theirs = [RandomResizedCrop.get_params(image, *PUMA.values()) for _ in range(4000)]
    ours = drawn(ABSOLUTE, *size, 4000)

    def measured(boxes: np.ndarray) -> np.ndarray:
        area, aspect = boxes[:, 2] * boxes[:, 3] / np.prod(size), boxes[:, 3] / boxes[:, 2]
        values = np.vstack([area, np.log(aspect), boxes[:, 0] / size[0], boxes[:, 1] / size[1]])
        return np.hstack([values.mean(axis=1), values.std(axis=1)])

    assert np.abs(measured(ours) - measured(np.array(theirs, float))).max() < 0.015
    relative = drawn(AugmentConfig(**PUMA), *size, 4000)  # fits every image, of another ratio
    apart = np.abs(measured(relative) - measured(np.array(theirs, float)))[1]
    assert (apart > 0.1) == (size != (100, 100))


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((100, 1000), (0, 433, 100, 133)),
        ((1000, 100), (433, 0, 133, 100)),
        ((90, 100), (0, 0, 90, 100)),
        ((1, 1), (0, 0, 1, 1)),
    ],
)
def test_a_box_that_never_fits_is_the_largest_in_the_middle(size, expected):
    """As torchvision's, to the pixel; an area of twice the image's never fits."""
    config = ABSOLUTE.model_copy(update={"crop_scale": [2.0, 2.0]})
    (box,) = drawn(config, *size, 1).round().astype(int).tolist()
    theirs = RandomResizedCrop.get_params(torch.empty(3, *size), [2.0, 2.0], PUMA["crop_ratio"])
    assert tuple(box) == tuple(theirs) == expected


@pytest.mark.parametrize("size", [(375, 500), (600, 300), (100, 100)])
def test_crops_of_the_square_are_those_of_a_resize_and_a_random_crop(size: tuple[int, int]) -> None:
    """DREML's: the shorter side to 281 px, then 256 px from anywhere, as fractions of the sides."""
    config = AugmentConfig(
        crop_scale=[0.83, 0.83], crop_ratio=[1.0, 1.0], crop_ratio_of="square", fit="crop"
    )
    resized = [int(281 * side / min(size)) for side in size]
    torch.manual_seed(0)
    image = torch.empty(3, *resized)
    boxes = [RandomCrop.get_params(image, (256, 256)) for _ in range(4000)]
    theirs, ours = np.array(boxes) / (resized * 2), drawn(config, *size, 4000) / (size * 2)
    assert np.abs(ours.mean(axis=0) - theirs.mean(axis=0)).max() < 0.015
    assert np.abs(ours.std(axis=0) - theirs.std(axis=0)).max() < 0.01
    assert np.abs(ours.max(axis=0) - theirs.max(axis=0)).max() < 0.01
    assert ours.min() >= 0


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"crop_ratio_of": "absolute"}, "fit: squash"),
        ({"crop_ratio_of": "absolute", "fit": "pad"}, "fit: squash"),
        ({"full_size": True, "flip": 0.5, "erase": 0.5}, "full_size: applies to auto, affine"),
    ],
)
def test_settings_that_exclude_each_other_are_refused(settings: dict, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        AugmentConfig(**settings)


@pytest.mark.parametrize(
    "factors", [(1.2, 1.0, 1.0), (1.0, 0.8, 1.0), (1.0, 1.0, 0.0), (1.1, 0.9, 1.3)]
)
def test_colours_change_as_torchvisions_do(factors: tuple[float, float, float]) -> None:
    """Within the rounding, where nothing is clipped on the way."""
    image = np.random.default_rng(0).integers(70, 180, (9, 13, 3), dtype=np.uint8)
    expected = torch.from_numpy(image).permute(2, 0, 1) / 255
    expected = colours.adjust_brightness(expected, factors[0])
    expected = colours.adjust_contrast(expected, factors[1])
    expected = 255 * colours.adjust_saturation(expected, factors[2]).permute(1, 2, 0).numpy()
    assert np.abs(recoloured(image, *factors) - expected).max() < 0.7


@pytest.mark.parametrize(
    ("settings", "share"),
    [
        ({"flip": 0.25}, 0.25),
        ({"gray": 0.25}, 0.25),
        ({"erase": 0.25}, 0.25),
        ({"color": 0.3}, 0.8),
        ({"color": 0.3, "contrast": 0.0, "brightness": 0.0, "saturation": 0.0}, 0.0),
        ({"rgb_shift": 30.0, "color_share": 1.0, "rgb_shift_share": 0.5}, 0.5),
        ({"brightness": 0.5, "color_share": 0.5}, 0.5),
        ({"brightness": 0.5, "color_share": 0.0}, 0.0),
    ],
    ids=str,
)
def test_every_change_of_pixels_happens_as_often_as_set(settings: dict, share: float) -> None:
    image = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    views = [Augment(AugmentConfig(**settings))(image, seed) for seed in range(400)]
    changed = [view for view in views if not np.array_equal(view, image)]
    assert len(changed) / 400 == pytest.approx(share, abs=0.06)  # three standard deviations
    for view in changed:
        if "flip" in settings:
            assert np.array_equal(view, image[:, ::-1])
        if "gray" in settings:
            assert (view == view[..., :1]).all()
        if "erase" in settings:
            assert 0.005 < (view == 128).all(axis=2).mean() < 0.17
