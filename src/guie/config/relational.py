"""What a student is to have in common with a teacher: relations of images, or the features themselves."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    PositiveFloat,
    Tag,
    model_validator,
)

from guie.config.base import Config, PositiveInt, Width

NonNegative = Annotated[float, Field(ge=0)]


class Perplexity(Config):
    """Each image has the bandwidth that gives it so many neighbours: 2 to the entropy, in bits."""

    perplexity: Annotated[float, Field(gt=1)]


def _number_or_perplexity(value: Any) -> str:
    return "perplexity" if isinstance(value, dict | Perplexity) else "number"


# Of the Gaussian around an image, in units of the distance between embeddings of unit length
Sigma = Annotated[
    Annotated[PositiveFloat, Tag("number")] | Annotated[Perplexity, Tag("perplexity")],
    Discriminator(_number_or_perplexity),
]


class RkdConfig(Config):
    """Distances and angles between images in proportion to the teacher's (Park et al., CVPR 2019)."""

    name: Literal["rkd"]
    distance: NonNegative = 1.0  # weight of the term of pairs
    angle: NonNegative = 0.0  # weight of the term of triples; 2 in RKD-DA
    penalty: Literal["huber", "l1"] = "huber"

    @model_validator(mode="after")
    def _does_something(self) -> RkdConfig:
        if not (self.distance or self.angle):
            raise ValueError("distance and angle are both 0; raise one")
        return self


class SndConfig(Config):
    """Stochastic neighbour distillation: who is whose neighbour, and how surely."""

    name: Literal["snd"]
    sigma: Sigma = 0.1  # of the teacher's neighbours
    student_sigma: Sigma | None = None  # of the student's; null: the teacher's, image by image
    queue: Annotated[int, Field(ge=0)] = 0  # past images that may be neighbours too


class SimilarityConfig(Config):
    """Squared differences of the matrices of cosines, summed over a row (UDON)."""

    name: Literal["similarity"]


class LogitsConfig(Config):
    """Cosines to the classes that both know, as a softmax (Hinton et al.; UDON).

    Both need class weights: the student one margin softmax among the criteria, a teacher its run's.
    """

    name: Literal["logits"]
    temperature: PositiveFloat = 0.1


class DimensionConfig(Config):
    """A teacher's features by their mean and deviation, each dimension for itself (UNIC)."""

    name: Literal["dimension"] = "dimension"
    steps: PositiveInt = 100  # in which they are measured; the term counts from then on


class PhiSConfig(Config):
    """Turned so that all dimensions vary alike, and scaled by one number (RADIO, PHI-S)."""

    name: Literal["phi_s"]
    steps: PositiveInt = 100


class MatchingConfig(Config):
    """The teacher's features themselves, through a head of their own that is left out when scored.

    .5 (1 - cosine) + .5 smooth l1, a mean over images (UNIC, DUNE).
    """

    name: Literal["matching"]
    hidden: list[Width] = []  # of the head; none: linear
    standardise: Annotated[
        DimensionConfig | PhiSConfig | None,
        Field(discriminator="name"),
        BeforeValidator(lambda value: {"name": value} if isinstance(value, str) else value),
    ] = DimensionConfig()
    # Of several teachers of an image, the chance that one goes without; the worst matched stays
    drop: Annotated[float, Field(ge=0, lt=1)] = 0.0


RelationConfig = RkdConfig | SndConfig | SimilarityConfig | LogitsConfig | MatchingConfig
