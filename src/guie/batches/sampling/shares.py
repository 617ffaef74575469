"""How often each domain comes, and how many steps that makes. Shapes: D domains."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from guie.base.errors import UserError
from guie.config.sampling import (
    DatasetSizeConfig,
    MixedConfig,
    RoundRobinConfig,
    SamplerConfig,
    SpecialistStepsConfig,
)


def domain_shares(config: SamplerConfig, domains: Sequence[str], size_D: np.ndarray) -> np.ndarray:
    """Share of each domain, (D,), of sum 1; of a loss-driven plan, before any loss is known.

    Raises UserError where the config names a domain that is not there, or leaves one out.
    """
    if isinstance(config, MixedConfig | DatasetSizeConfig):
        log_D = np.log(size_D) / config.temperature
        weight_D = np.exp(log_D - log_D.max())  # a temperature near 0 would overflow
    elif isinstance(config, SpecialistStepsConfig):
        missing = sorted(set(domains) - set(config.steps))
        if missing:
            raise UserError(f"stages: sampler: steps has no entry for {', '.join(missing)}")
        _refuse_unknown("steps", config.steps, domains)
        weight_D = np.array([config.steps[domain] for domain in domains], dtype=float)
    else:
        weight_D = np.ones(len(domains))
    weight_D = weight_D * domain_factors(config, domains)
    return weight_D / weight_D.sum()


def domain_factors(config: SamplerConfig, domains: Sequence[str]) -> np.ndarray:
    """The config's factor of each domain, (D,), 1 where it names none."""
    if isinstance(config, RoundRobinConfig):
        return np.ones(len(domains))
    _refuse_unknown("factors", config.factors, domains)
    return np.array([config.factors.get(domain, 1.0) for domain in domains])


def apportion(
    share_D: np.ndarray, total: int, owed_D: np.ndarray | float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """`total` in whole numbers by share, (D,), none below 1; `total` is at least D.

    Hamilton's method: each is rounded down, the largest remainders get what is left. What one gets
    too little it is owed the next time: else the same domains would gain by rounding for ever.

    Args:
        share_D: of sum 1.
        total: how much there is to give.
        owed_D: what earlier calls rounded away, of sum 0.

    Returns: what each gets, and what each is owed from here on.
    """
    exact_D = at_least(share_D, 1 / total) * total + owed_D
    quota_D = np.maximum(1, np.floor(exact_D).astype(int))
    while quota_D.sum() < total:
        quota_D[np.argmin(quota_D - exact_D)] += 1
    while quota_D.sum() > total:
        quota_D[np.argmax(np.where(quota_D > 1, quota_D - exact_D, -np.inf))] -= 1
    return quota_D, exact_D - quota_D


def at_least(share_D: np.ndarray, least: float) -> np.ndarray:
    """Shares of sum 1 none of which is below `least`; the others give in proportion.

    So that nobody is owed, ever more, what had to be given to the least.
    """
    low_D = np.zeros(len(share_D), bool)
    while (below_D := ~low_D & (share_D < least)).any():
        low_D |= below_D
        left = 1 - least * low_D.sum()
        share_D = np.where(low_D, least, share_D * left / max(share_D[~low_D].sum(), 1e-300))
    return share_D


def _refuse_unknown(field: str, names: Iterable[str], domains: Sequence[str]) -> None:
    unknown = sorted(set(names) - set(domains))
    if unknown:
        raise UserError(
            f"stages: sampler: {field} names {', '.join(unknown)}; the domains of this stage are"
            f" {', '.join(domains)}"
        )
