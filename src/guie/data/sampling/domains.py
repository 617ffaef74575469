"""How often each domain comes, and which domains a step is of. Shapes: P periods, D domains, S steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from guie.base.errors import UserError
from guie.config.sampling import (
    DatasetSizeConfig,
    LossDrivenConfig,
    MixedConfig,
    RoundRobinConfig,
    SamplerConfig,
    SpecialistStepsConfig,
)
from guie.data.sampling.streams import key


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


Units = tuple[np.ndarray, np.ndarray]  # of each domain: taken by the step, and before it


class Plan(Protocol):
    """What `Sampler` asks of a plan."""

    def at(self, step: int) -> Units:
        """Units of each domain (D,): taken by this step, and by all steps before it."""

    def shares(self, step: int) -> np.ndarray:
        """The share of each domain (D,) around this step."""


class Cyclic:
    """One unit a step, of the domains in turn."""

    def __init__(self, domains: int):
        self.domains = np.arange(domains)

    def at(self, step: int) -> Units:
        turn, place = divmod(step, len(self.domains))
        return (self.domains == place).astype(int), turn + (self.domains < place)

    def shares(self, step: int) -> np.ndarray:
        return np.full(len(self.domains), 1 / len(self.domains))


class Shuffled:
    """Units in fixed shares, dealt to the steps of an epoch in a new order each time.

    Over any number of epochs every domain gets its share, give or take one unit, and in each step
    of an epoch as many units as in any other, give or take one.

    Args:
        share_D: of sum 1.
        steps: S, steps of an epoch.
        units: what a step takes, of all domains together; `steps * units` is at least D.
        seed: integers that tell this plan from all others.
    """

    def __init__(self, share_D: np.ndarray, steps: int, units: int, seed: Sequence[int]):
        self.share_D, self.steps, self.units, self.seed = share_D, steps, units, tuple(seed)
        self.given_ED, self.owed_D = [np.zeros(len(share_D), int)], np.zeros(len(share_D))
        self._before = lru_cache(maxsize=2)(self._deal)

    def at(self, step: int) -> Units:
        epoch, offset = divmod(step, self.steps)
        before_SD = self._before(epoch)
        taken_D = before_SD[offset + 1] - before_SD[offset]
        return taken_D, self.given_ED[epoch] + before_SD[offset]

    def shares(self, step: int) -> np.ndarray:
        return self.share_D

    def _deal(self, epoch: int) -> np.ndarray:
        while len(self.given_ED) < epoch + 2:
            quota_D, self.owed_D = apportion(self.share_D, self.steps * self.units, self.owed_D)
            self.given_ED.append(self.given_ED[-1] + quota_D)
        rng = np.random.default_rng([*self.seed, key("plan"), epoch])
        return deal(self.given_ED[epoch + 1] - self.given_ED[epoch], self.steps, rng)


def deal(quota_D: np.ndarray, steps: int, rng: np.random.Generator) -> np.ndarray:
    """Deal units to steps like cards, domain by domain, and shuffle the steps.

    Returns: (S + 1, D), units of each domain that were dealt before a step.
    """
    end_D = np.cumsum(quota_D)
    step_S1 = np.arange(steps)[:, None]

    def dealt_SD(card_D: np.ndarray) -> np.ndarray:  # to step s go cards s, s + S, s + 2S ...
        return (card_D - step_S1 + steps - 1) // steps

    taken_SD = (dealt_SD(end_D) - dealt_SD(end_D - quota_D))[rng.permutation(steps)]
    return np.concatenate([np.zeros((1, len(quota_D)), int), np.cumsum(taken_SD, axis=0)])


class LossDriven:
    """One unit a step; every period its domains come in proportion to their mean loss.

    After Ypsilantis et al., UDON, NeurIPS 2024. The task chooses the loss that weighs (`Task.sampler_loss`):
    that of the teachers, as in UDON, or the training loss. There are two departures. The losses of period k
    set the shares of period k + 2, not k + 1: so the batches of a period are known before it begins, and a loader
    may read ahead. Each domain gets at least one step a period, so that its loss stays fresh. In the first
    two periods domains come equally often, but for the factors.

    A step is a pure function of (seed, step, state). The state is the shares of every period that is
    decided, and the losses of the one that is running.

    Args:
        domains: their names.
        config: period, memory, factors.
        seed: integers that tell this plan from all others.

    Raises:
        UserError: if a period has fewer steps than there are domains.
    """

    def __init__(self, domains: Sequence[str], config: LossDrivenConfig, seed: Sequence[int]):
        if config.period < len(domains):
            raise UserError(
                f"stages: sampler: period: {config.period} steps are below the"
                f" {len(domains)} domains, each of which needs a step; at least {len(domains)}"
            )
        self.config, self.seed = config, tuple(seed)
        self.factor_D = domain_factors(config, domains)
        self._before = lru_cache(maxsize=2)(self._deal)
        equal_D = self.factor_D / self.factor_D.sum()
        self._begin([equal_D, equal_D])

    def at(self, step: int) -> Units:
        """Units of each domain (D,): taken by this step, and by all steps before it.

        Raises UserError where the losses that decide it are not noted yet.
        """
        period, offset = divmod(step, self.config.period)
        if period >= len(self.shares_PD):
            raise UserError(
                f"stages: sampler: step {step} is wanted before the losses that decide it are known;"
                f" let period, {self.config.period} steps, be above twice data.workers"
            )
        before_SD = self._before(period)
        return before_SD[offset + 1] - before_SD[offset], self.given_PD[period] + before_SD[offset]

    def shares(self, step: int) -> np.ndarray:
        """The shares (D,) of this step's period."""
        return self.shares_PD[step // self.config.period]

    def note(self, step: int, loss: Tensor | float) -> None:
        """Take in the loss of a step: each step once, in order. Waits for the device once a period."""
        self.seen.append((int(self.at(step)[0].argmax()), torch.as_tensor(loss).detach()))
        if (step + 1) % self.config.period == 0:
            self._fold()
            self._decide(self._next_share())
            self._open_window()

    def state(self) -> dict[str, Any]:
        """What `load` goes on from: plain numbers in lists."""
        self._fold()
        shares = [share_D.tolist() for share_D in self.shares_PD]
        return {"shares": shares, "losses": self.loss_D.tolist(), "counts": self.count_D.tolist()}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from the state of a plan with the same arguments."""
        self._begin([np.array(share_D) for share_D in state["shares"]])
        self.loss_D, self.count_D = np.array(state["losses"]), np.array(state["counts"])

    def _begin(self, shares_PD: list[np.ndarray]) -> None:
        self._before.cache_clear()
        self.shares_PD: list[np.ndarray] = []
        self.given_PD = [np.zeros(len(self.factor_D), int)]
        self.owed_D = np.zeros(len(self.factor_D))
        for share_D in shares_PD:
            self._decide(share_D)
        self._open_window()

    def _decide(self, share_D: np.ndarray) -> None:
        self.shares_PD.append(share_D)
        quota_D, self.owed_D = apportion(share_D, self.config.period, self.owed_D)
        self.given_PD.append(self.given_PD[-1] + quota_D)

    def _deal(self, period: int) -> np.ndarray:
        quota_D = self.given_PD[period + 1] - self.given_PD[period]
        rng = np.random.default_rng([*self.seed, key("plan"), period])
        return deal(quota_D, self.config.period, rng)

    def _open_window(self) -> None:
        self.seen: list[tuple[int, Tensor]] = []
        self.loss_D, self.count_D = np.zeros(len(self.factor_D)), np.zeros(len(self.factor_D), int)

    def _fold(self) -> None:
        if not self.seen:
            return
        domains, losses = zip(*self.seen, strict=True)
        # One by one and in order: a sum that a checkpoint cut in two comes to the same bits.
        np.add.at(self.loss_D, list(domains), torch.stack(losses).double().cpu().numpy())
        np.add.at(self.count_D, list(domains), 1)
        self.seen = []

    def _next_share(self) -> np.ndarray:
        weight_D = np.maximum(self.loss_D / np.maximum(self.count_D, 1), 0) * self.factor_D
        old_D, memory = self.shares_PD[-1], self.config.memory
        if not 0 < weight_D.sum() < np.inf:  # no loss is left, or it is not finite
            return old_D
        return memory * old_D + (1 - memory) * weight_D / weight_D.sum()
