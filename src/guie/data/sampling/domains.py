"""Choose how often each domain occurs, and in which steps. Shapes: P periods, D domains, S steps."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from guie.base.errors import UserError
from guie.config.sampling import (
    DatasetSizeConfig,
    DomainSamplerConfig,
    LossDrivenConfig,
    MixedConfig,
    RoundRobinConfig,
    SpecialistStepsConfig,
)
from guie.data.sampling.streams import key

Units = tuple[np.ndarray, np.ndarray]  # per domain: units in this step, and in all earlier steps


def domain_shares(
    config: DomainSamplerConfig, domains: Sequence[str], size_D: np.ndarray
) -> np.ndarray:
    """Return the share of each domain, (D,), sum 1; for a loss-driven plan, before any loss is known.

    Raises UserError if the config names an unknown domain, or leaves one out.
    """
    if isinstance(config, MixedConfig | DatasetSizeConfig):
        log_D = np.log(size_D) / config.temperature
        weight_D = np.exp(log_D - log_D.max())  # a temperature near 0 would overflow
    elif isinstance(config, SpecialistStepsConfig):
        if missing := sorted(set(domains) - set(config.steps)):
            raise UserError(f"stages: sampler: steps has no entry for {', '.join(missing)}")
        _refuse_unknown("steps", config.steps, domains)
        weight_D = np.array([config.steps[domain] for domain in domains], dtype=float)
    else:
        weight_D = np.ones(len(domains))
    weight_D = weight_D * domain_factors(config, domains)
    return weight_D / weight_D.sum()


def domain_factors(config: DomainSamplerConfig, domains: Sequence[str]) -> np.ndarray:
    """Return the config's factor of each domain, (D,); 1 if it names none."""
    if isinstance(config, RoundRobinConfig):
        return np.ones(len(domains))
    _refuse_unknown("factors", config.factors, domains)
    return np.array([config.factors.get(domain, 1.0) for domain in domains])


def apportion(
    share_D: np.ndarray, total: int, owed_D: np.ndarray | float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Split `total` >= D into whole numbers by shares with sum 1, (D,), each at least 1.

    Hamilton's method: round down, then add 1 to the largest remainders. The rounding error `owed_D`, with
    sum 0, is carried to the next call, or the same domains would profit from rounding every time.

    Returns: the number for each domain, and the new accumulated rounding error.
    """
    exact_D = at_least(share_D, 1 / total) * total + owed_D
    quota_D = np.maximum(1, np.floor(exact_D).astype(int))
    while quota_D.sum() < total:
        quota_D[np.argmin(quota_D - exact_D)] += 1
    while quota_D.sum() > total:
        quota_D[np.argmax(np.where(quota_D > 1, quota_D - exact_D, -np.inf))] -= 1
    return quota_D, exact_D - quota_D


def at_least(share_D: np.ndarray, least: float) -> np.ndarray:
    """Raise shares to at least `least` and shrink the others in proportion; the sum stays 1.

    Otherwise the rounding error of the larger domains would grow without limit.
    """
    low_D = np.zeros(len(share_D), bool)
    while (below_D := ~low_D & (share_D < least)).any():
        low_D |= below_D
        left = 1 - least * low_D.sum()
        share_D = np.where(low_D, least, share_D * left / max(share_D[~low_D].sum(), 1e-300))
    return share_D


def _refuse_unknown(field: str, names: Iterable[str], domains: Sequence[str]) -> None:
    if unknown := ", ".join(sorted(set(names) - set(domains))):
        known = f"the domains of this stage are {', '.join(domains)}"
        raise UserError(f"stages: sampler: {field} names {unknown}; {known}")


class Cyclic:
    """One unit per step, cycling through the domains."""

    def __init__(self, domains: int):
        self.domains = np.arange(domains)

    def at(self, step: int) -> Units:
        turn, place = divmod(step, len(self.domains))
        return (self.domains == place).astype(int), turn + (self.domains < place)

    def shares(self, step: int) -> np.ndarray:
        return np.full(len(self.domains), 1 / len(self.domains))


class _Dealt:
    """Units that are split by share in every period of S steps, and dealt to its steps in random order."""

    def __init__(self, domains: int, steps: int, units: int, seed: Sequence[int]):
        self.steps, self.units, self.seed = steps, units, tuple(seed)
        self.given_PD, self.owed_D = [np.zeros(domains, int)], np.zeros(domains)
        self._before = lru_cache(maxsize=2)(self._deal)

    def at(self, step: int) -> Units:
        period, offset = divmod(step, self.steps)
        before_SD = self._before(period)
        return before_SD[offset + 1] - before_SD[offset], self.given_PD[period] + before_SD[offset]

    def _decide(self, share_D: np.ndarray) -> None:
        quota_D, self.owed_D = apportion(share_D, self.steps * self.units, self.owed_D)
        self.given_PD.append(self.given_PD[-1] + quota_D)

    def _deal(self, period: int) -> np.ndarray:
        """Deal units to the steps in turn, domain by domain; return those before each step, (S + 1, D)."""
        quota_D = self.given_PD[period + 1] - self.given_PD[period]
        end_D = np.cumsum(quota_D)
        step_S1 = np.arange(self.steps)[:, None]

        def dealt_SD(unit_D: np.ndarray) -> np.ndarray:  # step s gets units s, s + S, s + 2S ...
            return (unit_D - step_S1 + self.steps - 1) // self.steps

        rng = np.random.default_rng([*self.seed, key("plan"), period])
        taken_SD = (dealt_SD(end_D) - dealt_SD(end_D - quota_D))[rng.permutation(self.steps)]
        return np.concatenate([np.zeros((1, len(quota_D)), int), np.cumsum(taken_SD, axis=0)])


class Shuffled(_Dealt):
    """Units in fixed shares, distributed over the steps of an epoch in a new order each time.

    Over any number of epochs every domain gets its share within one unit. Within an epoch, its units per
    step differ by at most one.

    Args:
        share_D: shares with sum 1.
        steps: S, steps per epoch.
        units: units per step over all domains; `steps * units` is at least D.
    """

    def __init__(self, share_D: np.ndarray, steps: int, units: int, seed: Sequence[int]):
        super().__init__(len(share_D), steps, units, seed)
        self.share_D = share_D

    def at(self, step: int) -> Units:
        while len(self.given_PD) < step // self.steps + 2:
            self._decide(self.share_D)
        return super().at(step)

    def shares(self, step: int) -> np.ndarray:
        return self.share_D


class LossDriven(_Dealt):
    """One unit per step; in every period, domains occur in proportion to their mean loss.

    After Ypsilantis et al., UDON, NeurIPS 2024. The task selects the loss (`Task.sampler_loss`): that of the
    teachers, as in UDON, or the training loss. There are two differences. The losses of period k set the
    shares of period k + 2, not k + 1: the batches of a period are then known before it starts, and a loader
    can prefetch. Each domain gets at least one step per period, so that its loss stays current. In the first
    two periods all domains are equally frequent, apart from the factors.

    A step is a pure function of (seed, step, state). The state is the shares of all periods decided so
    far, and the losses of the current period.

    Raises UserError if a period has fewer steps than there are domains.
    """

    def __init__(self, domains: Sequence[str], config: LossDrivenConfig, seed: Sequence[int]):
        if config.period < (count := len(domains)):
            fault = (
                f"{config.period} steps are too few, as each of the {count} domains needs a step"
            )
            raise UserError(f"stages: sampler: period: {fault}; set at least {count}")
        super().__init__(len(domains), config.period, 1, seed)
        self.memory, self.factor_D = config.memory, domain_factors(config, domains)
        self.shares_PD: list[np.ndarray] = []
        for _ in range(2):
            self._decide(self.factor_D / self.factor_D.sum())
        self._open_window()

    def at(self, step: int) -> Units:
        """Return `Units`. Raises UserError if the losses that decide the step are not known yet."""
        if step // self.steps >= len(self.shares_PD):
            raise UserError(
                f"stages: sampler: step {step} is requested before the losses that decide it are known;"
                f" set period, now {self.steps} steps, above twice data.workers"
            )
        return super().at(step)

    def shares(self, step: int) -> np.ndarray:
        return self.shares_PD[step // self.steps]

    def note(self, step: int, loss: Tensor | float) -> None:
        """Record the global batch's loss, equal in all processes, of each step once, in order.

        Synchronises with the device once per period.
        """
        self.seen.append((int(self.at(step)[0].argmax()), torch.as_tensor(loss).detach()))
        if (step + 1) % self.steps == 0:
            self._fold()
            self._decide(self._next_share())
            self._open_window()

    def state(self) -> dict[str, Any]:
        """Return the state for `load`: plain numbers in lists."""
        self._fold()
        shares = [share_D.tolist() for share_D in self.shares_PD]
        return {"shares": shares, "losses": self.loss_D.tolist(), "counts": self.count_D.tolist()}

    def load(self, state: dict[str, Any]) -> None:
        """Resume from the state of a plan with the same arguments."""
        self._before.cache_clear()
        self.shares_PD.clear()
        del self.given_PD[1:]
        self.owed_D = np.zeros(len(self.factor_D))
        for share_D in state["shares"]:
            self._decide(np.array(share_D))
        self._open_window()
        self.loss_D, self.count_D = np.array(state["losses"]), np.array(state["counts"])

    def _decide(self, share_D: np.ndarray) -> None:
        self.shares_PD.append(share_D)
        super()._decide(share_D)

    def _open_window(self) -> None:
        self.seen: list[tuple[int, Tensor]] = []
        self.loss_D, self.count_D = np.zeros(len(self.factor_D)), np.zeros(len(self.factor_D), int)

    def _fold(self) -> None:
        if not self.seen:
            return
        domains, losses = zip(*self.seen, strict=True)
        # One by one and in order: the sum is equal to the bit if a checkpoint interrupts it.
        np.add.at(self.loss_D, list(domains), torch.stack(losses).double().cpu().numpy())
        np.add.at(self.count_D, list(domains), 1)
        self.seen = []

    def _next_share(self) -> np.ndarray:
        weight_D = np.maximum(self.loss_D / np.maximum(self.count_D, 1), 0) * self.factor_D
        old_D, memory = self.shares_PD[-1], self.memory
        if not 0 < weight_D.sum() < np.inf:  # all losses are zero, or one is not finite
            return old_D
        return memory * old_D + (1 - memory) * weight_D / weight_D.sum()


# `at(step)` returns its `Units`, `shares(step)` the share of each domain (D,) around it
Plan = Cyclic | Shuffled | LossDriven
