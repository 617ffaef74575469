"""The config of a student: its teachers, and its criteria on relations, features and labels."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat

from guie.config.losses import PER_IMAGE, AnySoftmax, LossConfig, MarginSoftmaxConfig, SoftmaxConfig
from guie.config.model import ModelConfig
from guie.config.types import ByName, Config, Either, Fault, Names, PositiveInt, Width


class Perplexity(Config):
    """A bandwidth per image with this perplexity: 2 to the entropy of its neighbours, in bits."""

    perplexity: Annotated[float, Field(gt=1)]  # effective number of neighbours


# Of the Gaussian around an image, as a distance between unit-length embeddings
Sigma = Either[PositiveFloat, Perplexity]


class RkdConfig(Config):
    """Match relative distances and angles of the teacher (RKD, Park et al., CVPR 2019)."""

    name: Literal["rkd"]
    distance: NonNegativeFloat = 1.0  # weight of the pair term
    angle: NonNegativeFloat = 0.0  # weight of the triple term; 2 in RKD-DA
    penalty: Literal["huber", "l1"] = "huber"  # on a difference

    def faults(self) -> Iterator[Fault]:
        if not (self.distance or self.angle):
            yield "", "distance and angle are both 0; raise one"


class SndConfig(Config):
    """Stochastic neighbour distillation: match probabilities of neighbours."""

    name: Literal["snd"]
    sigma: Sigma = 0.4  # of the teacher's neighbours
    # of the student's; null: the teacher's, per image
    student_sigma: Sigma | None = None
    queue: Annotated[int, Field(ge=0)] = 0  # past images as further neighbours


class SimilarityConfig(Config):
    """Squared differences of cosine matrices, summed over each row (UDON)."""

    name: Literal["similarity"]
    # divide by the variance of the teacher's cosines
    balanced: bool = False


class LogitsConfig(Config):
    """Softmax over cosines to the classes that both know (Hinton et al.; UDON).

    Both need class weights: the student from the one margin softmax in criteria, a teacher from its run.
    """

    name: Literal["logits"]
    temperature: PositiveFloat = 0.1  # of the softmax over cosines


class DimensionConfig(Config):
    """Standardise each dimension of the teacher's features (UNIC)."""

    name: Literal["dimension"] = "dimension"
    steps: PositiveInt = 100  # measured first; the term counts afterwards


class PhiSConfig(Config):
    """Rotate to equal variance in all dimensions, then scale (RADIO, PHI-S)."""

    name: Literal["phi_s"]
    steps: PositiveInt = 100  # measured first; the term counts afterwards


class MatchingConfig(Config):
    """Match the teacher's features through a head that the submission leaves out (UNIC, DUNE).

    The loss is .5 (1 - cosine) + .5 smooth l1, averaged over images.
    """

    name: Literal["matching"]
    hidden: list[Width] = []  # of the head; empty: linear
    standardise: Annotated[
        DimensionConfig | PhiSConfig | None, Field(discriminator="name"), ByName
    ] = DimensionConfig()
    # probability of dropping a teacher of an image; the worst matched is kept
    drop: Annotated[float, Field(ge=0, lt=1)] = 0.0


RelationConfig = RkdConfig | SndConfig | SimilarityConfig | LogitsConfig | MatchingConfig


class TeacherConfig(Config):
    """A frozen model that the student learns from."""

    model: str  # as for embed.py --model
    domains: Names | None = None  # whose images it teaches; null: all
    size_px: Annotated[int, Field(gt=1)] | None = None  # of a library model; null: its own


class TermConfig(Config):
    """One term: a loss on labels, or a relation to each teacher."""

    loss: LossConfig | None = None
    relation: Annotated[RelationConfig, Field(discriminator="name")] | None = None
    weight: PositiveFloat = 1.0  # in the sum of all terms
    domains: Names | None = None  # on whose images it applies; null: all

    @property
    def compares_images(self) -> bool:
        """Whether an image's term depends on the others: also by statistics of teachers' features."""
        if isinstance(self.relation, MatchingConfig):
            return self.relation.standardise is not None
        return not isinstance(self.loss or self.relation, (*PER_IMAGE, LogitsConfig))

    def faults(self) -> Iterator[Fault]:
        if (self.loss is None) == (self.relation is None):
            yield "", "a criterion is a loss or a relation; give exactly one of the two"


class Task(Config):
    """What every task's config answers."""

    name: str

    @property
    def losses(self) -> list[LossConfig]:
        """Losses on labels."""
        return []

    @property
    def compares_images(self) -> bool:
        """Whether an image's loss depends on the others, so that it must see the whole batch."""
        return True

    def parts(self, model: ModelConfig) -> list[str]:
        """Return the parts with their own learning rates."""
        raise NotImplementedError


class OnlineConfig(Task):
    """One teacher head per domain and the student's head on one backbone (UDON)."""

    name: Literal["online"]
    # of the student over all classes, of each teacher over its domain's
    loss: AnySoftmax = Field(
        SoftmaxConfig(name="softmax", scale=16.0, classifier="separate"), discriminator="name"
    )
    teacher_dim: Width = 256  # of a teacher's embedding
    # before a teacher's head. l2: UDON's code, with bias 0 and weights of variance 1 / features
    teacher_norm: Literal["none", "l2"] = "none"
    temperature: PositiveFloat = 0.1  # of the logits, which are cosines
    # weight of the student's loss on labels; the four weights are scaled to sum 1
    student: NonNegativeFloat = 1.0
    teachers: NonNegativeFloat = 1.0  # of the teachers' losses on labels
    logits: NonNegativeFloat = 1.0  # of distilling the teachers' logits
    # of distilling the teachers' cosines; UDON's code has 0.25 of this term
    similarity: NonNegativeFloat = 1.0
    # of the last two: head (the paper) or also backbone (the code)
    backprop_to: Literal["head", "backbone"] = "head"

    @property
    def losses(self) -> list[LossConfig]:
        return [self.loss]

    @property
    def compares_images(self) -> bool:
        return self.similarity > 0 or not isinstance(self.loss, PER_IMAGE)

    def parts(self, model: ModelConfig) -> list[str]:
        return [*model.parts(), "classes", "teachers"]

    def faults(self) -> Iterator[Fault]:
        if not self.teachers or not (self.logits or self.similarity):
            yield "", "teachers is 0, or logits and similarity are both 0; nothing is distilled"


class DistillationConfig(Task):
    """Teachers, and a weighted sum of criteria; each is scaled by its share of the images."""

    name: Literal["distillation"]
    teachers: list[TeacherConfig] = Field(min_length=1)
    criteria: list[TermConfig] = Field(min_length=1)

    @property
    def losses(self) -> list[LossConfig]:
        return [term.loss for term in self.criteria if term.loss]

    @property
    def compares_images(self) -> bool:
        return any(term.compares_images for term in self.criteria)

    def parts(self, model: ModelConfig) -> list[str]:
        matched = any(isinstance(term.relation, MatchingConfig) for term in self.criteria)
        classes = ["classes"] if self.losses else []
        return [*model.parts(), *classes, *(["matching"] if matched else [])]

    def faults(self) -> Iterator[Fault]:
        relations = [term.relation for term in self.criteria if term.relation]
        if not relations:
            yield "", "criteria has no relation to the teachers; add one"
        softmaxes = sum(isinstance(loss, MarginSoftmaxConfig) for loss in self.losses)
        if softmaxes != 1 and any(isinstance(one, LogitsConfig) for one in relations):
            needs = "relation logits needs exactly one loss with class weights, such as arcface"
            yield "", f"{needs}; criteria has {softmaxes}"
