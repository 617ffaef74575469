"""Build a loss from its config."""

from collections.abc import Sequence

from guie.base.errors import UserError
from guie.config.losses import (
    CustomLossConfig,
    CustomRuleConfig,
    LinearSoftmaxConfig,
    LossConfig,
    OwnInBatchConfig,
    PairConfig,
    ProxyConfig,
)
from guie.losses.base import Criterion
from guie.losses.custom import build_custom
from guie.losses.in_batch import OwnInBatchLoss
from guie.losses.margin_softmax import LinearSoftmax, MarginSoftmax
from guie.losses.rules import RULES


def build_loss(
    config: LossConfig, dim: int, sizes: Sequence[int], domains: Sequence[str]
) -> Criterion:
    """Return the configured loss on embeddings of this dimension.

    Args:
        sizes, domains: training images, and the domain, of every class by id.

    Raises UserError if a softmax per domain is configured and classes are not sorted by domain, or the
    embedding cannot be the logits.
    """
    if isinstance(config, PairConfig | ProxyConfig):
        from guie.losses.metric_learning import MetricLearningLoss  # takes a second to import

        return MetricLearningLoss(config, len(sizes), dim)
    if isinstance(config, CustomLossConfig):
        return build_custom(config, dim, sizes, domains)
    if isinstance(config, LinearSoftmaxConfig):
        return LinearSoftmax(config, len(sizes), dim)
    if isinstance(config, OwnInBatchConfig):
        return OwnInBatchLoss(config)
    if isinstance(config, CustomRuleConfig):
        rule = build_custom(config, dim, sizes, domains)
    else:
        rule = RULES[type(config)](config, sizes)
    return MarginSoftmax(
        len(sizes),
        dim,
        rule,
        scale=config.scale,
        centers=config.centers,
        start=config.init,
        edges=domain_edges(domains) if config.classifier == "separate" else None,
    )


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
