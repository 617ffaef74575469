"""The config of a student: its teachers, and the sum of criteria by which it learns."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, model_validator

from guie.config.base import Config
from guie.config.losses import LossConfig
from guie.config.model import ModelConfig
from guie.config.relational import MatchingConfig, RelationConfig

Domains = Annotated[list[str], Field(min_length=1)]


class TeacherConfig(Config):
    """A model that a student learns from; it stays as it is."""

    model: (
        str  # as embed.py's --model: a run folder, several models side by side, a library's model
    )
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
