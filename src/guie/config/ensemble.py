"""The config of several models side by side, which ensemble.py writes."""

from __future__ import annotations

from pydantic import Field, PositiveInt

from guie.config.base import Config
from guie.config.model import ModelConfig
from guie.config.run import RunConfig

ENSEMBLE_FILE = "ensemble.yaml"  # in a folder, where a run has config.yaml


class MemberConfig(Config):
    """One of the models, as it is scored."""

    source: str  # the run or library's model that it was made of
    model: ModelConfig
    run: RunConfig | None = None  # that trained it


class EnsembleConfig(Config):
    """Members, and to how many dimensions their embeddings side by side are reduced."""

    members: list[MemberConfig] = Field(min_length=2)
    reduced_dim: PositiveInt | None = None  # reduce.py sets it
