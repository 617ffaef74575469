"""The config of a student: its teachers, and the criteria (relations, features, labels) by which it
learns.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, PositiveFloat, Tag, model_validator

from guie.config.base import Config, PositiveInt, Width
from guie.config.losses import LossConfig, MarginSoftmaxConfig, SoftmaxConfig
from guie.config.model import ModelConfig

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


Domains = Annotated[list[str], Field(min_length=1)]


class TeacherConfig(Config):
    """A model that a student learns from; it stays as it is."""

    model: str  # as embed.py's --model: a run folder, several side by side, a library's model
    domains: Domains | None = None  # whose images it teaches; null: all
    size_px: Annotated[int, Field(gt=1)] | None = None  # of a library's model; null: its own


class TermConfig(Config):
    """One summand: a loss on labels, or a relation to each teacher."""

    loss: LossConfig | None = None
    relation: Annotated[RelationConfig, Field(discriminator="name")] | None = None
    weight: PositiveFloat = 1.0
    domains: Domains | None = None  # on whose images it counts; null: all

    @model_validator(mode="after")
    def _is_one_of_two(self) -> TermConfig:
        if (self.loss is None) == (self.relation is None):
            raise ValueError("a summand is either a loss or a relation; give one of the two")
        return self


class OnlineConfig(Config):
    """Teacher heads, one a domain, and the student's on one backbone, trained together (UDON)."""

    name: Literal["online"]
    # Of the student, and of each teacher over the classes of its domain
    loss: MarginSoftmaxConfig = Field(
        default=SoftmaxConfig(name="softmax", scale=16.0, classifier="separate"),
        discriminator="name",
    )
    teacher_dim: Width = 256  # of a teacher's embedding; its head is one Linear
    temperature: PositiveFloat = 0.1  # of the logits, which are cosines
    # Weights of four terms; their sum is divided by the sum of these
    student: NonNegative = 1.0
    teachers: NonNegative = 1.0
    logits: NonNegative = 1.0
    similarity: NonNegative = 1.0
    # How far the last two train: the student's head alone (the paper), or the backbone too (its code)
    reaches: Literal["head", "backbone"] = "head"

    @property
    def losses(self) -> list[LossConfig]:
        """Those on labels."""
        return [self.loss]

    def parts(self, model: ModelConfig) -> list[str]:
        """What has a learning rate of its own: see `Task.parts`."""
        head = ["head"] if model.head else []
        return ["backbone", *model.parts(), *head, "classes", "teachers"]

    @model_validator(mode="after")
    def _teachers_learn_and_teach(self) -> OnlineConfig:
        if not self.teachers or not (self.logits or self.similarity):
            raise ValueError(
                "teachers, or logits and similarity, are 0: none learns, or none teaches; raise them,"
                " or take task classification"
            )
        return self


class DistillationConfig(Config):
    """Teachers, and a sum of losses and relations; a term counts by the share of its images."""

    name: Literal["distillation"]
    teachers: list[TeacherConfig] = Field(min_length=1)
    criteria: list[TermConfig] = Field(min_length=1)

    @property
    def losses(self) -> list[LossConfig]:
        """Those on labels."""
        return [term.loss for term in self.criteria if term.loss]

    def parts(self, model: ModelConfig) -> list[str]:
        """What has a learning rate of its own: see `Task.parts`."""
        heads = any(isinstance(term.relation, MatchingConfig) for term in self.criteria)
        named = ["backbone", *model.parts(), *(["head"] if model.head else [])]
        return [*named, *(["classes"] if self.losses else []), *(["matching"] if heads else [])]

    @model_validator(mode="after")
    def _learns_from_teachers(self) -> DistillationConfig:
        if not any(term.relation for term in self.criteria):
            raise ValueError(
                "criteria has no relation, so nothing is learnt from the teachers; give one, or take"
                " task classification"
            )
        return self

    @model_validator(mode="after")
    def _logits_have_classes(self) -> DistillationConfig:
        softmaxes = [loss for loss in self.losses if isinstance(loss, MarginSoftmaxConfig)]
        if len(softmaxes) != 1 and any(
            isinstance(term.relation, LogitsConfig) for term in self.criteria
        ):
            raise ValueError(
                f"relation logits needs one loss with class weights beside it, and criteria has"
                f" {len(softmaxes)}; take one of softmax, arcface, cosface and curricularface"
            )
        return self


def too_many_neighbours(term: TermConfig, batch_size: int) -> str | None:
    """What is wrong with a perplexity that a batch, with what is remembered, cannot have; or None."""
    snd = term.relation
    if not isinstance(snd, SndConfig):
        return None
    others = batch_size - 1 + snd.queue
    for sigma in (snd.sigma, snd.student_sigma):
        if isinstance(sigma, Perplexity) and sigma.perplexity >= others:
            return (
                f"perplexity {sigma.perplexity:g}: an image has {others} others in a batch; take"
                " less, or raise batch_size or queue"
            )
    return None
