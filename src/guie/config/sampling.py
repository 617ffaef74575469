"""The config of what a training step sees: which domains, classes and images, and how a view of an image
is drawn.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PositiveFloat,
    TypeAdapter,
    model_validator,
)

from guie.config.base import Config, ConfigError, PositiveInt
from guie.config.durations import Steps
from guie.config.model import Fit, Fraction

Number = TypeVar("Number")
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Probability = Annotated[float, Field(ge=0, le=1)]
Side = Annotated[float, Field(gt=0, le=1)]
Quality = Annotated[int, Field(ge=1, le=100)]


def _ordered(values: list[float]) -> list[float]:
    if values[0] > values[1]:
        raise ValueError("a range has its lower end first")
    return values


Range = Annotated[list[Number], Field(min_length=2, max_length=2), AfterValidator(_ordered)]


class AugmentConfig(Config):
    """Random views of a training image.

    A part of it is resized by the model's own preprocessing, and then distorted, in the order of
    flip, brightness to saturation, auto, affine, hue, rgb_shift, blur, jpeg, erase; each by a chance
    of its own. What `full_size` says comes before the resize.
    """

    # How a part becomes a square in training; null: as in scoring. For recipes that do not train on
    # what they score: UnED squashes, then scores the central square (datasets.py there); UniFEx does
    # it the other way round (transforms.py, custom_model.py)
    fit: Fit | None = None
    # auto to jpeg before the resize, on all pixels of the part: as the challenge's 1st
    # (training_allexpro10k_s1.py) and 4th place (utilities.py) did. Slower: no JPEG is decoded small
    full_size: bool = False

    crop_scale: Range[Positive] = [0.5, 1.0]  # of the area
    crop_ratio: Range[Positive] = [0.8, 1.25]
    flip: Probability = 0.0  # of a left-right flip
    auto: Literal["imagenet"] | None = None  # AutoAugment, by the policy learned on ImageNet

    affine: Probability = 0.0  # of moving, zooming and turning, by up to
    shift: Fraction = 0.0  # so much of the sides, either way
    zoom: Fraction = 0.0  # so much larger or smaller, as a fraction
    rotate_deg: Annotated[float, Field(ge=0, le=180)] = 0.0  # so many degrees, either way
    affine_border: Literal["black", "mirror"] = "black"  # what appears from beyond the image

    color: NonNegative = 0.0  # strength of brightness, contrast and saturation jitter
    brightness: NonNegative | None = None  # null: `color`, as for the next two
    contrast: NonNegative | None = None  # about the mean grey of the image
    saturation: NonNegative | None = None
    # Up to so many grey levels added, either way, where `brightness` multiplies. Albumentations'
    # brightness of .1 is 25.5 here (2nd and 6th place), and its contrast, which is about black, our
    # `brightness`; TensorFlow's brightness of .1 is 25.5 too (3rd place)
    brightness_levels: Annotated[float, Field(ge=0, le=255)] = 0.0
    hue: Annotated[float, Field(ge=0, le=0.5)] = 0.0  # by up to so much of the colour circle
    rgb_shift: Annotated[float, Field(ge=0, le=255)] = 0.0  # of each channel, in grey levels
    # Of brightness, contrast and saturation together, of hue, and of rgb_shift
    color_share: Probability = 0.8
    rgb_shift_share: Probability | None = None  # null: color_share; .5 in the 6th place's
    gray: Probability = 0.0  # of losing all colour

    blur: Probability = 0.0
    jpeg: Probability = 0.0  # of a compression more
    jpeg_quality: Range[Quality] = [50, 100]
    erase: Probability = 0.0  # of boxes in one colour
    erase_side: Range[Side] = [0.1, 0.4]  # of the image's sides
    erase_boxes: PositiveInt = 1  # 8 in the 6th place's (albumentations' default)
    erase_color: Literal["grey", "black"] = "grey"  # black: the 1st, 2nd and 6th place's

    # Of views that are blended with one of another training image, by a weight drawn from 0 to 1, for a
    # student to copy its teachers where there are no images (Beyer et al., Knowledge distillation: A good
    # teacher is patient and consistent, CVPR 2022, 3)
    mixup: Probability = 0.0

    @property
    def distorts(self) -> bool:
        """Whether there is anything of auto to jpeg."""
        return bool(
            self.auto or self.affine or self.hue or self.rgb_shift or self.blur or self.jpeg
        )

    @property
    def color_strengths(self) -> tuple[float, float, float]:
        """Of brightness, contrast and saturation."""
        own = (self.brightness, self.contrast, self.saturation)
        brightness, contrast, saturation = (self.color if s is None else s for s in own)
        return brightness, contrast, saturation

    @model_validator(mode="after")
    def _affine_does_something(self) -> AugmentConfig:
        if self.affine and not (self.shift or self.zoom or self.rotate_deg):
            raise ConfigError(
                "affine", "shift, zoom and rotate_deg are all 0; raise one, or set affine to 0"
            )
        return self

    @model_validator(mode="after")
    def _full_size_does_something(self) -> AugmentConfig:
        if self.full_size and not self.distorts:
            raise ConfigError(
                "full_size",
                "is of auto, affine, hue, rgb_shift, blur and jpeg, which are all off;"
                " raise one, or set full_size to false",
            )
        return self


class _Sampler(Config):
    images_per_class: PositiveInt | None = None  # K of a P x K batch; null: classes play no part
    # Those of fewer than K images. repeat: an image, in another view, may be its own positive
    rare_classes: Literal["leave_out", "repeat"] = "leave_out"
    # Images as often an epoch as the manifest's weight column says, where it has one. With
    # images_per_class to be set to false: there all classes of a domain come equally often.
    weights: bool = True


class _WithFactors(_Sampler):
    factors: dict[str, PositiveFloat] = {}  # how many times more often a domain is to come


class MixedConfig(_WithFactors):
    """Domains mixed within a batch. As it stands, every image equally often."""

    name: Literal["mixed"] = "mixed"
    temperature: PositiveFloat = 1.0  # T of size ** (1 / T); .inf: domains equally often

    @property
    def one_stream(self) -> bool:
        """Domains play no part: images are drawn from all of them at once."""
        return self.temperature == 1 and not self.factors


class DatasetSizeConfig(_WithFactors):
    """Domains in proportion to their sizes (UnED's DS, 4.1)."""

    name: Literal["dataset_size"]
    temperature: PositiveFloat = 1.0  # T of size ** (1 / T)


class BalancedConfig(_WithFactors):
    """Domains equally often, in random order."""

    name: Literal["balanced"]


class RoundRobinConfig(_Sampler):
    """Domains in turn (UnED's RR, 4.1)."""

    name: Literal["round_robin"]


class SpecialistStepsConfig(_WithFactors):
    """Domains in proportion to the steps after which their specialists peaked (UnED's SS, 4.1)."""

    name: Literal["specialist_steps"]
    steps: dict[str, PositiveInt] = Field(min_length=1)


class LossDrivenConfig(_WithFactors):
    """Domains in proportion to their recent loss (after UDON's dynamic sampler), one period delayed.

    UDON weighs by the classification loss of each domain's own teacher, and so does task `online` here;
    any other task by the loss that is trained on. The losses of a period set the shares of the period
    after the next: a loader that reads ahead then never needs shares that are
    still to be measured.
    """

    name: Literal["loss_driven"]
    period: Steps = 1000
    memory: Annotated[float, Field(ge=0, lt=1)] = 0.0  # share of the old weight in the new one


def _named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


SamplerConfig = Annotated[
    MixedConfig
    | DatasetSizeConfig
    | BalancedConfig
    | RoundRobinConfig
    | SpecialistStepsConfig
    | LossDrivenConfig,
    Field(discriminator="name"),
    BeforeValidator(_named),
]


def sampler_config(value: Any) -> SamplerConfig:
    """A sampler's config, from one or from what stands in YAML. Raises pydantic's ValidationError."""
    return TypeAdapter(SamplerConfig).validate_python(value)
