"""The config of what is added to a transformer that stays as it is: adapters and prompts."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PositiveFloat, model_validator

from guie.config.base import Config, PositiveInt, Width
from guie.config.faults import FaultAt

Keep = Annotated[float, Field(gt=0, le=1)]
Blocks = Literal["all"] | Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
Place = Literal["q", "k", "v", "out", "mlp"]


class GateConfig(Config):
    """How often a branch is on while training; when scored it has its expected value."""

    keep: Keep = 1.0  # probability p; 1: static
    # One draw for a branch and batch (PUMA's eq. 5), or one for a branch and image (its code)
    draw: Literal["batch", "image"] = "batch"
    # Divide what is kept by p, as dropout does and PUMA's code: the expected value is then the whole
    rescale: bool = False


class StochasticConfig(GateConfig):
    """Beside attention and MLP of each block: up(ReLU(down(norm(z)))), on by chance (PUMA, 4.2)."""

    kind: Literal["stochastic"]
    dim: Width = 128  # r, of the bottleneck
    keep: Keep = 0.5
    scale: PositiveFloat = 1.0  # of what is added; eq. 5 has none, the code .1
    blocks: Blocks = "all"


class AdaptFormerConfig(Config):
    """Beside the MLP of each block, with biases and a fixed scale (Chen et al., NeurIPS 2022)."""

    kind: Literal["adaptformer"]
    dim: Width = 64
    scale: PositiveFloat = 0.1
    blocks: Blocks = "all"


class LoraConfig(GateConfig):
    """Low-rank changes of weight matrices (Hu et al., ICLR 2022); keep below 1: stochastic LoRA."""

    kind: Literal["lora"]
    rank: Width = 8
    alpha: PositiveFloat | None = None  # the change is times alpha / rank; null: rank
    of: Annotated[list[Place], Field(min_length=1)] = ["q", "v"]
    blocks: Blocks = "all"


class TunedConfig(Config):
    """The backbone's own vectors, trained where they are.

    biases: BitFit (Ben Zaken et al., ACL 2022). norms: weights and biases of the norms.
    """

    kind: Literal["tuned"]
    of: Literal["biases", "norms", "both"] = "biases"


AdapterConfig = Annotated[
    StochasticConfig | AdaptFormerConfig | LoraConfig | TunedConfig, Field(discriminator="kind")
]


class PoolConfig(Config):
    """One prompt an image, a sum of a pool's by how alike key and query are (PUMA, 4.3)."""

    kind: Literal["pool"]
    size: PositiveInt = 20  # M
    length: PositiveInt = 8  # N_p, tokens of a prompt
    # sum: average and largest of the patch embeddings (eq. 6). mean: half of it, without a gradient
    # (the code)
    query: Literal["sum", "mean"] = "sum"
    # softmax: over the features, before the query is multiplied by them (the code); plain: eq. 8
    attention: Literal["plain", "softmax"] = "plain"
    orthogonality: Annotated[float, Field(ge=0)] = 0.0  # weight of the penalty; 1e-6 in the code


class VptConfig(Config):
    """The same prompt for every image, ahead of the first block, or of each (Jia et al., ECCV 2022)."""

    kind: Literal["shallow", "deep"]
    length: PositiveInt = 8


PromptsConfig = Annotated[PoolConfig | VptConfig, Field(discriminator="kind")]


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, dict) else value


class WithAdapters(Config):
    """What a model may have besides backbone and head."""

    # One or more: {kind: stochastic}, or [{kind: stochastic}, {kind: lora}]
    adapters: Annotated[list[AdapterConfig], BeforeValidator(_listed)] = []
    prompts: PromptsConfig | None = None

    @model_validator(mode="after")
    def _kinds_differ(self) -> WithAdapters:
        kinds = [adapter.kind for adapter in self.adapters]
        again = next((n for n, kind in enumerate(kinds) if kind in kinds[:n]), None)
        if again is not None:
            raise FaultAt(f"adapters.{again}.kind", f"{kinds[again]} is there already; each once")
        return self

    def parts(self) -> list[str]:
        """Parts of a task that come with it."""
        return [*(["adapters"] if self.adapters else []), *(["prompts"] if self.prompts else [])]
