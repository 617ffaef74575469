"""What a study says so far: means over seeds, their spread, differences of pairs, and what is missing.

A deviation is that of a sample (n - 1), and NaN where there is one seed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from guie.base.errors import UserError
from guie.evaluation.protocols import PROTOCOLS
from guie.studies.job import Job, Row
from guie.studies.plan import Plan
from guie.studies.results import Record, Standing

METRICS = ("r_at_1", "mmp_at_5")
WHERE = ("val", "test", "unseen")
SCORES = [f"{where} {metric}" for where in WHERE for metric in METRICS]
COMPARED = "test r_at_1"
INTERVAL = ("test low", "test high")  # of COMPARED, 95 %
COSTS = {
    "trainable_parameters": "parameters that train",
    "peak_memory_mb": "memory, MB",
    "peak_gpu_memory_mb": "of the card, MB",  # left out where no run had one
}


@dataclass(frozen=True)
class Gap:
    """A job of which there is no result that counts. `why`: `missing`, `failed`, or `outdated`."""

    job: Job
    why: str
    said: str = ""


def scores(plan: Plan, standing: Standing) -> pd.DataFrame:
    """A line for each row and seed: row, seed, SCORES, seconds, COSTS, headlines; NaN where there is none.

    `unseen`: the mean over the domains that a fold leaves out, each by the run that did not see it;
    NaN as long as one of these runs is missing. Raises UserError where the test lacks such a domain.
    """
    lines = []
    for row in plan.rows:
        for seed in row.seeds:
            without = {
                key[-1]: standing.done.get(plan.jobs[key].identity) for key in row.keys(seed)
            }
            whole = without.pop(None) or {}
            said = {"val": whole.get("val"), "test": whole.get("test"), "unseen": None}
            line = {
                f"{where} {metric}": (said[where] or {}).get(metric)
                for where in WHERE
                for metric in METRICS
            }
            line |= _unseen(plan, row, without)
            ends = (said["test"] or {}).get("interval", [None, None])
            line |= dict(zip(INTERVAL, ends, strict=True))
            line |= {key: whole.get(key) for key in ("seconds", *COSTS)}
            said_by = whole.get("protocols", {})
            line |= {
                column: said_by.get(name, {}).get(title)
                for column, (name, title) in headlines(plan).items()
            }
            lines.append({"row": row.name, "seed": seed, **line})
    table = pd.DataFrame(lines)
    return table.astype({column: float for column in table if column not in ("row", "seed")})


def domain_scores(plan: Plan, standing: Standing, metric: str = "r_at_1") -> pd.DataFrame:
    """Test scores of each row that has some: a row a row, a column a domain, means over seeds."""
    values = {}
    for row in plan.rows:
        found = [standing.done.get(plan.jobs[row.keys(seed)[0]].identity) for seed in row.seeds]
        lines = [record["test"]["domains"] for record in found if record]
        if lines:
            scores = pd.DataFrame([{name: d[metric] for name, d in line.items()} for line in lines])
            values[row.name] = scores.astype(float).mean()
    return pd.DataFrame(values).T


def headlines(plan: Plan) -> dict[str, tuple[str, str]]:
    """Columns of the study's protocols, each with its protocol and the headline's title."""
    return {
        f"{name}: {headline.title}": (name, headline.title)
        for name in plan.protocols
        for headline in PROTOCOLS[name].headlines
    }


def summary(lines: pd.DataFrame, baseline: str | None) -> pd.DataFrame:
    """Of each row the means of its numbers, and beside each `deviation of` it; how many `seeds` were
    tested, and how many on the `seeds unseen`.

    With a baseline `gain`, `deviation of gain` and `pairs`: the difference of COMPARED to it over
    the seeds that both have. Rows in the order of `lines`.
    """
    groups = lines.groupby("row", sort=False)
    columns = [column for column in lines if column not in ("row", "seed")]
    table = groups[columns].mean().join(groups[columns].std().add_prefix("deviation of "))
    table["seeds"] = groups[COMPARED].count()
    table["seeds unseen"] = groups["unseen r_at_1"].count()
    if baseline is not None:
        by_seed = lines.pivot(index="seed", columns="row", values=COMPARED)[table.index]
        gains = by_seed.sub(by_seed[baseline], axis=0)
        table["gain"], table["deviation of gain"] = gains.mean(), gains.std()
        table["pairs"] = gains.count()
    return table


def ordered(table: pd.DataFrame) -> pd.DataFrame:
    """Rows of a `summary` by R@1 on val, the best first; those without one last, as they come."""
    return table.sort_values(SCORES[0], ascending=False, kind="stable")


def by_seed(
    lines: pd.DataFrame, order: pd.Index, columns: dict[str, str]
) -> dict[str, pd.DataFrame]:
    """By name in `columns`: that column of the lines, a row a row, a column a seed."""
    tables = {
        name: lines.pivot(index="row", columns="seed", values=column).reindex(order)
        for name, column in columns.items()
    }
    return {name: table for name, table in tables.items() if table.notna().any(axis=None)}


def gaps(plan: Plan, standing: Standing) -> list[Gap]:
    """Jobs without a result, in the order of the table."""
    found = []
    for job in plan.jobs.values():
        if job.identity in standing.done:
            continue
        if failure := standing.failed.get(job.identity):
            found.append(Gap(job, "failed", f"{failure['step']}: {failure['error']}"))
        elif old := standing.outdated.get(job.identity):
            found.append(Gap(job, "outdated", f"commit {old['commit'][:7]}"))
        else:
            found.append(Gap(job, "missing"))
    return found


def _unseen(plan: Plan, row: Row, without: dict[str | None, Record | None]) -> dict[str, float]:
    """The two scores of one seed, from its runs by fold; NaN where one is missing or has no query."""
    runs = {fold: record for fold, record in without.items() if record}
    if not row.folds or len(runs) < len(row.folds):
        return {}
    values = {
        metric: [
            _of_domain(runs[fold], domain, plan, metric)
            for fold, domains in row.folds.items()
            for domain in domains
        ]
        for metric in METRICS
    }
    return {f"unseen {metric}": float(np.mean(those)) for metric, those in values.items()}


def _of_domain(record: Record, domain: str, plan: Plan, metric: str) -> float:
    tested = record["test"]["domains"]
    if domain not in tested:
        raise UserError(f"{plan.path}: unseen: {domain} is no domain of the test, which has: "
                        f"{', '.join(sorted(tested))}")  # fmt: skip
    value = tested[domain][metric]
    return float("nan") if value is None else value
