"""The config of training batches: the sampling of domains, classes and images, and augmentation."""

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
    """Random augmentation: a crop, resized as the model does, then distorted.

    In order: flip, brightness to saturation, auto, affine, hue, rgb_shift, blur, jpeg, erase. Numbers from 0
    to 1 without further words are probabilities.
    """

    # how a crop becomes a square in training; null: as in scoring (UnED: squash, then crop; UniFEx: the
    # reverse)
    fit: Fit | None = None
    # distort before the resize (1st and 4th place); slower
    full_size: bool = False
    crop_scale: Range[PositiveFloat] = [0.5, 1.0]  # of the area
    crop_ratio: Range[PositiveFloat] = [0.8, 1.25]  # width over height of a crop
    # crop_ratio is relative to the image's ratio; absolute: to 1, as RandomResizedCrop (PUMA, 5th place);
    # square: to its largest square, as Resize and RandomCrop (DREML, Vo and Hays)
    crop_ratio_of: Literal["image", "absolute", "square"] = "image"
    flip: Probability = 0.0  # of a horizontal flip
    auto: Literal["imagenet"] | None = None  # AutoAugment, ImageNet policy
    affine: Probability = 0.0  # of shift, zoom and rotation
    shift: Fraction = 0.0  # up to this fraction of the sides
    zoom: Fraction = 0.0  # by up to this fraction, in or out
    rotate_deg: Annotated[float, Field(ge=0, le=180)] = 0.0  # up to, either way
    affine_border: Literal["black", "mirror"] = "black"  # fill beyond the image
    color: NonNegativeFloat = 0.0  # strength of brightness, contrast and saturation
    brightness: NonNegativeFloat | None = None  # null: `color`; so for the next two
    contrast: NonNegativeFloat | None = None  # around the mean grey of the image
    saturation: NonNegativeFloat | None = None  # around the greyscale image
    # adds up to so many grey levels; .1 of Albumentations (2nd, 6th place) and TensorFlow (3rd) is 25.5
    brightness_levels: Annotated[float, Field(ge=0, le=255)] = 0.0
    hue: Annotated[float, Field(ge=0, le=0.5)] = 0.0  # up to this fraction of the colour circle
    rgb_shift: Annotated[float, Field(ge=0, le=255)] = 0.0  # of each channel, in grey levels
    # probability of brightness to saturation, of hue, of rgb_shift
    color_share: Probability = 0.8
    rgb_shift_share: Probability | None = None  # null: color_share; 6th place: .5
    gray: Probability = 0.0  # of greyscale
    blur: Probability = 0.0  # Gaussian
    jpeg: Probability = 0.0  # of another JPEG compression
    jpeg_quality: Range[Quality] = [50, 100]  # of it
    erase: Probability = 0.0  # of erased boxes
    erase_side: Range[Side] = [0.1, 0.4]  # of the image's sides
    erase_boxes: PositiveInt = 1  # 6th place: 8
    erase_color: Literal["grey", "black"] = "grey"  # black: 1st, 2nd and 6th place
    # probability of blending with another image: the student imitates teachers between images (Beyer et al.,
    # CVPR 2022, 3)
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
    images_per_class: PositiveInt | None = None  # K of a P x K batch; null: classes do not count
    # with fewer than K images. repeat: a second view may be the positive
    rare_classes: Literal["leave_out", "repeat"] = "leave_out"
    weights: bool = True  # draw by the manifest's weight column; not with images_per_class


class _WithFactors(_Sampler):
    factors: dict[str, PositiveFloat] = {}  # on a domain's frequency


class MixedConfig(_WithFactors):
    """Mix domains in a batch; by default every image is equally likely."""

    name: Literal["mixed"] = "mixed"
    temperature: Temperature = 1.0  # T of size ** (1 / T); .inf: equal domains

    @property
    def one_stream(self) -> bool:
        """Whether images are drawn from all domains at once, ignoring domains."""
        return self.temperature == 1 and not self.factors


class DatasetSizeConfig(_WithFactors):
    """Draw domains in proportion to their sizes (UnED's DS)."""

    name: Literal["dataset_size"]
    temperature: Temperature = 1.0  # T of size ** (1 / T)


class BalancedConfig(_WithFactors):
    """Draw domains equally often, in random order."""

    name: Literal["balanced"]


class RoundRobinConfig(_Sampler):
    """Cycle through the domains (UnED's RR)."""

    name: Literal["round_robin"]


class SpecialistStepsConfig(_WithFactors):
    """Draw domains in proportion to the steps at which their specialists peaked (UnED's SS)."""

    name: Literal["specialist_steps"]
    steps: dict[str, PositiveInt] = Field(min_length=1)  # domain: steps of its specialist


class LossDrivenConfig(_WithFactors):
    """Draw domains in proportion to their recent loss (after UDON's dynamic sampler).

    With task `online` it is that of each domain's teacher. Losses of period n set the shares of period n + 2,
    for loaders that read ahead.
    """

    name: Literal["loss_driven"]
    period: Steps = 1000  # between updates
    # share of the old frequencies in the new ones
    memory: Annotated[float, Field(ge=0, lt=1)] = 0.0


class ShardsConfig(Config):
    """Shuffle an index's shards, then images within a window of them, ignoring domains.

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
