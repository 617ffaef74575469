"""How the images of a step are drawn: which domains, which classes, which images.

`sampler: balanced` is short for `sampler: {name: balanced}`. A batch is of one domain, except of
`mixed`. The size of a domain is the number of its training images, or the sum of their weights: how
many of its images an epoch draws.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PositiveFloat,
    TypeAdapter,
)

from guie.config.base import Config, PositiveInt
from guie.config.durations import Steps


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
