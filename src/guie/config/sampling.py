"""The config of training batches: the sampling of domains, classes and images, and augmentation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, Field, NonNegativeFloat, PositiveFloat, TypeAdapter

from guie.config.durations import Steps
from guie.config.model import Fit, Fraction
from guie.config.types import ByName, Config, Fault, PositiveInt, Probability

Number = TypeVar("Number")
Temperature = Annotated[float, Field(gt=0, allow_inf_nan=True)]
Side = Annotated[float, Field(gt=0, le=1)]
Quality = Annotated[int, Field(ge=1, le=100)]


def _ordered(values: list[float]) -> list[float]:
    if values[0] > values[1]:
        raise ValueError("a range must have its lower end first")
    return values


Range = Annotated[list[Number], Field(min_length=2, max_length=2), AfterValidator(_ordered)]


class AugmentConfig(Config):
    """Random augmentation of training images: a crop, resized by the model's preprocessing, then distorted.

    In order: flip, brightness to saturation, auto, affine, hue, rgb_shift, blur, jpeg, erase.
    """

    # How a crop becomes a square in training; null: as in scoring. UnED squashes, then scores the central
    # square (its datasets.py); UniFEx does the reverse (transforms.py, custom_model.py)
    fit: Fit | None = None
    # Apply auto to jpeg before the resize, like the challenge's 1st (training_allexpro10k_s1.py) and 4th
    # place (utilities.py). Slower: JPEGs are decoded at full size
    full_size: bool = False
    crop_scale: Range[PositiveFloat] = [0.5, 1.0]  # of the area
    crop_ratio: Range[PositiveFloat] = [0.8, 1.25]  # width over height of a crop
    # What crop_ratio is relative to. image: the image's own ratio. absolute: width over height in pixels, as
    # in torchvision's RandomResizedCrop (PUMA, 5th place). square: the image's largest square, for crops
    # anywhere in the image, as in torchvision's Resize and RandomCrop (DREML; Vo and Hays)
    crop_ratio_of: Literal["image", "absolute", "square"] = "image"
    flip: Probability = 0.0  # of a horizontal flip
    auto: Literal["imagenet"] | None = None  # AutoAugment, ImageNet policy
    affine: Probability = 0.0  # of shift, zoom and rotation
    shift: Fraction = 0.0  # up to this fraction of the sides, either way
    zoom: Fraction = 0.0  # larger or smaller by up to this fraction
    rotate_deg: Annotated[float, Field(ge=0, le=180)] = 0.0  # up to so many degrees, either way
    affine_border: Literal["black", "mirror"] = "black"  # fill beyond the image
    color: NonNegativeFloat = 0.0  # strength of brightness, contrast and saturation jitter
    brightness: NonNegativeFloat | None = None  # null: `color`; also for the next two
    contrast: NonNegativeFloat | None = None  # around the mean grey of the image
    saturation: NonNegativeFloat | None = None  # around the greyscale image
    # Adds up to so many grey levels, either way; `brightness` multiplies. A brightness of .1 is 25.5 here for
    # Albumentations (2nd, 6th place; its contrast, around black, is our `brightness`) and TensorFlow (3rd)
    brightness_levels: Annotated[float, Field(ge=0, le=255)] = 0.0
    hue: Annotated[float, Field(ge=0, le=0.5)] = 0.0  # up to this fraction of the colour circle
    rgb_shift: Annotated[float, Field(ge=0, le=255)] = 0.0  # of each channel, in grey levels
    # Probability of brightness to saturation together, of hue, and of rgb_shift
    color_share: Probability = 0.8
    rgb_shift_share: Probability | None = None  # null: color_share; 6th place: .5
    gray: Probability = 0.0  # of conversion to greyscale
    blur: Probability = 0.0  # of a Gaussian blur
    jpeg: Probability = 0.0  # of an extra JPEG compression
    jpeg_quality: Range[Quality] = [50, 100]  # of the extra compression
    erase: Probability = 0.0  # of erased boxes in one colour
    erase_side: Range[Side] = [0.1, 0.4]  # of the image's sides
    erase_boxes: PositiveInt = 1  # 6th place: 8 (albumentations' default)
    erase_color: Literal["grey", "black"] = "grey"  # black: 1st, 2nd and 6th place
    # Probability of blending a view with one of another training image, by a weight from 0 to 1: a student
    # then imitates its teachers between images (Beyer et al., CVPR 2022, 3)
    mixup: Probability = 0.0

    @property
    def distorts(self) -> bool:
        """Whether any of auto to jpeg is on."""
        return any((self.auto, self.affine, self.hue, self.rgb_shift, self.blur, self.jpeg))

    @property
    def color_strengths(self) -> tuple[float, float, float]:
        """Strengths of brightness, contrast and saturation."""
        own = (self.brightness, self.contrast, self.saturation)
        brightness, contrast, saturation = (self.color if s is None else s for s in own)
        return brightness, contrast, saturation

    def faults(self) -> Iterator[Fault]:
        if self.affine and not (self.shift or self.zoom or self.rotate_deg):
            yield "affine", "shift, zoom and rotate_deg are all 0; raise one, or set affine to 0"
        if self.crop_ratio_of == "absolute" and self.fit != "squash":
            yield "crop_ratio_of", "absolute is of squashed crops; set fit: squash, or image here"
        if self.full_size and not self.distorts:
            yield "full_size", "applies to auto, affine, hue, rgb_shift, blur and jpeg; raise one"


class _Sampler(Config):
    images_per_class: PositiveInt | None = None  # K of a P x K batch; null: ignore classes
    # Classes of fewer than K images. repeat: a second view of an image may be its positive
    rare_classes: Literal["leave_out", "repeat"] = "leave_out"
    # Draw images by the manifest's weight column, if any; set it to false with images_per_class
    weights: bool = True


class _WithFactors(_Sampler):
    factors: dict[str, PositiveFloat] = {}  # multiplies a domain's frequency


class MixedConfig(_WithFactors):
    """Mix domains within a batch; by default every image is equally likely."""

    name: Literal["mixed"] = "mixed"
    temperature: Temperature = 1.0  # T of size ** (1 / T); .inf: equal domains

    @property
    def one_stream(self) -> bool:
        """Whether images are drawn from all domains at once, ignoring domains."""
        return self.temperature == 1 and not self.factors


class DatasetSizeConfig(_WithFactors):
    """Draw domains in proportion to their sizes (UnED's DS, 4.1)."""

    name: Literal["dataset_size"]
    temperature: Temperature = 1.0  # T of size ** (1 / T)


class BalancedConfig(_WithFactors):
    """Draw domains equally often, in random order."""

    name: Literal["balanced"]


class RoundRobinConfig(_Sampler):
    """Cycle through the domains (UnED's RR, 4.1)."""

    name: Literal["round_robin"]


class SpecialistStepsConfig(_WithFactors):
    """Draw domains in proportion to the steps at which their specialists peaked (UnED's SS, 4.1)."""

    name: Literal["specialist_steps"]
    steps: dict[str, PositiveInt] = Field(min_length=1)  # domain: steps of its specialist


class LossDrivenConfig(_WithFactors):
    """Draw domains in proportion to their recent loss (after UDON's dynamic sampler).

    It is that of each domain's teacher in task `online`, as in UDON, else the training loss. Losses of period
    n set the shares of period n + 2, so that a loader that reads ahead knows its shares.
    """

    name: Literal["loss_driven"]
    period: Steps = 1000  # steps between two updates of the shares
    memory: Annotated[float, Field(ge=0, lt=1)] = 0.0  # share of the old weight kept in the new one


class ShardsConfig(Config):
    """Shuffle the shards of an index, then the images within a window of shards, ignoring domains.

    Every image occurs once in an epoch. `data.manifest` must be an index of shards.
    """

    name: Literal["shards"]
    window: PositiveInt = 16  # shards whose images are shuffled together


DomainSamplerConfig = (
    MixedConfig
    | DatasetSizeConfig
    | BalancedConfig
    | RoundRobinConfig
    | SpecialistStepsConfig
    | LossDrivenConfig
)
SamplerConfig = Annotated[DomainSamplerConfig | ShardsConfig, Field(discriminator="name"), ByName]


def sampler_config(value: Any) -> SamplerConfig:
    """Return a sampler config from one, or from a YAML value. Raises pydantic's ValidationError."""
    return TypeAdapter(SamplerConfig).validate_python(value)
