"""Greedy selection: the candidate that raises the validation score most joins, until none does.

Scores are noisy, and the best of many noisy candidates looks better than it is. So every candidate
is compared with the mix so far over several seeds, seed by seed, and the best one must show its
gain again on seeds that had no part in choosing it. Every step has seeds of its own: on those that
chose it, the mix so far looks better than it is as well. Shape suffix: S seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from guie.config.selection import SelectionRule
from guie.curation.selection.candidates import Candidate, Mix, mix_name

Scores = Callable[[Mix, range], np.ndarray]  # of a mix under each seed: float64 [S]


@dataclass(frozen=True)
class Trial:
    """A mix that the search looked at from another one."""

    change: str  # "+cars", "-cars", "cars@20 -> cars"
    mix: Mix
    gains_S: np.ndarray = field(repr=False)  # over the mix so far, with the same seed

    @property
    def gain(self) -> float:
        return float(self.gains_S.mean())


@dataclass(frozen=True)
class Step:
    """One step of the search. The last of a direction is not accepted: nothing gained enough."""

    direction: str
    change: str
    mix: Mix  # after the step
    score: float  # mean over the seeds that judged it: fresh ones where there are any
    gain: float  # on the same seeds; of the first source, its score
    standard_error: float  # of the gain; 0 for the first source
    accepted: bool
    tried: dict[str, float]  # gain of every candidate, by its change

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "mix": mix_name(self.mix)}


def select(
    candidates: Sequence[Candidate], scores: Scores, rule: SelectionRule, start: Mix = frozenset()
) -> Iterator[Step]:
    """Yield the search step by step.

    Forward: a candidate joins, or takes the place of its source under another cap. Backward: one
    leaves. The search starts from `start`; a search that begins backward without one, from every
    source under its largest cap. No mix is visited twice, so the search ends.
    """
    mix = start
    if not mix and rule.directions[0] == "backward":
        mix = frozenset({c.source: c for c in sorted(candidates, key=_size)}.values())
    visited, first_seed = {mix}, 0
    for direction in rule.directions:
        while True:
            possible = _additions(mix, candidates) if direction == "forward" else _removals(mix)
            moves = {new: change for new, change in possible if new not in visited}
            if not moves:
                break
            step = _step(direction, mix, moves, first_seed, scores, rule)
            yield step
            first_seed += rule.seeds + rule.confirm_seeds
            if not step.accepted:
                break
            mix = step.mix
            visited.add(mix)


def _size(candidate: Candidate) -> float:
    return candidate.cap or math.inf


def _additions(mix: Mix, candidates: Sequence[Candidate]) -> Iterator[tuple[Mix, str]]:
    present = {candidate.source: candidate for candidate in mix}
    for candidate in sorted(set(candidates) - mix):
        old = present.get(candidate.source)
        change = f"{old} -> {candidate}" if old else f"+{candidate}"
        yield mix - {old} | {candidate}, change


def _removals(mix: Mix) -> Iterator[tuple[Mix, str]]:
    if len(mix) > 1:
        yield from ((mix - {candidate}, f"-{candidate}") for candidate in sorted(mix))


def _step(
    direction: str,
    mix: Mix,
    moves: dict[Mix, str],
    first_seed: int,
    scores: Scores,
    rule: SelectionRule,
) -> Step:
    """Compare all moves; take the best one if it shows its gain again."""
    screen = range(first_seed, first_seed + rule.seeds)
    trials = [_trial(mix, new, change, scores, screen) for new, change in moves.items()]
    best = max(trials, key=lambda trial: trial.gain)  # of equals, the first of the moves
    gain, seeds = best.gain, screen
    error = standard_error([trial.gains_S for trial in trials]) if mix else 0.0
    if rule.confirm_seeds and (gain > 0 or not mix):
        seeds = range(screen.stop, screen.stop + rule.confirm_seeds)
        gain = _trial(mix, best.mix, best.change, scores, seeds).gain
        error *= math.sqrt(rule.seeds / rule.confirm_seeds)
    accepted = not mix or gain > rule.min_standard_errors * error
    reached = best.mix if accepted else mix
    return Step(
        direction=direction,
        change=best.change,
        mix=reached,
        score=float(scores(reached, seeds).mean()),
        gain=gain,
        standard_error=error,
        accepted=accepted,
        tried={trial.change: trial.gain for trial in trials},
    )


def _trial(mix: Mix, new: Mix, change: str, scores: Scores, seeds: range) -> Trial:
    before_S = scores(mix, seeds) if mix else np.zeros(len(seeds))
    return Trial(change, new, scores(new, seeds) - before_S)


def standard_error(gains: Sequence[np.ndarray]) -> float:
    """Standard error of one mean gain, with the spread over seeds pooled over the candidates.

    A handful of seeds estimates the spread of one candidate badly, of all of them together well.
    """
    variance = np.mean([gains_S.var(ddof=1) for gains_S in gains])
    return math.sqrt(variance / len(gains[0]))
