"""The report of a mix: one HTML file that needs nothing beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from tqdm import tqdm

from guie.report.figures.sizes import described, histograms
from guie.report.figures.style import domain_colors
from guie.report.pages.charts import charts, size_charts
from guie.report.pages.funnel import funnels, whole
from guie.report.pages.pairs import SHOWN, accepting, evidence, groups
from guie.report.pages.pictures import Pictures
from guie.report.pages.samples import galleries
from guie.report.pages.sizes import class_sizes
from guie.report.pages.templating import write_page

ROWS = 200  # of a table; the rest are counted


def write_report(
    path: str | Path,
    summary: Mapping[str, Any],
    table: pd.DataFrame,
    root: str | Path,
    *,
    left: pd.DataFrame,
    before: pd.Series,
    findings: pd.DataFrame | None = None,
    merges: pd.DataFrame | None = None,
    earned: pd.DataFrame | None = None,
    metric: str = "R@1 on val",
) -> None:
    """Write the page that shows how a mix came about. The same input gives the same bytes.

    Args:
        path: the HTML file.
        summary: what is written as JSON beside the mix.
        table: the mix's rows.
        root: folder that image_path starts from.
        left: what `left_after` returns, of all sources.
        before: `class_sizes` of what the sources held.
        findings: of `guie.curation.steps.clean_rules.clean`.
        merges: of `guie.curation.classes.merging.suggest_merges`.
        earned: of `guie.curation.selection.earned.earned`.
        metric: what the selection raised.

    Raises:
        UserError: the file cannot be written. A picture that cannot be decoded is shown as such.
    """
    parts = funnels(left)
    values = {
        **_mix(summary, table),
        **_sizes(left, before, table),
        **_cleaning(summary, findings, merges),
        "funnels": parts,
        "charts": charts(whole(parts), summary.get("pseudo_labels"), earned, metric),
        "earned": _records(earned),
        "metric": metric,
    }
    with tqdm(desc="report", unit="img", disable=None) as bar:
        write_page(path, "report.html.j2", {**values, "picture": Pictures(Path(root), bar)})


def _mix(summary: Mapping[str, Any], table: pd.DataFrame) -> dict[str, Any]:
    """Values of the template: the mix itself, and samples of it."""
    config = summary["config"]
    shown, hidden = galleries(table, config["seed"])
    return {
        "summary": summary,
        "config": yaml.safe_dump(config, sort_keys=False, allow_unicode=True),
        "limit": ROWS,
        "labels": summary.get("pseudo_labels"),
        "galleries": shown,
        "domains_hidden": hidden,
    }


def _sizes(left: pd.DataFrame, before: pd.Series, table: pd.DataFrame) -> dict[str, Any]:
    """Values of the template: classes by size, before and after, and the domains' colours."""
    panels = histograms(before, class_sizes(table))
    colors = domain_colors([*left["domain"], *table["domain"].unique()])
    return {
        "histograms": panels,
        "drawn": size_charts(panels[:ROWS], colors),
        "described": described,
        "colors": colors,
    }


def _cleaning(
    summary: Mapping[str, Any], findings: pd.DataFrame | None, merges: pd.DataFrame | None
) -> dict[str, Any]:
    """Values of the template: what cleaning found, and the merges that it suggests."""
    near = (summary["config"].get("clean") or {}).get("near") or {}
    return {
        "groups": [] if findings is None else groups(findings),
        "evidence": evidence,
        "limits": summary.get("copies", []),
        "mirrored": bool(near.get("mirrored")),
        "merges": _records(merges)[:SHOWN],
        "merges_found": 0 if merges is None else len(merges),
        "accepting": accepting,
    }


def _records(table: pd.DataFrame | None) -> list[dict[str, Any]]:
    """Rows as dictionaries, None where a value is missing."""
    if table is None:
        return []
    return table.astype(object).where(table.notna(), None).to_dict("records")
