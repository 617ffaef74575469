"""Render a study's table as Markdown: means over seeds, standard deviations, paired differences."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from guie.base.errors import UserError
from guie.base.files import write_text
from guie.evaluation.protocols.catalogue import PROTOCOLS
from guie.studies.grid import Job, Plan, Row
from guie.studies.results import UNKNOWN, Code, StudyStatus

METRICS = ("r_at_1", "mmp_at_5")
WHERE = ("val", "test", "unseen")
SCORES = [f"{where} {metric}" for where in WHERE for metric in METRICS]
COMPARED = "test r_at_1"
INTERVAL = ("test low", "test high")  # of COMPARED, 95 %
COSTS = {
    "trainable_parameters": "parameters that train",
    "peak_memory_mb": "memory, MB",
    "peak_gpu_memory_mb": "GPU memory, MB",  # left out if no run has it
}


@dataclass(frozen=True)
class Gap:
    """A job without a result that counts. `why`: `missing`, `failed`, or `outdated`."""

    job: Job
    why: str
    details: str = ""


def scores(plan: Plan, status: StudyStatus) -> pd.DataFrame:
    """Return one line per row and seed: row, seed, SCORES, seconds, COSTS, headlines; NaN if missing.

    `unseen` is the mean over the left-out domains, each scored with the run that did not train on it. It is
    NaN while one of these runs is missing. Raises UserError if the test lacks such a domain.
    """
    columns = [*SCORES, *INTERVAL, "seconds", *COSTS, *headlines(plan)]
    lines = []
    for row in plan.rows:
        for seed in row.seeds:
            runs = {key[-1]: status.done.get(plan.jobs[key].identity) for key in row.keys(seed)}
            whole = runs.pop(None) or {}
            line = {key: whole.get(key) for key in ("seconds", *COSTS)}
            for where in ("val", "test"):
                found = whole.get(where) or {}
                line |= {f"{where} {metric}": found.get(metric) for metric in METRICS}
            if whole:
                line |= dict(zip(INTERVAL, whole["test"].get("interval", ()), strict=False))
            if row.folds and len(runs) == len(row.folds) and all(runs.values()):
                line |= _unseen(plan, row, runs)
            reports = whole.get("protocols", {})
            for column, (protocol, title) in headlines(plan).items():
                line[column] = reports.get(protocol, {}).get(title)
            lines.append({"row": row.name, "seed": seed, **line})
    table = pd.DataFrame(lines, columns=["row", "seed", *columns])
    return table.astype(dict.fromkeys(columns, float))


def _unseen(plan: Plan, row: Row, runs: Mapping[str | None, Any]) -> dict[str, float]:
    """Return the mean scores of one seed over the left-out domains, from its runs by fold."""
    found = []
    for fold, domains in row.folds.items():
        tested = runs[fold]["test"]["domains"]
        for domain in domains:
            if domain not in tested:
                wrong = f"unseen: {domain} is not a domain of the test"
                raise UserError(f"{plan.path}: {wrong}; allowed: {', '.join(sorted(tested))}")
            found.append(tested[domain])
    values = {metric: np.array([scores[metric] for scores in found], float) for metric in METRICS}
    return {f"unseen {metric}": float(value.mean()) for metric, value in values.items()}


def domain_scores(plan: Plan, status: StudyStatus) -> pd.DataFrame:
    """Return the mean test R@1 over seeds: one line per row that has some, one column per domain."""
    values = {}
    for row in plan.rows:
        found = [status.done.get(plan.jobs[row.keys(seed)[0]].identity) for seed in row.seeds]
        lines = [record["test"]["domains"] for record in found if record]
        if lines:
            by_seed = [{name: one["r_at_1"] for name, one in line.items()} for line in lines]
            values[row.name] = pd.DataFrame(by_seed).astype(float).mean()
    return pd.DataFrame(values).T


def headlines(plan: Plan) -> dict[str, tuple[str, str]]:
    """Return the columns of the study's protocols, each with its protocol and headline title."""
    return {
        f"{name}: {headline.title}": (name, headline.title)
        for name in plan.study.protocols
        for headline in PROTOCOLS[name].headlines
    }


def summary(lines: pd.DataFrame, baseline: str | None) -> pd.DataFrame:
    """Return per row the mean of each column, and its standard deviation as `deviation of` the column.

    `seeds` counts the tested seeds, and `seeds unseen` those with unseen scores. With a baseline, `gain`,
    `deviation of gain` and `pairs` describe the difference in COMPARED over the seeds that both have. Rows
    keep the order of `lines`.
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
    """Sort a `summary` by R@1 on val, the best first; rows without one come last, in their order."""
    return table.sort_values(SCORES[0], ascending=False, kind="stable")


def by_seed(
    lines: pd.DataFrame, order: pd.Index, columns: dict[str, str]
) -> dict[str, pd.DataFrame]:
    """Return one table per entry of `columns`, with one line per row and one column per seed."""
    tables = {
        name: lines.pivot(index="row", columns="seed", values=column).reindex(order)
        for name, column in columns.items()
    }
    return {name: table for name, table in tables.items() if table.notna().any(axis=None)}


def gaps(plan: Plan, status: StudyStatus) -> list[Gap]:
    """Return the jobs without a result, in the order of the table."""
    found = []
    for job in plan.jobs.values():
        if job.identity in status.done:
            continue
        if failure := status.failed.get(job.identity):
            found.append(Gap(job, "failed", f"{failure['step']}: {failure['error']}"))
        elif old := status.outdated.get(job.identity):
            found.append(Gap(job, "outdated", f"commit {old['commit'][:7]}"))
        else:
            found.append(Gap(job, "missing"))
    return found


NAMED = 12  # jobs named per reason; the rest are counted
WORDS = {
    "failed": "Failed",
    "outdated": "Of other code or another manifest, left out (--any-code takes other code)",
    "missing": "Yet to be run",
}
END = "<!-- /study -->"


def rendered(plan: Plan, status: StudyStatus) -> str:
    """Render the table, sorted by R@1 on val, and the notes below it. Raises UserError."""
    table = summary(scores(plan, status), plan.study.baseline)
    missing = gaps(plan, status)
    return "\n\n".join([_table(plan, table, missing), *_notes(plan, status, missing)]) + "\n"


def write_between(path: Path, name: str, text: str) -> None:
    """Replace the text between the study's markers. Raises UserError if they are missing."""
    begin = f"<!-- study: {name} -->"
    try:
        whole = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    before, found, rest = whole.partition(begin)
    _, closed, after = rest.partition(END)
    if not found or not closed or "<!-- study: " in rest.partition(END)[0]:
        raise UserError(f"{path}: the table's markers are missing; add the lines {begin} and {END}")
    write_text(path, f"{before}{begin}\n{text}{END}{after}")


def decimal(value: float, sign: bool = False) -> str:
    """Format a score as in the tables: 0.793, -0.012, 1.000; with a sign +0.012."""
    value = round(value, 3) + 0.0  # no -0.000
    return f"{value:+.3f}" if sign else f"{value:.3f}"


def _table(plan: Plan, table: pd.DataFrame, missing: list[Gap]) -> str:
    study = plan.study
    several = any(len(row.seeds) > 1 for row in plan.rows)
    columns = ["val", "test", *(["unseen"] if plan.folds() else [])]
    costs = [key for key in COSTS if study.costs and table[key].notna().any()]
    by_name = {row.name: row for row in plan.rows}
    lines = []
    for name, line in ordered(table).iterrows():
        row = by_name[str(name)]
        of_row = [gap for gap in missing if gap.job.row == name]
        cells = {"": _cell(row.name)}
        if several:
            own, done = len(row.seeds), int(line["seeds"])
            cells["seeds"] = str(own) if done == own else f"{done} of {own}"
        for where in columns:
            cells[f"{where} R@1 / mMP@5"] = _pair(line, where, of_row, bool(row.folds))
        if study.baseline:
            gain = "" if name == study.baseline else _gain(line)
            cells[f"test R@1 against {_cell(study.baseline)}"] = gain
        if study.intervals:  # for several seeds, the mean of its ends
            low, high = (line[key] for key in INTERVAL)
            interval = "" if math.isnan(low) else f"{decimal(low)} to {decimal(high)}"
            cells["95 % of test R@1"] = interval
        for key in headlines(plan):
            cells[key] = "" if math.isnan(line[key]) else _spread(line, key)
        for key in (*costs, "seconds"):
            cells[COSTS.get(key, key)] = "" if math.isnan(line[key]) else f"{line[key]:,.0f}"
        lines.append(cells)
    heads = list(lines[0])
    written = [heads, ["---"] * len(heads), *(list(cells.values()) for cells in lines)]
    return "\n".join(f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in written)


def _pair(row: pd.Series, where: str, missing: list[Gap], has_folds: bool) -> str:
    """Return `0.793 / 0.725`, with deviations if any, or the reason why there is no score."""
    keys = [key for key in SCORES if key.startswith(where)]
    if math.isnan(row[keys[0]]):
        if where == "unseen" and not has_folds:
            return ""
        whys = {gap.why for gap in missing if (gap.job.fold is not None) == (where == "unseen")}
        return next((why for why in WORDS if why in whys), "none")
    text, seeds = " / ".join(_spread(row, key) for key in keys), row["seeds unseen"]
    fewer = where == "unseen" and seeds < row["seeds"]
    return text + (f" ({seeds:.0f} seed{'s' if seeds > 1 else ''})" if fewer else "")


def _spread(row: pd.Series, key: str, sign: bool = False) -> str:
    mean, deviation = decimal(row[key], sign=sign), row[f"deviation of {key}"]
    return mean if math.isnan(deviation) else f"{mean} ± {decimal(deviation)}"


def _gain(row: pd.Series) -> str:
    if math.isnan(row["gain"]):
        return "no seed in common"
    pairs = f" ({row['pairs']:.0f} pairs)" if 1 < row["pairs"] < row["seeds"] else ""
    return _spread(row, "gain", sign=True) + pairs


def _notes(plan: Plan, status: StudyStatus, missing: list[Gap]) -> Iterable[str]:
    """Yield the paragraphs below the table."""
    test = plan.study.test
    of = f" of {test.manifest}" if test.manifest else ""
    words = [f"Test: {test.split} split{of}, {test.index} index, means over domains."]
    if any(len(row.seeds) > 1 for row in plan.rows):
        words.append(
            "± is the deviation over seeds; of a difference, over the seeds that both have."
        )
    if folds := plan.folds():
        named = ", ".join(domain for domains in folds.values() for domain in domains)
        words.append(f"Unseen: the mean of {named}, each by the run that did not see it.")
    asked = {job.identity for job in plan.jobs.values()}
    used = [record for identity, record in status.done.items() if identity in asked]
    commits = Counter(Code(r["src"], r["commit"], r["dirty"]).description for r in used)
    if set(commits) != {UNKNOWN[:7]}:
        words += _counted(commits, "Code", "Code of more than one commit")
    devices = Counter(record["device"] for record in used if record.get("device"))
    words += _counted(devices, "Trained on", "Trained on")
    yield " ".join(words)
    for why, reason in WORDS.items():
        jobs = [gap for gap in missing if gap.why == why]
        if jobs:
            named = "; ".join(
                _cell(gap.job.description + (f" ({gap.details})" if gap.details else ""))
                for gap in jobs[:NAMED]
            )
            more = f"; and {len(jobs) - NAMED} more" if len(jobs) > NAMED else ""
            yield f"{reason}, {len(jobs)} of {len(plan.jobs)} runs: {named}{more}."
    if status.without_job:
        left = "results of configs that are not in the study, or no longer, are left out."
        yield f"{status.without_job} {left}"


def _counted(runs: Counter[str], one: str, several: str) -> list[str]:
    """Return a sentence on what the runs have in common, or how many have which."""
    if len(runs) == 1:
        return [f"{one}: {next(iter(runs))}."]
    message = ", ".join(f"{name} ({count} runs)" for name, count in sorted(runs.items()))
    return [f"{several}: {message}."] if runs else []


def _cell(text: str | None) -> str:
    """Escape text for a table cell."""
    return " ".join((text or "").split()).replace("|", "\\|")
