"""The config of a student: its teachers, and its criteria on relations, features and labels."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, PositiveFloat, Tag, model_validator

from guie.config.base import Config, PositiveInt, Width
from guie.config.losses import LossConfig, MarginSoftmaxConfig, SoftmaxConfig
from guie.config.model import ModelConfig

NonNegative = Annotated[float, Field(ge=0)]


class Perplexity(Config):
    """A bandwidth per image that gives this perplexity: 2 to the entropy of its neighbours, in bits."""

    perplexity: Annotated[float, Field(gt=1)]


def _number_or_perplexity(value: Any) -> str:
    return "perplexity" if isinstance(value, dict | Perplexity) else "number"


# Of the Gaussian around an image, as a distance between unit-length embeddings
Sigma = Annotated[
    Annotated[PositiveFloat, Tag("number")] | Annotated[Perplexity, Tag("perplexity")],
    Discriminator(_number_or_perplexity),
]


class RkdConfig(Config):
    """Match relative distances and angles of the teacher (RKD, Park et al., CVPR 2019)."""

    name: Literal["rkd"]
    distance: NonNegative = 1.0  # weight of the pair term
    angle: NonNegative = 0.0  # weight of the triple term; 2 in RKD-DA
    penalty: Literal["huber", "l1"] = "huber"

    @model_validator(mode="after")
    def _does_something(self) -> RkdConfig:
        if not (self.distance or self.angle):
            raise ValueError("distance and angle are both 0; raise one")
        return self


class SndConfig(Config):
    """Stochastic neighbour distillation: match the probabilities of neighbours."""

    name: Literal["snd"]
    sigma: Sigma = 0.1  # of the teacher's neighbours
    student_sigma: Sigma | None = None  # of the student's; null: the teacher's, per image
    queue: Annotated[int, Field(ge=0)] = 0  # past images as further neighbours


class SimilarityConfig(Config):
    """Squared differences of the cosine matrices, summed over each row (UDON)."""

    name: Literal["similarity"]


class LogitsConfig(Config):
    """Softmax over cosines to the classes that both know (Hinton et al.; UDON).

    Both need class weights: the student from the one margin softmax in criteria, a teacher from its run.
    """

    name: Literal["logits"]
    temperature: PositiveFloat = 0.1


class DimensionConfig(Config):
    """Standardise each dimension of a teacher's features by mean and deviation (UNIC)."""

    name: Literal["dimension"] = "dimension"
    steps: PositiveInt = 100  # to measure them in; the term counts afterwards


class PhiSConfig(Config):
    """Rotate to equal variance in all dimensions, and scale by one number (RADIO, PHI-S)."""

    name: Literal["phi_s"]
    steps: PositiveInt = 100


class MatchingConfig(Config):
    """Match the teacher's features through a separate head, which the submission leaves out.

    The loss is .5 (1 - cosine) + .5 smooth l1, averaged over images (UNIC, DUNE).
    """

    name: Literal["matching"]
    hidden: list[Width] = []  # of the head; empty: linear
    standardise: Annotated[
        DimensionConfig | PhiSConfig | None,
        Field(discriminator="name"),
        BeforeValidator(lambda value: {"name": value} if isinstance(value, str) else value),
    ] = DimensionConfig()
    # Probability of dropping one of an image's teachers; the worst matched is always kept
    drop: Annotated[float, Field(ge=0, lt=1)] = 0.0


RelationConfig = RkdConfig | SndConfig | SimilarityConfig | LogitsConfig | MatchingConfig


Domains = Annotated[list[str], Field(min_length=1)]


class TeacherConfig(Config):
    """A frozen model that the student learns from."""

    model: str  # as for embed.py --model: run folder, an ensemble, library model
    domains: Domains | None = None  # whose images it teaches; null: all
    size_px: Annotated[int, Field(gt=1)] | None = None  # of a library model; null: its own


class TermConfig(Config):
    """One term: a loss on labels, or a relation to each teacher."""

    loss: LossConfig | None = None
    relation: Annotated[RelationConfig, Field(discriminator="name")] | None = None
    weight: PositiveFloat = 1.0
    domains: Domains | None = None  # on whose images it applies; null: all

    @model_validator(mode="after")
    def _is_one_of_two(self) -> TermConfig:
        if (self.loss is None) == (self.relation is None):
            raise ValueError("a criterion is a loss or a relation; give exactly one of the two")
        return self


class OnlineConfig(Config):
    """One teacher head per domain and the student's head on one backbone, trained together (UDON)."""

    name: Literal["online"]
    # Of the student over all classes, and of each teacher over its domain's
    loss: MarginSoftmaxConfig = Field(
        default=SoftmaxConfig(name="softmax", scale=16.0, classifier="separate"),
        discriminator="name",
    )
    teacher_dim: Width = 256  # of a teacher's embedding; its head is a Linear
    temperature: PositiveFloat = 0.1  # of the logits, which are cosines
    # Weights of the four terms, normalised to sum 1
    student: NonNegative = 1.0
    teachers: NonNegative = 1.0
    logits: NonNegative = 1.0
    similarity: NonNegative = 1.0
    # What the last two train: the student's head alone (the paper), or also the backbone (its code)
    reaches: Literal["head", "backbone"] = "head"

    @property
    def losses(self) -> list[LossConfig]:
        """Losses on labels."""
        return [self.loss]

    def parts(self, model: ModelConfig) -> list[str]:
        """Return the parts with their own learning rates: see `Task.parts`."""
        head = ["head"] if model.head else []
        return ["backbone", *model.parts(), *head, "classes", "teachers"]

    @model_validator(mode="after")
    def _teachers_learn_and_teach(self) -> OnlineConfig:
        if not self.teachers or not (self.logits or self.similarity):
            raise ValueError(
                "teachers is 0, or logits and similarity are both 0, so nothing is distilled; raise them,"
                " or use task classification"
            )
        return self


class DistillationConfig(Config):
    """Teachers, and a weighted sum of criteria; a term is scaled by its share of the images."""

    name: Literal["distillation"]
    teachers: list[TeacherConfig] = Field(min_length=1)
    criteria: list[TermConfig] = Field(min_length=1)

    @property
    def losses(self) -> list[LossConfig]:
        """Losses on labels."""
        return [term.loss for term in self.criteria if term.loss]

    def parts(self, model: ModelConfig) -> list[str]:
        """Return the parts with their own learning rates: see `Task.parts`."""
        heads = any(isinstance(term.relation, MatchingConfig) for term in self.criteria)
        named = ["backbone", *model.parts(), *(["head"] if model.head else [])]
        return [*named, *(["classes"] if self.losses else []), *(["matching"] if heads else [])]

    @model_validator(mode="after")
    def _learns_from_teachers(self) -> DistillationConfig:
        if not any(term.relation for term in self.criteria):
            raise ValueError(
                "criteria has no relation, so nothing is learnt from the teachers; add one, or use"
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
                f"relation logits needs exactly one loss with class weights, and criteria has"
                f" {len(softmaxes)}; give one of softmax, arcface, cosface and curricularface"
            )
        return self


def too_many_neighbours(term: TermConfig, batch_size: int) -> str | None:
    """Return what is wrong with a perplexity that batch and queue cannot reach; None if it is fine."""
    snd = term.relation
    if not isinstance(snd, SndConfig):
        return None
    others = batch_size - 1 + snd.queue
    for sigma in (snd.sigma, snd.student_sigma):
        if isinstance(sigma, Perplexity) and sigma.perplexity >= others:
            return (
                f"perplexity {sigma.perplexity:g} must be below {others}, the other images of batch and"
                " queue; lower it, or raise batch_size or queue"
            )
    return None
