"""Charts show the numbers they were given."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from guie.report import figures
from guie.report.figures import densities, heat_map, lines_over, spectra, val_courses
from guie.report.figures.embeddings import VAL
from guie.report.figures.style import BEFORE, domain_colors, legible

DOMAINS = ("cars", "dishes", "toys")


def texts(figure: Figure) -> list[str]:
    return [text.get_text().strip() for axes in figure.axes for text in axes.texts]


def test_a_domain_keeps_its_colour_in_any_order() -> None:
    ten = [f"domain {i}" for i in range(10)]
    colors = domain_colors(ten)
    assert domain_colors(reversed(ten)) == colors
    assert len(set(colors.values())) == 10


def test_funnel_adds_up() -> None:
    counts = pd.DataFrame({"train": [5, 1], "test": [2, 2], "min_images": [0, 40]}, ["a", "b"])
    figure = figures.funnel(counts)
    assert texts(figure) == ["7", "43"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(counts)


SIZES = pd.Series(
    {("cars", "a"): 3, ("cars", "b"): 1, ("dishes", "c"): 40, ("toys", "d"): 2, ("toys", "e"): 2}
).rename_axis(["domain", "label"])


def heights(figure: Figure) -> dict[str, list[float]]:
    """Of the bars of each colour, those that stand for classes."""
    found: dict[str, list[float]] = {}
    for bar in figure.artists:
        if bar.get_height() > 0.01:  # not a line
            found.setdefault(to_hex(bar.get_facecolor()), []).append(bar.get_height())
    return found


def test_size_histograms_have_a_panel_a_domain_and_bars_to_scale() -> None:
    figure = figures.size_histograms(SIZES)
    colors = domain_colors(DOMAINS)
    found = heights(figure)
    one, two = found[colors["cars"]], found[colors["toys"]]
    assert len(one) == 2 * len(two) == 4  # an outer and an inner bar for each size of a class
    assert max(one) == pytest.approx(max(two))  # the fullest bin of each
    assert BEFORE not in found
    shown = {text.get_text() for text in figure.texts}
    assert {*DOMAINS, "2 classes, median 2", "1 classes, median 40"} <= shown


def test_stages_print_what_is_left_and_what_was_lost() -> None:
    left = pd.DataFrame(
        {"name": ["found", "capped"], "images": [5000, 4000], "classes": [7, 6], "lost": [0, 1000]}
    )
    figure = figures.stages(left)
    assert [bar.get_width() for bar in figure.axes[0].patches] == [5000, 4000]
    assert texts(figure) == ["5,000", "in 7 classes", "4,000", "in 6 classes", "−1,000"]


def test_calibration_draws_both_lines() -> None:
    rows = [{"coverage": 0.5, "precision": 0.9, "at_least": 0.8}]
    measured, at_least = figures.calibration(rows).axes[0].lines
    assert measured.get_xydata().tolist() == [[0.5, 0.9]]
    assert at_least.get_xydata().tolist() == [[0.5, 0.8]]


def test_names_are_cut_to_one_line_and_no_formula(tmp_path: Path) -> None:
    assert legible("a\nb\tc") == "a b c"
    assert legible("x" * 50, 10) == "x" * 9 + "…"
    assert legible("bad-\udcff\x00") == "bad-\ufffd\ufffd"
    counts = pd.DataFrame({"train": [1, 2]}, ["$\\no such command$", "b"])
    figures.funnel(counts).savefig(tmp_path / "funnel.png")


LINES = [
    {"step": 1, "stage": "head", "loss": 3.0, "accuracy": 0.1, "lr_backbone": 0.0, "lr_head": 1e-3},
    {"step": 1, "stage": "head", "val_r_at_1": 0.5, "val_r_at_1/cars": 0.4, "val_r_at_1/toys": 0.6},
    {
        "step": 2,
        "stage": "full",
        "loss": 2.0,
        "accuracy": 0.3,
        "lr_backbone": 1e-4,
        "lr_head": 1e-3,
    },
]


def test_curves_show_what_was_logged() -> None:
    loss, _, rates, val = figures.training_curves(LINES).axes
    assert loss.lines[0].get_xydata().tolist() == [[1, 3.0], [2, 2.0]]
    backbone = rates.lines[0].get_xydata()
    assert backbone.tolist() == [[2, 1e-4]]  # a frozen part has no place on a log axis
    assert [line.get_label() for line in val.lines[:3]] == ["cars", "toys", "mean"]
    assert [text.get_text() for text in loss.texts] == ["head", "full"]


def test_curves_without_stages_or_validation() -> None:
    loss, *_, val = figures.training_curves(LINES[:1]).axes
    assert not loss.texts
    assert [text.get_text() for text in val.texts] == ["no val split"]


def test_intervals_lie_around_their_scores() -> None:
    report = {
        "mean": {"r_at_1": 0.5},
        "domains": {"cars": {"r_at_1": 0.2}, "toys": {"r_at_1": None}, "food": {"r_at_1": 0.8}},
        "intervals": {
            "level": 0.9,
            "mean": {"r_at_1": (0.4, 0.6)},
            "domains": {"cars": {"r_at_1": (0.1, 0.3)}, "food": {"r_at_1": None}},
        },
    }
    [axes] = figures.domain_intervals({"a": report, "b": report}, "r_at_1", "R@1").axes
    lines = [line.get_xdata().tolist() for line in axes.lines if len(line.get_xdata()) == 2]
    assert lines == [[0.4, 0.6], [0.1, 0.3], [0.8, 0.8]] * 2
    dots = [line.get_xdata().tolist() for line in axes.lines if len(line.get_xdata()) == 1]
    assert dots == [[0.5], [0.2], [0.8]] * 2
    assert "90%" in axes.get_xlabel()
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", "b"]


def test_domain_bars_are_as_long_as_the_scores() -> None:
    scores = pd.DataFrame({"before": [0.2, 0.4], "after": [0.5, 0.9]}, ["cars", "toys"])
    [axes] = figures.domain_bars(scores, "R@1").axes
    assert [bar.get_width() for bar in axes.patches] == [0.2, 0.4, 0.5, 0.9]
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    assert legend == ["before: mean 0.300", "after: mean 0.700"]


def test_a_single_system_takes_the_colours_of_the_domains() -> None:
    [axes] = figures.domain_bars(pd.DataFrame({"only": [0.2, 0.4]}, ["toys", "cars"]), "R@1").axes
    colors = domain_colors(["cars", "toys"])
    expected = [colors["toys"], colors["cars"]]
    assert [to_hex(bar.get_facecolor()) for bar in axes.patches] == expected


def test_confusion_colours_only_what_strayed() -> None:
    shares = pd.DataFrame([[0.9, 0.1], [0.005, 0.995]], ["a", "b"], ["a", "b"])
    figure = figures.confusion(shares)
    colored = figure.axes[0].images[0].get_array()
    assert np.isnan(colored.filled(np.nan)).tolist() == [[True, False], [False, True]]
    assert texts(figure) == ["90", "10", "<1", "100"]
    assert shares.loc["a", "a"] == 0.9  # the caller's table is left alone


def test_a_heat_map_is_even_about_zero() -> None:
    values = pd.DataFrame([[0.1, -0.4], [0.2, 0.0]], index=["cars", "food"])
    axes = heat_map(values, "domain", "prompt").axes[0]
    (image,) = axes.images
    assert image.get_clim() == (-0.4, 0.4)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["cars", "food"]
    assert heat_map(values * 0, "domain", "prompt").axes[0].images[0].get_clim() == (-1, 1)


def test_lines_over_a_setting_end_in_their_mean() -> None:
    values = pd.DataFrame({"cars": [0.1, 0.3], "food": [0.5, 0.5]}, index=[0.25, 0.5])
    lines = lines_over(values, "R@1", "p").axes[0].lines
    assert [line.get_label() for line in lines] == ["cars", "food", "mean"]
    assert lines[-1].get_ydata() == pytest.approx([0.3, 0.4])


def test_densities_peak_where_values_lie() -> None:
    rng = np.random.default_rng(0)
    spread = {("one", "same"): 0.8, ("one", "other"): 0.1, ("two", "same"): 0.5}
    values = pd.concat(
        pd.DataFrame(
            {"value": rng.normal(at, 0.02, 300), "panel": panel, "line": "cars", "dash": dash}
        )
        for (panel, dash), at in spread.items()
    )
    left, right = densities(values, "cosine", mark=1).axes
    peaks = [line.get_xdata()[np.argmax(line.get_ydata())] for line in left.lines[:2]]
    assert peaks == pytest.approx([0.8, 0.1], abs=0.02)
    assert right.lines[0].get_xdata()[np.argmax(right.lines[0].get_ydata())] == pytest.approx(
        0.5, abs=0.02
    )
    assert left.get_title(loc="left") == "one"
    alone = pd.DataFrame({"value": [0.3, np.nan], "panel": "p", "line": "l", "dash": "d"})
    assert densities(alone, "cosine").axes[0].lines[0].get_xdata() == [0.3, 0.3]


def test_spectra_have_a_panel_a_domain() -> None:
    falling = np.array([0.5, 0.3, 0.1])
    panels = spectra({name: {"own": falling, "all": falling / 2} for name in "abcde"}).axes
    assert [axes.get_title(loc="left") for axes in panels if axes.get_visible()] == list("abcde")
    assert panels[4].lines[1].get_ydata() == pytest.approx(falling / 2)


def test_courses_mark_each_domains_peak() -> None:
    lines = [
        {"step": step, VAL: 0.4, f"{VAL}/cars": cars, f"{VAL}/food": food}
        for step, cars, food in ((1, 0.1, 0.2), (2, 0.5, 0.3), (2, 0.6, 0.3), (3, 0.4, 0.5))
    ]
    run, empty = val_courses(
        {"run": [{"step": 1, "loss": 2.0}, *lines], "empty": [{"step": 1}]}
    ).axes
    peaks = [
        (*line.get_xdata(), *line.get_ydata()) for line in run.lines if line.get_marker() == "o"
    ]
    assert peaks == [(2, 0.6), (3, 0.5)]
    assert [text.get_text() for text in empty.texts] == ["no val split"]
