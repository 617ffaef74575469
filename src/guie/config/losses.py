"""The losses a run can train with, and their settings with units.

A `_rad` is an angle in radians, a `_cos` a difference of cosines, a `_distance` a Euclidean
distance between embeddings of unit length (at most 2). `scale` is a softmax's inverse temperature.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    Tag,
    model_validator,
)

from guie.config.types import VALUE, Config, ConfigError, Either, Fault, PositiveInt, Seed

Distance = Annotated[float, Field(gt=0, le=2)]


class RowLength(Config):
    """Class weights or proxies of this root mean square length, whatever their number."""

    length: PositiveFloat = 1.0  # root mean square of a row
    draw: Literal["normal", "uniform"] = "normal"  # distribution


# Rows are normalised and Adam's step is absolute, so rows of half the length turn twice as fast. Xavier's
# lengths fall with the number C of classes, and so do those of he_uniform, sqrt(2 D / C) (PUMA's code:
# `kaiming_uniform_(mode="fan_out")`) and torch_uniform, sqrt(D / (3 C)) (pytorch-metric-learning)
Init = Either[Literal["xavier_normal", "xavier_uniform", "he_uniform", "torch_uniform"], RowLength]


class MarginSchedule(Config):
    """min(start + rise_per_epoch * epoch, limit)."""

    start: NonNegativeFloat  # at epoch 0
    rise_per_epoch: NonNegativeFloat  # added
    limit: NonNegativeFloat  # at most
    every: Literal["step", "epoch"] = "step"  # epoch: once per whole epoch


class ClassSizeMargin(Config):
    """By class size: `max` for the class with the fewest training images, `min` for the largest."""

    min: NonNegativeFloat  # of the largest class
    max: NonNegativeFloat  # of the smallest class
    power: PositiveFloat = 0.25  # lambda of n ** -lambda

    def faults(self) -> Iterator[Fault]:
        if self.min > self.max:
            yield "", "min is above max; swap them"


def _kind_of_margin(value: Any) -> str:
    if isinstance(value, dict):
        return "MarginSchedule" if "start" in value else "ClassSizeMargin"
    return type(value).__name__ if isinstance(value, Config) else VALUE


Margin = Annotated[
    Annotated[NonNegativeFloat, Tag(VALUE)]
    | Annotated[MarginSchedule, Tag("MarginSchedule")]
    | Annotated[ClassSizeMargin, Tag("ClassSizeMargin")],
    Discriminator(_kind_of_margin),
]


class ClassWeightsConfig(Config):
    """A loss with weights that `init` initialises and the learning rate `classes` trains."""

    init: Init = RowLength()  # of class weights or proxies


class MarginSoftmaxConfig(ClassWeightsConfig):
    """Softmax over cosines to class weights, in which a margin makes the own class harder."""

    scale: PositiveFloat = 30.0  # factor on the cosines
    centers: PositiveInt = 1  # per class; above 1: sub-centres, the nearest counts
    classifier: Literal["joint", "separate"] = "joint"  # separate: a softmax per domain


class SoftmaxConfig(MarginSoftmaxConfig):
    """Normalised softmax, no margin (UnED's baselines, at scale 16)."""

    name: Literal["softmax"]


class ArcFaceConfig(MarginSoftmaxConfig):
    """ArcFace; sub-center ArcFace with centers above 1."""

    name: Literal["arcface"] = "arcface"
    margin_rad: Margin = 0.3  # added to the angle to the own class


class CosFaceConfig(MarginSoftmaxConfig):
    """CosFace, the 1st place's at margins 0.55 and 0.65."""

    name: Literal["cosface"]
    margin_cos: Margin = 0.35  # subtracted from the cosine to the own class


class CurricularFaceConfig(MarginSoftmaxConfig):
    """CurricularFace; defaults are PUMA's."""

    name: Literal["curricularface"]
    scale: PositiveFloat = 32.0  # factor on the cosines
    margin_rad: Margin = 0.3  # added to the angle to the own class
    running_mean: Literal["scalar", "class"] = "scalar"  # scalar: as published; class: PUMA's code


class LinearSoftmaxConfig(ClassWeightsConfig):
    """Softmax over the logits of a Linear without bias; class weights are not normalised."""

    name: Literal["linear_softmax"]
    # of class weights; default: torch's Linear
    init: Init = RowLength(length=3**-0.5, draw="uniform")
    # what the Linear sees. raw: the head's output; unit: the embedding (Vo and Hays' code)
    embedding: Literal["raw", "unit"] = "raw"
    # identity: the embedding is the logits (DREML)
    weights: Literal["linear", "identity"] = "linear"


class CustomConfig(Config):
    """A class in a Python file of the user's own, which training runs."""

    source: str  # file, from the working directory, and class: losses.py:MyRule
    settings: dict[str, Any] = {}  # arguments of the class, checked by type
    sha256: str = ""  # of the file; recorded

    @model_validator(mode="before")
    @classmethod
    def _with_sha256(cls, values: Any) -> Any:
        if not isinstance(values, dict) or values.get("sha256"):
            return values
        file = str(values.get("source")).rpartition(":")[0]
        try:
            return {**values, "sha256": hashlib.sha256(Path(file).read_bytes()).hexdigest()}
        except OSError as error:
            wanted = "name a Python file and a class in it, such as losses.py:MyRule"
            raise ConfigError("source", f"{file}: {error.strerror}; {wanted}") from None


class CustomRuleConfig(CustomConfig, MarginSoftmaxConfig):
    """A margin rule of your own, a subclass of `MarginRule`."""

    name: Literal["custom_rule"]


class CustomLossConfig(CustomConfig):
    """A loss of your own, a subclass of `InBatchLoss` or `Criterion`."""

    name: Literal["custom_loss"]


class PairConfig(Config):
    """A loss on pairs or triplets of the batch."""

    memory: Annotated[int, Field(ge=0)] = 0  # past embeddings to compare with


class TripletConfig(PairConfig):
    """Triplet loss on mined triplets."""

    name: Literal["triplet"]
    margin_distance: Distance = 0.2  # by which the negative should be farther
    distance: Literal["euclidean", "cosine"] = "euclidean"  # cosine: 1 - cos
    # semihard: negatives farther than the positive, within the margin; semihard_nearest: the nearest (Feng et
    # al., arXiv 2003.03701, 2); batch_hard: farthest positive, nearest negative (PUMA)
    miner: Literal["semihard", "semihard_nearest", "batch_hard"] = "semihard"


class MarginLossConfig(PairConfig):
    """Margin loss on mined triplets."""

    name: Literal["margin"]
    margin_distance: Distance = 0.2  # on both sides of the boundary
    boundary_distance: Distance = 1.2  # beta: positive pairs should be closer
    learn_boundary: bool = False  # one per class, from boundary_distance
    # distance_weighted: a negative per positive pair, evenly over distances; multi_similarity: that loss's
    # pairs, at margin 0.1 (PUMA)
    miner: Literal["distance_weighted", "multi_similarity"] = "distance_weighted"


class MultiSimilarityConfig(PairConfig):
    """Multi-Similarity loss on mined pairs."""

    name: Literal["multi_similarity"]
    positive_scale: PositiveFloat = 2.0  # alpha
    negative_scale: PositiveFloat = 50.0  # beta
    base_cos: Annotated[float, Field(ge=-1, le=1)] = 0.5  # lambda
    mining_margin_cos: PositiveFloat = 0.1  # epsilon
    # distance_weighted: a negative per positive pair, evenly over distances 0.5 to 1.4 (PUMA)
    miner: Literal["multi_similarity", "distance_weighted"] = "multi_similarity"


class SupConConfig(PairConfig):
    """Supervised contrastive loss."""

    name: Literal["supcon"]
    temperature: PositiveFloat = 0.1  # of the softmax over cosines


class ProxyConfig(ClassWeightsConfig):
    """A loss on distances to proxies of the classes."""


class ProxyAnchorConfig(ProxyConfig):
    """Proxy-Anchor loss."""

    name: Literal["proxy_anchor"]
    margin_cos: PositiveFloat = 0.1  # delta
    scale: PositiveFloat = 32.0  # alpha


class ProxyNcaConfig(ProxyConfig):
    """ProxyNCA++: softmax over squared distances to all proxies."""

    name: Literal["proxy_nca"]
    temperature: PositiveFloat = 1 / 9  # of the softmax over distances


class SoftTripleConfig(ProxyConfig):
    """SoftTriple loss, without the regulariser that merges centres."""

    name: Literal["soft_triple"]
    scale: PositiveFloat = 20.0  # lambda
    margin_cos: NonNegativeFloat = 0.01  # delta
    centers: PositiveInt = 10  # per class
    center_temperature: PositiveFloat = 0.1  # gamma


class BatchAllConfig(Config):
    """Soft-margin triplet loss over all triplets of the batch."""

    name: Literal["batch_all"]
    length: PositiveFloat = 4.0  # that embeddings are scaled to


class ContrastiveLossConfig(Config):
    """All pairs of the batch, with a hinge on squared distances (Vo and Hays' code)."""

    name: Literal["contrastive"]
    length: PositiveFloat = 3.0  # that embeddings are scaled to
    margin: PositiveFloat = 0.2  # squared distance, at that length, of negatives that count 0


class HyperbolicConfig(Config):
    """Pairwise cross-entropy on distances in the Poincare ball."""

    name: Literal["hyperbolic"]
    curvature: PositiveFloat = 0.1  # the ball has radius curvature ** -.5
    radius: PositiveFloat = 2.3  # length of tangent vectors
    temperature: PositiveFloat = 0.2  # of the softmax over distances


OwnInBatchConfig = BatchAllConfig | ContrastiveLossConfig | HyperbolicConfig
AnySoftmax = SoftmaxConfig | ArcFaceConfig | CosFaceConfig | CurricularFaceConfig | CustomRuleConfig
AnyPairs = TripletConfig | MarginLossConfig | MultiSimilarityConfig | SupConConfig
AnyProxies = ProxyAnchorConfig | ProxyNcaConfig | SoftTripleConfig
LossConfig = Annotated[
    AnySoftmax | LinearSoftmaxConfig | AnyPairs | AnyProxies | OwnInBatchConfig | CustomLossConfig,
    Field(discriminator="name"),
    BeforeValidator(lambda loss: {"name": "arcface", **loss} if isinstance(loss, dict) else loss),
]
# Means over images, each alone: micro-batches give the gradients of the batch. All others compare images
# (CurricularFace through its running mean), and see the whole batch
PER_IMAGE: tuple[type[Config], ...] = (SoftmaxConfig, ArcFaceConfig, CosFaceConfig)
PER_IMAGE += (LinearSoftmaxConfig, ProxyNcaConfig, SoftTripleConfig)


class MetaclassesConfig(Config):
    """Random groups of classes, which a member classifies (Xuan et al., ECCV 2018, 3).

    A run is one member, or `model.head.parts` members, numbered from `member`.
    """

    count: Annotated[int, Field(ge=2)]  # D
    member: Annotated[int, Field(ge=0)] = 0  # seeds the draw of its groups
    seed: Seed = 0  # of the ensemble
    # groups of one domain's classes, as many as its share of the classes
    within_domains: bool = False
