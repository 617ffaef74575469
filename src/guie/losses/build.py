"""Build a loss from its config."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from guie.base.errors import UserError
from guie.config.losses import (
    ArcFaceConfig,
    BatchAllConfig,
    ClassSizeMargin,
    CosFaceConfig,
    CurricularFaceConfig,
    HyperbolicConfig,
    LossConfig,
    Margin,
    MarginSchedule,
    MarginSoftmaxConfig,
    PairConfig,
    ProxyConfig,
    SoftmaxConfig,
)
from guie.losses.base import Criterion
from guie.losses.in_batch import BatchAllTriplet, Hyperbolic
from guie.losses.margin_softmax import MarginSoftmax
from guie.losses.rules import ArcFace, CosFace, CurricularFace, MarginRule, class_size_margins


def build_loss(
    config: LossConfig, dim: int, sizes: Sequence[int], domains: Sequence[str]
) -> Criterion:
    """Return the configured loss.

    Args:
        config: the loss and its settings.
        dim: the embedding's dimension.
        sizes: training images of every class, by class id.
        domains: domain of every class, by class id.

    Raises:
        UserError: if a softmax per domain is configured and classes are not sorted by domain.
    """
    if isinstance(config, PairConfig | ProxyConfig):
        from guie.losses.metric_learning import PeerLoss  # takes a second to import

        return PeerLoss(config, len(sizes), dim)
    return CRITERIA[type(config)](config, dim, sizes, domains)


def _margin_softmax(
    config: MarginSoftmaxConfig, dim: int, sizes: Sequence[int], domains: Sequence[str]
) -> MarginSoftmax:
    return MarginSoftmax(
        len(sizes),
        dim,
        RULES[type(config)](config, sizes),
        scale=config.scale,
        centers=config.centers,
        start=config.init,
        edges=domain_edges(domains) if config.classifier == "separate" else None,
    )


def _curricularface(config: CurricularFaceConfig, sizes: Sequence[int]) -> MarginRule:
    per_class = config.running_mean == "class"
    return CurricularFace(_margin(config.margin_rad, sizes), len(sizes) if per_class else None)


def _margin(margin: Margin, sizes: Sequence[int]) -> float | Tensor | MarginSchedule:
    return class_size_margins(sizes, margin) if isinstance(margin, ClassSizeMargin) else margin


def domain_edges(domains: Sequence[str]) -> list[int]:
    """Return the bounds of the domains' class id ranges: ["a", "a", "b"] -> [0, 2, 3].

    Raises UserError if the class ids of a domain are not contiguous.
    """
    starts = [i for i, domain in enumerate(domains) if i == 0 or domain != domains[i - 1]]
    firsts = [domains[i] for i in starts]
    for domain in firsts:
        if firsts.count(domain) > 1:
            raise UserError(
                f"classifier separate: the sorted classes of domain {domain} are not contiguous;"
                " name labels domain/class"
            )
    return [*starts, len(domains)]


RULES: dict[type, Callable[[Any, Sequence[int]], MarginRule]] = {
    SoftmaxConfig: lambda config, sizes: CosFace(0.0),
    CosFaceConfig: lambda config, sizes: CosFace(_margin(config.margin_cos, sizes)),
    ArcFaceConfig: lambda config, sizes: ArcFace(_margin(config.margin_rad, sizes)),
    CurricularFaceConfig: _curricularface,
}

# A new loss needs a config, a criterion, and a line here; a loss of pytorch-metric-learning, a config and a
# line in metric_learning.py.
CRITERIA: dict[type, Callable[[Any, int, Sequence[int], Sequence[str]], Criterion]] = {
    **dict.fromkeys(RULES, _margin_softmax),
    BatchAllConfig: lambda config, *_: BatchAllTriplet(config.length),
    HyperbolicConfig: lambda config, *_: Hyperbolic(
        config.curvature, config.radius, config.temperature
    ),
}
