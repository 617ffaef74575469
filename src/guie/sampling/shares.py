"""How often each domain comes, and how many steps that makes. Shapes: D domains."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from guie.config.sampling import (
    DatasetSizeConfig,
    MixedConfig,
    RoundRobinConfig,
    SamplerConfig,
    SpecialistStepsConfig,
)
from guie.errors import UserError


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


def apportion(share_D: np.ndarray, total: int) -> np.ndarray:
    """`total` in whole numbers by share, (D,), none below 1; `total` is at least D.

    Hamilton's method: each is rounded down, the largest remainders get what is left. So none is off
    by a whole one, unless domains that had to be given their 1 took it from others.
    """
    exact_D = share_D * total
    quota_D = np.maximum(1, np.floor(exact_D).astype(int))
    while quota_D.sum() < total:
        quota_D[np.argmin(quota_D - exact_D)] += 1
    while quota_D.sum() > total:
        quota_D[np.argmax(np.where(quota_D > 1, quota_D - exact_D, -np.inf))] -= 1
    return quota_D


def _refuse_unknown(field: str, names: Iterable[str], domains: Sequence[str]) -> None:
    unknown = sorted(set(names) - set(domains))
    if unknown:
        raise UserError(
            f"stages: sampler: {field} names {', '.join(unknown)}; the domains of this stage are"
            f" {', '.join(domains)}"
        )
