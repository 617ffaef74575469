"""A study's table as Markdown, and its place in a file of many."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from guie.base.errors import UserError
from guie.base.files import write_text
from guie.studies.code import UNKNOWN, Code
from guie.studies.plan import Plan
from guie.studies.results import Standing
from guie.studies.tables import (
    COSTS,
    INTERVAL,
    SCORES,
    Gap,
    gaps,
    headlines,
    ordered,
    scores,
    summary,
)

NAMED = 12  # jobs of a kind that are missing; the rest are counted
WORDS = {
    "failed": "Failed",
    "outdated": "Of other code or another manifest, left out (--any-code takes other code)",
    "missing": "Yet to be run",
}
END = "<!-- /study -->"


def rendered(plan: Plan, standing: Standing) -> str:
    """The table, sorted by R@1 on val, and what there is to say of it. Raises UserError."""
    table = summary(scores(plan, standing), plan.baseline)
    missing = gaps(plan, standing)
    return "\n\n".join([_table(plan, table, missing), *_said(plan, standing, missing)]) + "\n"


def write_between(path: Path, name: str, text: str) -> None:
    """Put the text between the study's markers. Raises UserError where they are not there."""
    begin = f"<!-- study: {name} -->"
    try:
        whole = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    before, found, rest = whole.partition(begin)
    _, closed, after = rest.partition(END)
    if not found or not closed or "<!-- study: " in rest.partition(END)[0]:
        raise UserError(f"{path}: has no place for the table; add the lines {begin} and {END}")
    write_text(path, f"{before}{begin}\n{text}{END}{after}")


def decimal(value: float, digits: int = 3, sign: bool = False) -> str:
    """As the tables have it: .793, -.012, 1.000; with a sign +.012."""
    value = round(value, digits) + 0.0  # no -.000
    text = f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}"
    return text.replace("0.", ".", 1) if text.lstrip("+-").startswith("0.") else text


def _table(plan: Plan, table: pd.DataFrame, missing: list[Gap]) -> str:
    seeds = {row.name: row.seeds for row in plan.rows}
    several = any(len(own) > 1 for own in seeds.values())
    columns = ["val", "test", *(["unseen"] if plan.folds() else [])]
    heads = ["", *(["seeds"] if several else []), *(f"{where} R@1 / mMP@5" for where in columns)]
    heads += [f"test R@1 against {_cell(plan.baseline)}"] if plan.baseline else []
    heads += ["95 % of test R@1"] if plan.intervals else []
    more = list(headlines(plan))
    costs = [key for key in COSTS if plan.costs and table[key].notna().any()]
    heads += [*more, *(COSTS[key] for key in costs), "seconds"]
    lines = [heads, ["---"] * len(heads)]
    for name, row in ordered(table).iterrows():
        of_row = [gap for gap in missing if gap.job.row == name]
        cells = [_cell(str(name))]
        if several:
            own, done = len(seeds[str(name)]), int(row["seeds"])
            cells.append(str(own) if done == own else f"{done} of {own}")
        cells += [_pair(row, where, of_row, bool(_folds(plan, name))) for where in columns]
        if plan.baseline:
            cells.append("" if name == plan.baseline else _gain(row))
        cells += [_interval(row)] if plan.intervals else []
        cells += ["" if math.isnan(row[key]) else _spread(row, key) for key in more]
        for key in (*costs, "seconds"):
            cells.append("" if math.isnan(row[key]) else f"{row[key]:,.0f}")
        lines.append(cells)
    return "\n".join(f"| {' | '.join(line)} |".replace("|  |", "| |") for line in lines)


def _folds(plan: Plan, name: object) -> dict[str, list[str]]:
    return next(row.folds for row in plan.rows if row.name == name)


def _pair(row: pd.Series, where: str, missing: list[Gap], asked: bool) -> str:
    """`.793 / .725`, with deviations where there are some; in words why there is none."""
    keys = [key for key in SCORES if key.startswith(where)]
    if math.isnan(row[keys[0]]):
        if where == "unseen" and not asked:
            return ""
        whys = {gap.why for gap in missing if (gap.job.fold is not None) == (where == "unseen")}
        return next((why for why in WORDS if why in whys), "none")
    fewer = where == "unseen" and row["seeds unseen"] < row["seeds"]
    told = f" ({_seeds(row['seeds unseen'])})" if fewer else ""
    return " / ".join(_spread(row, key) for key in keys) + told


def _seeds(count: float) -> str:
    return f"{count:.0f} seed" + ("s" if count > 1 else "")


def _spread(row: pd.Series, key: str, sign: bool = False) -> str:
    deviation = row[f"deviation of {key}"]
    return decimal(row[key], sign=sign) + (
        "" if math.isnan(deviation) else f" ± {decimal(deviation)}"
    )


def _interval(row: pd.Series) -> str:
    """Of the test's classes; over several seeds, the mean of its ends."""
    low, high = (row[key] for key in INTERVAL)
    return "" if math.isnan(low) else f"{decimal(low)} to {decimal(high)}"


def _gain(row: pd.Series) -> str:
    if math.isnan(row["gain"]):
        return "no seed in common"
    pairs = f" ({row['pairs']:.0f} pairs)" if 1 < row["pairs"] < row["seeds"] else ""
    return _spread(row, "gain", sign=True) + pairs


def _said(plan: Plan, standing: Standing, missing: list[Gap]) -> Iterable[str]:
    """Paragraphs below the table."""
    test = plan.test
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
    yield " ".join([*words, *_codes(standing, asked), *_devices(standing, asked)])
    for why, said in WORDS.items():
        jobs = [gap for gap in missing if gap.why == why]
        if jobs:
            named = "; ".join(_told(gap) for gap in jobs[:NAMED])
            more = f"; and {len(jobs) - NAMED} more" if len(jobs) > NAMED else ""
            yield f"{said}, {len(jobs)} of {len(plan.jobs)} runs: {named}{more}."
    if standing.strangers:
        yield (
            f"{standing.strangers} results of configs that are not in the study, or no longer, are"
            " left out."
        )


def _codes(standing: Standing, asked: set[str]) -> list[str]:
    """Which commits the results are of."""
    used = [record for identity, record in standing.done.items() if identity in asked]
    commits = Counter(Code(r["src"], r["commit"], r["dirty"]).told for r in used)
    if not commits or set(commits) == {UNKNOWN[:7]}:
        return []
    if len(commits) == 1:
        return [f"Code: {next(iter(commits))}."]
    told = ", ".join(f"{commit} ({count} runs)" for commit, count in sorted(commits.items()))
    return [f"Code of more than one commit: {told}."]


def _devices(standing: Standing, asked: set[str]) -> list[str]:
    """What the runs ran on, where they say so."""
    used = [record for identity, record in standing.done.items() if identity in asked]
    devices = Counter(record["device"] for record in used if record.get("device"))
    if not devices:
        return []
    told = ", ".join(f"{device} ({count} runs)" for device, count in sorted(devices.items()))
    return [f"Trained on: {told if len(devices) > 1 else next(iter(devices))}."]


def _told(gap: Gap) -> str:
    return _cell(gap.job.told + (f" ({gap.said})" if gap.said else ""))


def _cell(text: str | None) -> str:
    """Without what would end a cell or a line."""
    return " ".join((text or "").split()).replace("|", "\\|")
