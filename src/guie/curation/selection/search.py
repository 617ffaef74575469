"""Run a greedy selection: each step is printed, logged and written; a spent budget ends it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from guie.base.errors import UserError
from guie.base.files import write_json
from guie.config.selection import SelectionRule
from guie.curation.selection.candidates import Candidate, Mix, mix_name
from guie.curation.selection.evaluations import BudgetSpent, Evaluations
from guie.curation.selection.greedy import Step, select


@dataclass(frozen=True)
class SearchResult:
    """The mix that a search ended at, and its steps."""

    mix: Mix
    steps: list[Step]
    stopped: str  # "no gain" or "budget"


def search(
    candidates: Sequence[Candidate],
    evaluations: Evaluations,
    rule: SelectionRule,
    out: Path,
    start: Mix = frozenset(),
) -> SearchResult:
    """Select greedily until nothing gains or the budget is spent.

    Args:
        out: JSON file with the steps so far, written anew after each.

    Raises:
        UserError: the budget ends before the first step does.
    """
    steps: list[Step] = []
    stopped = "no gain"
    try:
        for step in select(candidates, evaluations.scores, rule, start):
            steps.append(step)
            tqdm.write(_step_line(step))
            _write(out, steps, evaluations, "not yet")
    except BudgetSpent:
        stopped = "budget"
    if not steps:
        needed = len(candidates) * rule.seeds + rule.confirm_seeds
        raise UserError(
            "selection.rule: the budget ends within the first step; allow it"
            f" {needed} evaluations or more, and the minutes that they take"
        )
    _write(out, steps, evaluations, stopped)
    return SearchResult(steps[-1].mix, steps, stopped)


def _step_line(step: Step) -> str:
    verdict = "taken" if step.accepted else "turned down"
    gain = f"gain {step.gain:+.4f} (standard error {step.standard_error:.4f})"
    return f"{step.direction}: {step.change} {verdict}, {gain}; score {step.score:.4f}"


def _write(out: Path, steps: Sequence[Step], evaluations: Evaluations, stopped: str) -> None:
    report = {
        "mix": mix_name(steps[-1].mix),
        "stopped": stopped,
        "evaluations": len(evaluations.used),
        "training_seconds": round(evaluations.seconds, 1),
        "steps": [step.as_json() for step in steps],
    }
    write_json(out, report)
