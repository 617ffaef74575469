"""Render a study's table as Markdown: means over seeds, standard deviations, paired differences."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from guie.base.errors import UserError
from guie.base.files import write_text
from guie.evaluation.protocols.catalogue import PROTOCOLS
from guie.studies.grid import Plan, Row
from guie.studies.results import METRICS, UNKNOWN, Code, StudyStatus

SCORES = [f"{where} {metric}" for where in ("val", "test", "unseen") for metric in METRICS]
COMPARED = "test r_at_1"
INTERVAL = ("test low", "test high")  # of COMPARED, 95 %
COSTS = {
    "trainable_parameters": "parameters that train",
    "peak_memory_mb": "memory, MB",
    "peak_gpu_memory_mb": "GPU memory, MB",  # left out if no run has it
}
NAMED = 12  # jobs named per reason; the rest are counted
REASONS = {
    "failed": "Failed",
    "outdated": "Of other code or another manifest, left out (--any-code takes other code)",
    "missing": "Yet to be run",
}
END = "<!-- /study -->"


def scores(plan: Plan, status: StudyStatus) -> pd.DataFrame:
    """Return one line per row and seed: row, seed, SCORES, seconds, COSTS, headlines; NaN if missing.

    `unseen` is the mean over the left-out domains, each scored with the run that did not train on it. It is
    NaN while one of these runs is missing. Raises UserError if the test lacks such a domain.
    """
    lines = []
    for row, seed in [(one, seed) for one in plan.rows for seed in one.seeds]:
        runs = {key[-1]: status.done.get(plan.jobs[key].identity) for key in row.keys(seed)}
        whole = runs.pop(None) or {}
        line = {"row": row.name, "seed": seed}
        line |= {key: whole.get(key) for key in ("seconds", *COSTS)}
        for where in ("val", "test"):
            found = whole.get(where) or {}
            line |= {f"{where} {metric}": found.get(metric) for metric in METRICS}
            line |= dict(zip(INTERVAL, found.get("interval", ()), strict=False))
        if row.folds and len(runs) == len(row.folds) and all(runs.values()):
            line |= _unseen(plan, row, runs)
        reports = whole.get("protocols", {})
        for column, (protocol, title) in headlines(plan).items():
            line[column] = reports.get(protocol, {}).get(title)
        lines.append(line)
    columns = [*SCORES, *INTERVAL, "seconds", *COSTS, *headlines(plan)]
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
    means = pd.DataFrame(found)[[*METRICS]].astype(float).to_numpy().mean(axis=0)
    return {f"unseen {metric}": float(mean) for metric, mean in zip(METRICS, means, strict=True)}


def domain_scores(plan: Plan, status: StudyStatus) -> pd.DataFrame:
    """Return the mean test R@1 over seeds: one line per row that has some, one column per domain."""
    values = {}
    for row in plan.rows:
        found = [status.done.get(plan.jobs[row.keys(seed)[0]].identity) for seed in row.seeds]
        lines = [record["test"]["domains"] for record in found if record]
        if lines:
            of_seeds = [{name: one["r_at_1"] for name, one in line.items()} for line in lines]
            values[row.name] = pd.DataFrame(of_seeds).astype(float).mean()
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
        of_seeds = lines.pivot(index="seed", columns="row", values=COMPARED)[table.index]
        gains = of_seeds.sub(of_seeds[baseline], axis=0)
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


def rendered(plan: Plan, status: StudyStatus) -> str:
    """Render the table, sorted by R@1 on val, and the notes below it. Raises UserError."""
    table = ordered(summary(scores(plan, status), plan.study.baseline))
    rows = {row.name: row for row in plan.rows}
    lines = [_cells(plan, status, rows[str(name)], line, table) for name, line in table.iterrows()]
    grid = [[*lines[0]], ["---"] * len(lines[0]), *([*cells.values()] for cells in lines)]
    text = "\n".join(f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in grid)
    return "\n\n".join([text, *_notes(plan, status)]) + "\n"


def write_between(path: Path, name: str, text: str) -> None:
    """Replace the text between the study's markers. Raises UserError if they are missing."""
    begin = f"<!-- study: {name} -->"
    try:
        whole = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    before, found, rest = whole.partition(begin)
    old, closed, after = rest.partition(END)
    if not found or not closed or "<!-- study: " in old:
        raise UserError(f"{path}: the table's markers are missing; add the lines {begin} and {END}")
    write_text(path, f"{before}{begin}\n{text}{END}{after}")


def decimal(value: float, sign: bool = False) -> str:
    """Format a score as in the tables: 0.793, -0.012, 1.000; with a sign +0.012."""
    value = round(value, 3) + 0.0  # no -0.000
    return f"{value:+.3f}" if sign else f"{value:.3f}"


def _cells(
    plan: Plan, status: StudyStatus, row: Row, line: pd.Series, table: pd.DataFrame
) -> dict[str, str]:
    """Return the cells of a row, by the title of their column."""
    study = plan.study
    cells = {"": _escaped(row.name)}
    if any(len(other.seeds) > 1 for other in plan.rows):
        own, done = len(row.seeds), int(line["seeds"])
        cells["seeds"] = str(own) if done == own else f"{done} of {own}"
    for where in ("val", "test", *(["unseen"] if plan.folds() else [])):
        cells[f"{where} R@1 / mMP@5"] = _score(plan, status, row, line, where)
    if study.baseline:
        gain = "" if row.name == study.baseline else "no seed in common"
        if gain and not math.isnan(line["gain"]):
            gain = _spread(line, "gain", sign=True)
            if 1 < line["pairs"] < line["seeds"]:
                gain += f" ({line['pairs']:.0f} pairs)"
        cells[f"test R@1 against {_escaped(study.baseline)}"] = gain
    if study.intervals:  # for several seeds, the mean of its ends
        low, high = (line[key] for key in INTERVAL)
        interval = "" if math.isnan(low) else f"{decimal(low)} to {decimal(high)}"
        cells["95 % of test R@1"] = interval
    for key in headlines(plan):
        cells[key] = "" if math.isnan(line[key]) else _spread(line, key)
    costs = [key for key in COSTS if study.costs and table[key].notna().any()]
    for key in (*costs, "seconds"):
        cells[COSTS.get(key, key)] = "" if math.isnan(line[key]) else f"{line[key]:,.0f}"
    return cells


def _score(plan: Plan, status: StudyStatus, row: Row, line: pd.Series, where: str) -> str:
    """Return `0.793 / 0.725`, with deviations if any, or the reason why there is no score."""
    unseen = where == "unseen"
    keys = [f"{where} {metric}" for metric in METRICS]
    if math.isnan(line[keys[0]]):
        own = [job for job in plan.jobs.values() if job.row == row.name]
        states = {status.of(job) for job in own if (job.fold is not None) == unseen}
        found = next((reason for reason in REASONS if reason in states), "none")
        return "" if unseen and not row.folds else found
    text, seeds = " / ".join(_spread(line, key) for key in keys), line["seeds unseen"]
    if unseen and seeds < line["seeds"]:
        text += f" ({seeds:.0f} seed{'s' if seeds > 1 else ''})"
    return text


def _spread(line: pd.Series, key: str, sign: bool = False) -> str:
    mean, deviation = decimal(line[key], sign=sign), line[f"deviation of {key}"]
    return mean if math.isnan(deviation) else f"{mean} ± {decimal(deviation)}"


def _notes(plan: Plan, status: StudyStatus) -> Iterator[str]:
    """Yield the paragraphs below the table."""
    test = plan.study.test
    manifest = f" of {test.manifest}" if test.manifest else ""
    words = [f"Test: {test.split} split{manifest}, {test.index} index, means over domains."]
    if any(len(row.seeds) > 1 for row in plan.rows):
        spread = "± is the deviation over seeds; of a difference, over the seeds that both have."
        words.append(spread)
    if folds := plan.folds():
        named = ", ".join(domain for domains in folds.values() for domain in domains)
        words.append(f"Unseen: the mean of {named}, each by the run that did not see it.")
    identities = {job.identity for job in plan.jobs.values()}
    used = [record for identity, record in status.done.items() if identity in identities]
    commits = Counter(Code(r["src"], r["commit"], r["dirty"]).description for r in used)
    devices = Counter(record["device"] for record in used if record.get("device"))
    several = {"Code": "Code of more than one commit", "Trained on": "Trained on"}
    for title, runs in (("Code", commits), ("Trained on", devices)):
        if len(runs) == 1 and set(runs) != {UNKNOWN[:7]}:
            words.append(f"{title}: {next(iter(runs))}.")
        elif len(runs) > 1:
            counts = ", ".join(f"{name} ({count} runs)" for name, count in sorted(runs.items()))
            words.append(f"{several[title]}: {counts}.")
    yield " ".join(words)
    for reason, title in REASONS.items():
        found = []
        for job in [job for job in plan.jobs.values() if status.of(job) == reason]:
            known = ""
            if failure := status.failed.get(job.identity):
                known = f" ({failure['step']}: {failure['error']})"
            elif old := status.outdated.get(job.identity):
                known = f" (commit {old['commit'][:7]})"
            found.append(_escaped(job.description + known))
        more = [f"and {len(found) - NAMED} more"] if len(found) > NAMED else []
        if found:
            named = "; ".join([*found[:NAMED], *more])
            yield f"{title}, {len(found)} of {len(plan.jobs)} runs: {named}."
    if status.without_job:
        left = "results of configs that are not in the study, or no longer, are left out."
        yield f"{status.without_job} {left}"


def _escaped(text: str) -> str:
    """Escape text for a table cell."""
    return " ".join(text.split()).replace("|", "\\|")
