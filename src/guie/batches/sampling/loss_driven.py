"""Domains by their loss: those that are still hard come more often. Shapes: P periods, D domains."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from guie.base.errors import UserError
from guie.batches.sampling.plans import Units, deal
from guie.batches.sampling.shares import apportion, domain_factors
from guie.batches.sampling.streams import key
from guie.config.sampling import LossDrivenConfig


class LossDriven:
    """One unit a step; every period its domains come in proportion to their mean loss.

    After Ypsilantis et al., UDON, NeurIPS 2024, with two departures; what weighs is the task's word
    (`Task.heeded`), UDON's teachers' loss or the loss that is trained on. The losses of period k set the
    shares of period k + 2, not k + 1: the batches of a period are known before it begins, so a loader may
    read up to a period ahead without changing what is trained on. And each domain gets at least a step of
    a period, so none is without a fresh loss. In the first two periods domains come equally often, but for
    the factors.

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
