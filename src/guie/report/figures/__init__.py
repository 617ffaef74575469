"""Figures of the notebooks and the README: data in, a matplotlib Figure out."""

from guie.report.figures.charts import class_sizes, funnel, split_bars
from guie.report.figures.curves import training_curves
from guie.report.figures.galleries import gallery
from guie.report.figures.maps import class_map, domain_map, project, sample_rows
from guie.report.figures.scores import confusion, domain_bars
from guie.report.figures.selection import selection_curve
from guie.report.figures.sheets import captioned_sheet, contact_sheet, noted_sheet

__all__ = [
    "captioned_sheet",
    "class_map",
    "class_sizes",
    "confusion",
    "contact_sheet",
    "domain_bars",
    "domain_map",
    "funnel",
    "gallery",
    "noted_sheet",
    "project",
    "sample_rows",
    "selection_curve",
    "split_bars",
    "training_curves",
]
