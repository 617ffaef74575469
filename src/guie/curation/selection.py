"""Greedy selection of data sets: candidates, the search, and its on-disk log of evaluations."""

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from tqdm import tqdm

from guie.base.errors import UserError
from guie.base.files import append_text, write_json, write_text
from guie.config.data import SelectionConfig, SelectionRule
from guie.curation.classes import cap
from guie.curation.evaluators import FullTraining, Proxy, Score
from guie.curation.features import Job
from guie.data.manifest import Sidecar

COLUMNS = ["step", "change", "gain", "standard_error", "score", "mix"]  # of `gains`


class Candidate(NamedTuple):
    """A source, which is a domain or a data set; `cap` 0 takes all images of a class."""

    source: str
    cap: int = 0

    def __str__(self) -> str:
        return f"{self.source}@{self.cap}" if self.cap else self.source


Mix = frozenset[Candidate]
Scores = Callable[[Mix, range], np.ndarray]  # (mix, seeds) -> score for each seed, float64 [S]


@dataclass(frozen=True)
class Step:
    """One step of the search. The last step of a direction is rejected: its gain is too small."""

    direction: str
    change: str  # "+cars", "-cars", "cars@20 -> cars"
    mix: Mix  # after the step
    score: float  # mean over the confirmation seeds if there are any, else the screening seeds
    gain: float  # on the same seeds; for the first source, its score
    standard_error: float  # of the gain; 0 for the first source
    accepted: bool
    tried: dict[str, float]  # gain of every candidate, by its change


def select_rows(
    table: pd.DataFrame, selection: SelectionConfig, job: Job, sidecar: Sidecar
) -> pd.DataFrame:
    """Return the train rows of the best mix found, with all of val and test. Raises UserError."""
    if not (table["split"] == "val").any():
        raise UserError("selection: needs a val split to score mixes on; raise val_fraction")
    if selection.by not in table or (table[selection.by] == "").any():
        raise UserError(f"selection.by: some rows have no {selection.by}; set it to domain")
    config = job.config
    evaluator: Proxy | FullTraining
    if selection.evaluator == "proxy":
        assert selection.proxy is not None  # checked with the config
        feat_NF = job.embed(selection.proxy)(table["image_path"].tolist(), "whole")
        evaluator = Proxy(feat_NF, table, selection.proxy, selection.metric)
    else:
        evaluator = FullTraining(table, selection, config, sidecar)

    def evaluate(mix: Mix, seed: int) -> Score:
        rows = mix_rows(table, mix, selection.by, config.seed)
        return evaluator.score(rows, seed, mix_name(mix))

    identity = f"{evaluator.identity} {selection.by} {config.seed}"
    log = config.beside(".selection.jsonl")
    evaluations = Evaluations(log, identity, evaluate, selection.rule)
    candidates = candidates_of(table, selection.by, selection.caps)
    steps = search(candidates, evaluations, config.beside(".selection.json"))
    job.report.gains = gains(steps)
    table_of_steps = job.report.gains.drop(columns="mix")
    print(table_of_steps.to_string(index=False, na_rep="-", float_format="{:.4f}".format))
    chosen = mix_rows(table, steps[-1].mix, selection.by, config.seed)
    return pd.concat([chosen, table[table["split"] != "train"]], ignore_index=True)


def candidates_of(table: pd.DataFrame, by: str, caps: Sequence[int | None]) -> list[Candidate]:
    """List every source (a value of `by`) of the train rows with every cap; skip caps without an effect."""
    train = table[table["split"] == "train"]
    largest = train.groupby([by, "label"]).size().groupby(level=0).max()
    found = {
        Candidate(source, most if most and most < images else 0)
        for source, images in largest.items()
        for most in caps
    }
    return sorted(found)


def mix_name(mix: Iterable[Candidate]) -> str:
    """Name a mix, for example `cars@50+logos`, independently of the order of its candidates."""
    return "+".join(str(candidate) for candidate in sorted(mix))


def mix_rows(table: pd.DataFrame, mix: Mix, by: str, seed: int) -> pd.DataFrame:
    """Return the train rows of a mix, indexed from 0. Caps choose images by `seed`."""
    found = []
    for one in sorted(mix):
        own = (table["split"] == "train") & (table[by] == one.source)
        rows = table[own].reset_index(drop=True)
        found.append(cap(rows, one.cap, seed=seed) if one.cap else rows)
    return pd.concat(found, ignore_index=True)


def gains(steps: Sequence[Step]) -> pd.DataFrame:
    """Tabulate the accepted steps in order, then the rejected changes by gain, without a number.

    The gain of an accepted step is measured on the confirmation seeds, if the rule has any. The gain of a
    rejected change is from the comparison of candidates. COLUMNS has score and mix after the step.
    """
    rows: list[tuple[Any, ...]] = [
        (number, step.change, step.gain, step.standard_error, step.score, mix_name(step.mix))
        for number, step in enumerate((step for step in steps if step.accepted), start=1)
    ]
    for step in steps:
        if not step.accepted:
            tried = sorted(step.tried.items(), key=lambda item: -item[1])
            rows += [(pd.NA, change, gain, pd.NA, pd.NA, "") for change, gain in tried]
    return pd.DataFrame(rows, columns=COLUMNS).astype(
        {"step": "Int64", "gain": "float64", "standard_error": "Float64", "score": "Float64"}
    )


class BudgetSpent(Exception):
    """The next score needs an evaluation that the budget does not allow."""


class Evaluations:
    """Scores of mixes by seed, from the log if they are in it, otherwise from the evaluator.

    The budget counts every score that the search uses, logged or not, and the seconds that its
    computation took. So a search ends at the same step however often it is restarted.

    The log is JSON lines. Its first one is the identity: everything that a score depends on except mix and
    seed. Raises UserError if the log has another identity, or is not a log.
    """

    def __init__(
        self,
        path: Path,
        identity: str,
        evaluate: Callable[[Mix, int], Score],
        rule: SelectionRule,
    ):
        self.path, self.evaluate, self.rule = path, evaluate, rule
        self.max_evaluations = rule.max_evaluations or math.inf
        self.max_seconds = 60 * (rule.max_minutes or math.inf)
        self.known = _read(path, identity)
        self.used: dict[tuple[str, int], dict[str, Any]] = {}
        self.bar = tqdm(desc="evaluations", unit="run")

    @property
    def seconds(self) -> float:
        """Total seconds of the evaluations that this search uses."""
        return sum(line["seconds"] for line in self.used.values())

    def scores(self, mix: Mix, seeds: range) -> np.ndarray:
        """Return the score of the mix for each seed, float64 [S]. Raises BudgetSpent."""
        for seed in seeds:
            key = mix_name(mix), seed
            if key not in self.used:
                if len(self.used) >= self.max_evaluations or self.seconds >= self.max_seconds:
                    raise BudgetSpent
                self.used[key] = self.known.get(key) or self._evaluate(mix, seed)
                self.bar.update()
        return np.array([self.used[mix_name(mix), seed]["score"] for seed in seeds])

    def _evaluate(self, mix: Mix, seed: int) -> dict[str, Any]:
        """Compute a score, and append it to the log."""
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
    """Return the log's lines by mix and seed; create the log if it does not exist."""
    first = json.dumps({"identity": identity})
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    whole, _, torn = text.rpartition("\n")
    head, *lines = whole.split("\n")
    if whole and head != first:
        raise UserError(
            f"{path}: contains scores of other images, features or settings; write the mix elsewhere,"
            " or delete this file"
        )
    try:
        entries = [json.loads(line) for line in lines]
        known = {(entry["mix"], entry["seed"]): entry for entry in entries}
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path}: not a log of evaluations; delete it") from None
    if torn or not whole:  # a write was interrupted, or the log is new
        write_text(path, "\n".join([first, *lines]) + "\n")
    return known


def select(candidates: Sequence[Candidate], scores: Scores, rule: SelectionRule) -> Iterator[Step]:
    """Yield the steps of the search, which starts without a source.

    A forward step adds a candidate, or changes the cap of a source. A backward step removes one. If the
    first direction is backward, the start is every source with its largest cap. No mix is visited twice.
    """
    mix: Mix = frozenset()
    if rule.directions[0] == "backward":
        by_size = sorted(candidates, key=lambda candidate: candidate.cap or math.inf)
        mix = frozenset({candidate.source: candidate for candidate in by_size}.values())
    visited, first_seed = {mix}, 0
    for direction in rule.directions:
        accepted = True
        while accepted:
            if direction == "forward":
                moves = _additions(mix, candidates)
            else:
                moves = {mix - {one}: f"-{one}" for one in sorted(mix) if len(mix) > 1}
            moves = {new: change for new, change in moves.items() if new not in visited}
            if not moves:
                break
            step = _step(direction, mix, moves, first_seed, scores, rule)
            yield step
            first_seed += rule.seeds + rule.confirm_seeds
            mix, accepted = step.mix, step.accepted
            visited.add(mix)


def _additions(mix: Mix, candidates: Sequence[Candidate]) -> dict[Mix, str]:
    """Return the mixes with one more candidate, or another cap of a source, and the change."""
    present = {candidate.source: candidate for candidate in mix}
    moves = {}
    for candidate in sorted(set(candidates) - mix):
        old = present.get(candidate.source)
        moves[mix - {old} | {candidate}] = f"{old} -> {candidate}" if old else f"+{candidate}"
    return moves


def _step(
    direction: str,
    mix: Mix,
    moves: dict[Mix, str],
    first_seed: int,
    scores: Scores,
    rule: SelectionRule,
) -> Step:
    """Compare all moves; accept the best one if the confirmation seeds confirm its gain."""

    def gains_of(new: Mix, seeds: range) -> np.ndarray:
        """Return the gain of a new mix over the current one for each seed, float64 [S]."""
        before_S = scores(mix, seeds) if mix else np.zeros(len(seeds))
        return scores(new, seeds) - before_S

    seeds = range(first_seed, first_seed + rule.seeds)
    screened = {new: gains_of(new, seeds) for new in moves}
    gain_of = {new: float(gains_S.mean()) for new, gains_S in screened.items()}
    best = max(moves, key=gain_of.__getitem__)  # ties go to the first move
    gain = gain_of[best]
    error = standard_error([*screened.values()]) if mix else 0.0
    if rule.confirm_seeds and (gain > 0 or not mix):
        seeds = range(seeds.stop, seeds.stop + rule.confirm_seeds)
        gain = float(gains_of(best, seeds).mean())
        error *= math.sqrt(rule.seeds / rule.confirm_seeds)
    accepted = not mix or gain > rule.min_standard_errors * error
    reached = best if accepted else mix
    return Step(
        direction=direction,
        change=moves[best],
        mix=reached,
        score=float(scores(reached, seeds).mean()),
        gain=gain,
        standard_error=error,
        accepted=accepted,
        tried={change: gain_of[new] for new, change in moves.items()},
    )


def standard_error(gains: Sequence[np.ndarray]) -> float:
    """Return the standard error of a mean gain; the variance is pooled, as few seeds estimate one badly."""
    variance = np.mean([gains_S.var(ddof=1) for gains_S in gains])
    return math.sqrt(variance / len(gains[0]))


def search(candidates: Sequence[Candidate], evaluations: Evaluations, out: Path) -> list[Step]:
    """Select greedily until no move gains or the budget ends; write `out`. Raises UserError for no step."""
    steps: list[Step] = []

    def write(stopped: str) -> None:
        report = {
            "mix": mix_name(steps[-1].mix),
            "stopped": stopped,
            "evaluations": len(evaluations.used),
            "training_seconds": round(evaluations.seconds, 1),
            "steps": [{**vars(step), "mix": mix_name(step.mix)} for step in steps],
        }
        write_json(out, report)

    stopped = "no gain"
    none = "there is one source only, and backward can remove none; add sources, or leave selection out"
    try:
        for step in select(candidates, evaluations.scores, evaluations.rule):
            steps.append(step)
            verdict = "accepted" if step.accepted else "rejected"
            gain = f"gain {step.gain:+.4f} (standard error {step.standard_error:.4f})"
            tqdm.write(f"{step.direction}: {step.change} {verdict}, {gain}; score {step.score:.4f}")
            write("not yet")
    except BudgetSpent:
        stopped = "budget"
        none = (
            "the budget ends within the first step, which compares all candidates;"
            " raise max_evaluations or max_minutes of selection.rule"
        )
    if not steps:
        raise UserError(f"selection: {none}")
    write(stopped)
    return steps
