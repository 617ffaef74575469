"""Evaluation reports as text tables for the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from guie.evaluation.protocols.base import HARMONIC, Protocol

MEANS = "mean: over domains, each counts once; pooled: over all queries"

OVER_ALL = {
    "mean": "mean over domains",
    "pooled": "all queries",
    "public": "public 30 %",
    "private": "private 70 %",
}
COLUMNS = {
    "r_at_1": "R@1",
    "mmp_at_5": "mMP@5",
    "map_at_100": "mAP@100",
    "map_at_r": "MAP@R",
    "r_precision": "RP",
    "recall_at_10": "Rec@10",
    "map_at_1000": "mAP@1k",
    "found_at_1000": "oracle",
    "nmi": "NMI",
}


def report_table(report: Mapping[str, Any]) -> str:
    """Format a line for each domain, then the averages, then the intervals of the mean."""
    domains = report["domains"]
    keys = {key for scores in domains.values() for key in scores}
    columns = [key for key in COLUMNS if key in keys]
    if not all("map_at_100" in scores for scores in domains.values()):
        # A table with all metrics omits the other recalls, which are in report.json
        recalls = [key for key in keys - set(COLUMNS) if key.startswith("recall_at_")]
        columns += sorted(recalls, key=lambda key: int(key.rpartition("_")[2]))
    width = max(map(len, [*domains, "pooled"]))
    heads = "".join(f"{metric_title(key):>9}" for key in columns)
    lines = [f"{'':{width}}{heads}  queries  without positive"]
    for name, scores in domains.items():
        counts = f"{scores['queries']:9,}{scores['queries_without_positive']:18,}"
        lines.append(_line(name, scores, columns, width) + counts)
    for name in OVER_ALL:
        if name in report:
            lines.append(_line(name, report[name], columns, width))
    if "pooled" in report:
        lines.append(MEANS)
    means = {key: report["mean"].get(f"harmonic_{key}") for key in HARMONIC}
    harmonic = [f"{COLUMNS[key]} {mean:.4f}" for key, mean in means.items() if mean is not None]
    if harmonic:
        lines.append(f"harmonic means over domains: {', '.join(harmonic)}")
    dimension = f", {report['dimension']}-D" if "dimension" in report else ""
    lines.append(f"{report['index']} index{dimension}")
    found = report.get("intervals", {})
    if found.get("mean"):
        intervals = [
            f"{metric_title(key)} {_number(report['mean'][key])} ({_number(low)} to {_number(high)})"
            for key, (low, high) in found["mean"].items()
            if key in ("r_at_1", "mmp_at_5", "map_at_100", "map_at_1000")
        ]
        level = f"{100 * found['level']:g} % intervals"
        title = f"mean over domains, {level} by {found['draws']:,} bootstrap samples of classes"
        lines.append(f"{title}: {', '.join(intervals)}")
    return "\n".join(lines)


def reports_table(
    protocols: Sequence[Protocol], reports: Sequence[Mapping[str, Any]], plain: bool
) -> str:
    """Format all reports of one model: title, headline, a table for each part, verdicts.

    If `plain`, show only the table of the first part, and the verdicts.
    """
    lines = []
    for protocol, report in zip(protocols, reports, strict=True):
        if plain:
            lines.append(report_table(next(iter(report["parts"].values()))))
        else:
            headline = ", ".join(f"{title} {_number(v)}" for title, v in report["headline"].items())
            lines += [f"{protocol.name}: {protocol.title}", f"  {protocol.source}", f"  {headline}"]
            if report["quirks"]:
                lines.append(f"  with quirks: {', '.join(report['quirks'])}")
            if protocol.note:
                lines.append(f"  {protocol.note}")
            for name, part in report["parts"].items():
                lines += ["", *([f"{name}:"] if name != part["index"] else []), report_table(part)]
        lines += [sentence for one in report.get("against", []) for sentence in one["verdicts"]]
    return "\n".join(lines)


def metric_title(key: str) -> str:
    """Return the column title of a metric."""
    if key.startswith("recall_at_"):
        return f"Rec@{key.rpartition('_')[2]}"
    return COLUMNS.get(key, key.replace("_", " "))


def _line(name: str, scores: Mapping[str, Any], columns: list[str], width: int) -> str:
    values = (f"{_number(scores.get(key)):>9}" for key in columns)
    return f"{name:{width}}{''.join(values)}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
