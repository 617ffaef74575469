"""The config of greedy dataset selection: what may join a mix, who judges it, when to stop."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from guie.config.base import Config, PositiveInt
from guie.config.faults import FaultAt
from guie.config.model import HeadConfig

Repeats = Annotated[int, Field(ge=2)]  # one value has no spread


class ProxyEvaluatorConfig(Config):
    """How the evaluator `proxy` judges a mix: a head on frozen features, trained in seconds."""

    model: str  # as embed.py takes it: LIBRARY:NAME:TAG or a run folder
    size_px: PositiveInt | None = None  # null: what the model was pretrained with
    fit: Literal["squash", "pad", "crop"] = "squash"
    head: HeadConfig = HeadConfig(norm="bn")
    scale: PositiveFloat = 30.0
    margin_rad: NonNegativeFloat = 0.3
    epochs: PositiveFloat = 10.0
    min_steps: PositiveInt = 200  # a small mix must not lose for want of training
    batch_size: Annotated[int, Field(ge=2)] = 256
    lr: PositiveFloat = 1e-2
    weight_decay: NonNegativeFloat = 1e-4

    @model_validator(mode="after")
    def _head_takes_features_alone(self) -> ProxyEvaluatorConfig:
        if self.head.image_shape or self.head.reduced_dim:
            raise FaultAt("head", "image_shape and reduced_dim are of whole models, not of a proxy")
        return self


class SelectionRule(Config):
    """When a step of the search counts as a gain, and when the search ends."""

    directions: list[Literal["forward", "backward"]] = Field(["forward"], min_length=1)
    seeds: Repeats = 3  # on which every candidate is compared with the mix so far
    # Fresh ones, on which the best candidate must show its gain again; 0: `seeds` decide.
    confirm_seeds: Annotated[int, Field(ge=0)] = 6
    min_standard_errors: NonNegativeFloat = 2.0  # that a gain must exceed
    max_evaluations: PositiveInt | None = None  # trainings, those read from the log included
    max_minutes: PositiveFloat | None = None  # of training, likewise

    @model_validator(mode="after")
    def _confirmed_with_spread(self) -> SelectionRule:
        if self.confirm_seeds == 1:
            raise FaultAt("confirm_seeds", "1 seed has no spread; use 0, or at least 2")
        return self


class SelectionConfig(Config):
    """Greedy selection over the sources of a mix, or over sources times caps."""

    by: Literal["domain", "dataset"] = "domain"  # the manifest's column that names a source
    caps: list[PositiveInt | None] = Field([None], min_length=1)  # images a class; null: all
    metric: Literal["r_at_1", "mmp_at_5"] = "r_at_1"  # on val, merged index, mean over domains
    rule: SelectionRule = SelectionRule()
    evaluator: Literal["proxy", "full"] = "proxy"
    proxy: ProxyEvaluatorConfig | None = None
    full: str | None = None  # config of a run of train.py

    @model_validator(mode="after")
    def _evaluator_is_described(self) -> SelectionConfig:
        if getattr(self, self.evaluator) is None:
            raise FaultAt(self.evaluator, f"missing, but evaluator is {self.evaluator}")
        return self
