"""Figures of the notebooks, the README and the pages: data in, a matplotlib Figure out."""

from guie.report.figures.charts import funnel, split_bars, stages
from guie.report.figures.curves import training_curves
from guie.report.figures.densities import densities
from guie.report.figures.galleries import gallery
from guie.report.figures.labels import calibration
from guie.report.figures.leaderboard import local_against_leaderboard
from guie.report.figures.maps import class_map, domain_map, project, sample_rows
from guie.report.figures.panels import spectra, val_courses
from guie.report.figures.scores import confusion, domain_bars, domain_intervals
from guie.report.figures.selection import selection_curve
from guie.report.figures.sheets import captioned_sheet, contact_sheet, noted_sheet
from guie.report.figures.sizes import size_histogram, size_histograms
from guie.report.figures.tables import heat_map, lines_over

__all__ = [
    "calibration",
    "captioned_sheet",
    "class_map",
    "confusion",
    "contact_sheet",
    "densities",
    "domain_bars",
    "domain_intervals",
    "domain_map",
    "funnel",
    "gallery",
    "heat_map",
    "lines_over",
    "local_against_leaderboard",
    "noted_sheet",
    "project",
    "sample_rows",
    "selection_curve",
    "size_histogram",
    "size_histograms",
    "spectra",
    "split_bars",
    "stages",
    "training_curves",
    "val_courses",
]
