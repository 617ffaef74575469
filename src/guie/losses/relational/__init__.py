"""Criteria of a student beside a teacher. Each computes in fp32, on the images of all processes."""

from torch import nn

from guie.config.relational import MatchingConfig, RelationConfig, RkdConfig, SndConfig
from guie.losses.relational.distances import Rkd
from guie.losses.relational.forgetting import drift, squared_distance
from guie.losses.relational.logits import Logits, kl_of_logits
from guie.losses.relational.matching import Matching, mean_of
from guie.losses.relational.neighbours import Snd
from guie.losses.relational.relation import Relation
from guie.losses.relational.similarity import Similarity


def build_relation(config: RelationConfig, dim: int, teacher_dim: int) -> nn.Module:
    """The configured relation to one teacher, a `Relation` or a `Matching`; of `Logits` see there.

    Args:
        dim, teacher_dim: of the embeddings of student and teacher.
    """
    if isinstance(config, RkdConfig):
        return Rkd(config)
    if isinstance(config, SndConfig):
        return Snd(config, (dim, teacher_dim))
    if isinstance(config, MatchingConfig):
        return Matching(config, dim, teacher_dim)
    return Similarity()


__all__ = [
    "Logits",
    "Matching",
    "Relation",
    "Rkd",
    "Similarity",
    "Snd",
    "build_relation",
    "drift",
    "kl_of_logits",
    "mean_of",
    "squared_distance",
]
