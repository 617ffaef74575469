"""Every evaluated mix on disk, one line each: a search that was killed goes on where it was.

A search is a pure function of the scores, and JSON keeps a float64 to the bit. So there is no state
to save: a restart walks the same way through the scores it finds here.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from guie.base.errors import UserError
from guie.base.files import append_text, write_text
from guie.curation.selection.candidates import Mix, mix_name


class Score(NamedTuple):
    """What training on a mix reached on val."""

    value: float  # what the search raises
    domains: dict[str, float]  # the same metric, of each domain


class BudgetSpent(Exception):
    """The next score would need an evaluation more than the budget has."""


class Evaluations:
    """Scores of mixes by seed, from the log where they stand in it, else from the evaluator.

    The budget counts what the search has asked for, from the log or not, and the seconds that it
    took when it was computed. So it ends a search at the same place, however often restarted.

    Args:
        path: the log, JSON lines.
        identity: all that a score depends on besides mix and seed; the log's first line states it.
        evaluate: trains on a mix with a seed.
        max_evaluations, max_minutes: the budget; None for no limit.

    Raises:
        UserError: the log has another identity, or is none.
    """

    def __init__(
        self,
        path: Path,
        identity: str,
        evaluate: Callable[[Mix, int], Score],
        max_evaluations: int | None = None,
        max_minutes: float | None = None,
    ):
        self.path, self.evaluate = path, evaluate
        self.max_evaluations = max_evaluations or math.inf
        self.max_seconds = 60 * max_minutes if max_minutes else math.inf
        self.known = _read(path, identity)
        self.used: dict[tuple[str, int], dict[str, Any]] = {}
        self.bar = tqdm(desc="evaluations", unit="run", initial=0)

    def scores(self, mix: Mix, seeds: range) -> np.ndarray:
        """Score of the mix under each seed, float64 [S]. Raises BudgetSpent."""
        return np.array([self._score(mix, seed) for seed in seeds])

    def _score(self, mix: Mix, seed: int) -> float:
        key = mix_name(mix), seed
        if key not in self.used:
            if len(self.used) >= self.max_evaluations or self.seconds >= self.max_seconds:
                raise BudgetSpent
            self.used[key] = self.known.get(key) or self._evaluate(mix, seed)
            self.bar.update()
        return self.used[key]["score"]

    @property
    def seconds(self) -> float:
        """Spent on the evaluations that this search has asked for."""
        return sum(line["seconds"] for line in self.used.values())

    def _evaluate(self, mix: Mix, seed: int) -> dict[str, Any]:
        began = time.monotonic()
        score = self.evaluate(mix, seed)
        if not math.isfinite(score.value):
            raise UserError(f"{mix_name(mix)}: its score is {score.value}; lower the learning rate")
        line = {
            "mix": mix_name(mix),
            "seed": seed,
            "score": score.value,
            "domains": score.domains,
            "seconds": round(time.monotonic() - began, 3),
        }
        append_text(self.path, json.dumps(line, ensure_ascii=False) + "\n")
        return line


def _read(path: Path, identity: str) -> dict[tuple[str, int], dict[str, Any]]:
    """The log's lines by mix and seed; begins the log where there is none."""
    first = json.dumps({"identity": identity})
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    whole, _, torn = text.rpartition("\n")
    head, *lines = whole.split("\n")
    if not whole:
        head = first
    elif head != first:
        raise UserError(
            f"{path}: holds scores of other images, features or settings; name another log, or"
            " delete this one"
        )
    try:
        entries = [json.loads(line) for line in lines]
        known = {(entry["mix"], entry["seed"]): entry for entry in entries}
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path}: not a log of evaluations; delete it") from None
    if torn or not whole:  # a kill fell into a write, or the log is new
        write_text(path, "\n".join([head, *lines]) + "\n")
    return known
