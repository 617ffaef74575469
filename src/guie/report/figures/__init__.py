"""Figures of the notebooks, the README and the pages; each function returns a matplotlib Figure."""

from guie.report.figures.embeddings import (
    class_map,
    densities,
    domain_map,
    gallery,
    project,
    sample_rows,
    spectra,
    val_courses,
)
from guie.report.figures.mix import (
    calibration,
    captioned_sheet,
    contact_sheet,
    funnel,
    noted_sheet,
    selection_curve,
    size_histogram,
    size_histograms,
    split_bars,
    stages,
)
from guie.report.figures.scores import (
    confusion,
    domain_bars,
    domain_intervals,
    heat_map,
    lines_over,
    local_against_leaderboard,
    seed_dots,
    training_curves,
)
