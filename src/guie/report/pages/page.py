"""The report of a mix: one HTML file that needs nothing beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from tqdm import tqdm

from guie.base.files import write_text
from guie.report.figures.sizes import described, histograms
from guie.report.figures.style import domain_colors
from guie.report.pages.charts import charts, size_charts
from guie.report.pages.funnel import funnels, whole
from guie.report.pages.pairs import SHOWN, accepting, evidence, groups
from guie.report.pages.pictures import Pictures
from guie.report.pages.samples import galleries
from guie.report.pages.sizes import class_sizes

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
    panels = histograms(before, class_sizes(table))
    colors = domain_colors([*left["domain"], *table["domain"].unique()])
    labels = summary.get("pseudo_labels")
    shown, domains_hidden = galleries(table, summary["config"]["seed"])
    with tqdm(desc="report", unit="img", disable=None) as bar:
        page = _environment().get_template("report.html.j2").render(
            summary=summary,
            config=yaml.safe_dump(summary["config"], sort_keys=False, allow_unicode=True),
            limit=ROWS,
            charts=charts(whole(parts), labels, earned, metric),
            funnels=parts,
            histograms=panels,
            drawn=size_charts(panels[:ROWS], colors),
            described=described,
            colors=colors,
            galleries=shown,
            domains_hidden=domains_hidden,
            groups=[] if findings is None else groups(findings),
            evidence=evidence,
            limits=summary.get("copies", []),
            mirrored=bool(((summary["config"].get("clean") or {}).get("near") or {}).get("mirrored")),
            merges=_records(merges)[:SHOWN],
            merges_found=0 if merges is None else len(merges),
            accepting=accepting,
            labels=labels,
            earned=_records(earned),
            metric=metric,
            picture=Pictures(Path(root), bar),
        )  # fmt: skip
    # a file's name may hold bytes that are no UTF-8
    write_text(path, page.encode("utf-8", "backslashreplace").decode("utf-8"))


def _environment() -> Environment:
    """Templates that escape whatever they are given."""
    return Environment(
        loader=PackageLoader("guie.report.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _records(table: pd.DataFrame | None) -> list[dict[str, Any]]:
    """Rows as dictionaries, None where a value is missing."""
    if table is None:
        return []
    return table.astype(object).where(table.notna(), None).to_dict("records")
