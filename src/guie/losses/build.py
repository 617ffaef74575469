"""From a loss's config to the loss."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from guie.config.losses import (
    BatchAllConfig,
    ClassSizeMargin,
    CosFaceConfig,
    CurricularFaceConfig,
    HyperbolicConfig,
    LossConfig,
    Margin,
    MarginSchedule,
    MarginSoftmaxConfig,
    SoftmaxConfig,
)
from guie.errors import UserError
from guie.losses.in_batch import BatchAllTriplet, Hyperbolic
from guie.losses.margins import class_size_margins
from guie.losses.pml import BUILDERS, PeerLoss
from guie.losses.rules import ArcFace, CosFace, CurricularFace, MarginRule
from guie.losses.softmax import MarginSoftmax


def build_loss(
    config: LossConfig, dim: int, sizes: Sequence[int], domains: Sequence[str]
) -> nn.Module:
    """The configured loss; its forward takes unit-length embeddings and class ids.

    Args:
        config: which, and its settings.
        dim: the embedding's dimension.
        sizes: training images of every class, by class id.
        domains: domain of every class, by class id.

    Raises:
        UserError: if a softmax per domain is wanted of classes that are not sorted by domain.
    """
    if isinstance(config, BatchAllConfig):
        return BatchAllTriplet(config.length)
    if isinstance(config, HyperbolicConfig):
        return Hyperbolic(config.curvature, config.radius, config.temperature)
    if type(config) in BUILDERS:
        return PeerLoss(config, len(sizes), dim)
    return MarginSoftmax(
        len(sizes),
        dim,
        _rule(config, sizes),
        scale=config.scale,
        centers=config.centers,
        start=config.start,
        edges=domain_edges(domains) if config.classifier == "separate" else None,
    )


def _rule(config: MarginSoftmaxConfig, sizes: Sequence[int]) -> MarginRule:
    if isinstance(config, SoftmaxConfig):
        return CosFace(0.0)
    if isinstance(config, CosFaceConfig):
        return CosFace(_margin(config.margin_cos, sizes))
    margin_rad = _margin(config.margin_rad, sizes)
    if isinstance(config, CurricularFaceConfig):
        per_class = config.running_mean == "class"
        return CurricularFace(margin_rad, len(sizes) if per_class else None)
    return ArcFace(margin_rad)


def _margin(margin: Margin, sizes: Sequence[int]) -> float | Tensor | MarginSchedule:
    return class_size_margins(sizes, margin) if isinstance(margin, ClassSizeMargin) else margin


def domain_edges(domains: Sequence[str]) -> list[int]:
    """Bounds of the domains' ranges of class ids: ["a", "a", "b"] -> [0, 2, 3].

    Raises UserError where the classes of a domain do not stand together.
    """
    starts = [i for i, domain in enumerate(domains) if i == 0 or domain != domains[i - 1]]
    firsts = [domains[i] for i in starts]
    for domain in firsts:
        if firsts.count(domain) > 1:
            raise UserError(
                f"classifier separate: the classes of domain {domain} do not stand together when"
                " sorted; name the labels domain/class"
            )
    return [*starts, len(domains)]
