"""Test the claims of papers by the results of studies; the verdict follows from a rule.

The effect is the mean over seeds of the difference between two rows, seed by seed. Its 95 % interval has two
independent parts, added in squares: the t interval over seeds, and the normal interval over classes, which
are the clusters of the test queries. Results from before the classes were recorded have the first part only.

held: three seeds or more, and the interval is on the side of the row that the source puts above. not held:
it is on the other side. undecided: all else. ours alone: no source puts one of the two above.
Shapes: S seeds, C classes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from guie.base.errors import UserError
from guie.config.loading import load_config
from guie.config.study import ClaimConfig, ClaimsConfig
from guie.studies.grid import Plan, Row
from guie.studies.results import Record, StudyStatus, as_committed
from guie.studies.table import decimal, scores

SEEDS = 3  # the fewest for a verdict
LEVEL = 0.95
SMALLEST = "smallest effect of three seeds"
METRICS = {"R@1": "r_at_1", "mMP@5": "mmp_at_5"}


@dataclass(frozen=True)
class Effect:
    """The difference of two rows."""

    rows: tuple[str, str]
    seeds: int  # that both have
    value: float  # mean difference
    low: float  # its interval, NaN for one seed without classes
    high: float
    covers: str  # what the interval is over: seeds, classes, classes and seeds, or nothing
    smallest: float = math.nan  # difference that three seeds, or all if more, could show


def verdict(effect: Effect | None, direction: str) -> str:
    """Return held, not held, undecided or ours alone, by the rule above; `not run` without an effect.

    `direction` is the row that the source puts above: `row`, `against` or `none`.
    """
    if effect is None:
        return "not run"
    if direction == "none":
        return "ours alone"
    if effect.seeds < SEEDS or effect.low <= 0 <= effect.high:
        return "undecided"
    return "held" if (effect.value > 0) == (direction == "row") else "not held"


def effect_of(claim: ClaimConfig, plan: Plan, status: StudyStatus) -> Effect | None:
    """Return the effect that tests a claim, None where a row has no result.

    Raises UserError for a row, score or domain that the study does not have.
    """
    lines = scores(plan, status)
    where, _, metric = claim.score.partition(" ")
    column = f"{where} {METRICS[metric]}" if metric in METRICS else claim.score
    if column not in lines:
        raise UserError(f"{claim.study}: no score {claim.score!r}; for example test R@1")
    if claim.domain is not None:
        lines[column] = _scores_of_domain(lines, claim.domain, METRICS[metric], plan, status)
    rows = [_best_on_val(names, claim, plan, lines) for names in (claim.row, claim.against)]
    ours, theirs = (lines[lines["row"] == r.name].set_index("seed")[column] for r in rows)
    difference_S = (ours - theirs).dropna()
    if difference_S.empty:
        return None
    squares, covered = 0.0, []
    if metric == "R@1" and where in ("test", "unseen"):  # records have no classes of val
        both = list(difference_S.index)
        one, other = (_hits(row, both, where, claim, plan, status) for row in rows)
        if one and other:
            squares += stats.norm.ppf((1 + LEVEL) / 2) ** 2 * class_variance(one, other)
            covered.append("classes")
    # Of fewer seeds the variance is estimated: that of two rows, by the study's typical row
    spread = math.nan if claim.domain else 2 * lines.groupby("row")[column].var().median()
    smallest = math.sqrt(squares + _square_of_seeds(spread, SEEDS))
    if len(difference_S) > 1:
        squares += _square_of_seeds(difference_S.var(), len(difference_S))
        covered.append("seeds")
    value, half = difference_S.mean(), math.sqrt(squares) if covered else math.nan
    smallest = half if len(difference_S) >= SEEDS else smallest
    names, seeds = (rows[0].name, rows[1].name), len(difference_S)
    return Effect(names, seeds, value, value - half, value + half, " and ".join(covered), smallest)


def _square_of_seeds(variance: float, seeds: int) -> float:
    """Return the square of the half t interval of a mean over seeds."""
    return float(stats.t.ppf((1 + LEVEL) / 2, seeds - 1) ** 2 * variance / seeds)


def _best_on_val(names: Sequence[str], claim: ClaimConfig, plan: Plan, lines: pd.DataFrame) -> Row:
    """Return the row with these names; of several, the one with the best R@1 on val.

    It is the mean over the seeds that all of them have. Rows without a result do not take part.
    """
    rows = {row.name: row for row in plan.rows}
    for name in names:
        if name not in rows:
            raise UserError(f"{claim.study}: no row {name!r}, which a claim of {claim.paper} names")
    found = lines[lines["row"].isin(names)].dropna(subset="val r_at_1")
    if len(names) == 1 or found.empty:
        return rows[names[0]]
    val = found.pivot(index="seed", columns="row", values="val r_at_1").dropna()
    if val.empty:
        remedy = "give them one, so that val can choose"
        raise UserError(f"{claim.study}: {', '.join(names)} have no seed in common; {remedy}")
    return rows[str(val.mean().idxmax())]


def _scores_of_domain(
    lines: pd.DataFrame, domain: str, metric: str, plan: Plan, status: StudyStatus
) -> list[float]:
    """Return the test score of one domain for each line of `scores`, NaN without a result."""
    found = []
    for row, seed in lines[["row", "seed"]].itertuples(index=False):
        record = status.done.get(plan.jobs[row, seed, None].identity)
        domains = record["test"]["domains"] if record else {domain: {metric: math.nan}}
        if domain not in domains:
            known = ", ".join(sorted(domains))
            raise UserError(f"{plan.path}: no domain {domain!r}; allowed: {known}")
        found.append(domains[domain][metric])
    return found


Hits = dict[str, tuple[np.ndarray, np.ndarray]]  # by domain: hits and queries of each class [C]


def _hits(
    row: Row, seeds: Sequence[int], where: str, claim: ClaimConfig, plan: Plan, status: StudyStatus
) -> Hits | None:
    """Return each domain's hits, their mean over the seeds, or None where a record has no classes.

    `unseen` takes each left-out domain from the run that did not train on it.
    """
    folds = row.folds if where == "unseen" else {None: [claim.domain] if claim.domain else None}
    found: dict[str, list[Record]] = {}
    for seed in seeds:
        for fold, domains in folds.items():
            test = status.done[plan.jobs[row.name, seed, fold].identity]["test"]
            if "classes" not in test:
                return None
            for name in domains or test["classes"]:
                found.setdefault(name, []).append(test["classes"][name])
    return {
        name: (np.mean([one["hits"] for one in of], axis=0), np.array(of[0]["queries"]))
        for name, of in found.items()
    }


def class_variance(one: Hits, other: Hits) -> float:
    """Return the variance of the difference in R@1, the mean over domains, from that between classes.

    It is the linearised variance of a ratio, clustered by class, as the bootstrap over classes estimates
    it. A domain of a single class adds nothing.
    """
    total = 0.0
    for domain, (hits_C, queries_C) in one.items():
        lead_C = hits_C - other[domain][0]
        queries, classes = queries_C.sum(), len(queries_C)
        rest_C = lead_C - lead_C.sum() / queries * queries_C
        if classes > 1:
            total += classes / (classes - 1) * float(rest_C @ rest_C) / queries**2
    return total / len(one) ** 2


def claims_table(path: Path, headlines: bool = False) -> str:
    """Return the table of claims as Markdown, from the committed results. Raises UserError.

    `headlines`: only the main claims of the papers; the last line counts all verdicts.
    """
    claims = load_config(path, ClaimsConfig).claims
    names = {claim.study for claim in claims}
    studies = {name: as_committed(path.with_name(f"{name}.yaml")) for name in names}
    cells = [_cells(claim, effect_of(claim, *studies[claim.study])) for claim in claims]
    table = pd.DataFrame(cells)
    count = table["verdict"].value_counts().to_dict()
    if headlines:
        table = table[[claim.headline for claim in claims]].drop(columns=["rows", SMALLEST])
    head, *rows = (f"| {' | '.join(cells)} |" for cells in [list(table), *table.to_numpy()])
    lines = [head, "|---" * table.shape[1] + "|", *rows]
    counted = ", ".join(f"{number} {word}" for word, number in count.items())
    return "\n".join([*lines, "", f"All {len(claims)} comparisons: {counted}."]) + "\n"


def _cells(claim: ClaimConfig, effect: Effect | None) -> dict[str, str]:
    row, against = effect.rows if effect else (claim.row[0], claim.against[0])
    scored = [claim.score] if claim.score != "test R@1" else []
    named = [f"`{row}`", f"`{against}`", *([claim.domain] if claim.domain else []), *scored]
    word = verdict(effect, claim.direction)
    interval = smallest = ""
    if effect and not math.isnan(effect.low):
        ends = (decimal(end, sign=True) for end in (effect.low, effect.high))
        over = "" if effect.covers == "classes and seeds" else f", {effect.covers}"
        interval = f" ({' to '.join(ends)}{over})"
    if effect and word == "undecided" and not math.isnan(effect.smallest):
        smallest = decimal(effect.smallest)
    return {
        "paper": claim.paper,
        "claim": f"{claim.claim} ({claim.source})",
        "rows": f"{claim.study}: {', '.join(named)}",
        "difference, 95 % interval": decimal(effect.value, sign=True) + interval if effect else "",
        SMALLEST: smallest,
        "seeds": str(effect.seeds) if effect else "",
        "verdict": word,
    }
