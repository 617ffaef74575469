"""Figures show the numbers they were given, and galleries judge as the scorer did."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

from guie.report import figures
from guie.report.figures import densities, heat_map, lines_over, maps, spectra, val_courses
from guie.report.figures.panels import VAL
from guie.report.figures.pictures import thumbnail
from guie.report.figures.style import BEFORE, IGNORED, RIGHT, WRONG, domain_colors, legible

DOMAINS = ("cars", "dishes", "toys")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for i in range(12):
        Image.new("RGB", (20, 12), (20 * i, 90, 90)).save(tmp_path / f"{i}.png")
    return tmp_path


@pytest.fixture
def table() -> pd.DataFrame:
    """Two classes of two images in each of three domains; toys are test, the rest train."""
    domains = np.repeat(DOMAINS, 4)
    return pd.DataFrame(
        {
            "image_path": [f"{i}.png" for i in range(12)],
            "label": [f"{domain}/{i // 2}" for i, domain in enumerate(domains)],
            "domain": domains,
            "split": np.where(domains == "toys", "test", "train"),
            "caption": "a toy",
        }
    )


def texts(figure: Figure) -> list[str]:
    return [text.get_text().strip() for axes in figure.axes for text in axes.texts]


def test_a_domain_keeps_its_colour_in_any_order() -> None:
    ten = [f"domain {i}" for i in range(10)]
    colors = domain_colors(ten)
    assert domain_colors(reversed(ten)) == colors
    assert len(set(colors.values())) == 10


def test_a_thumbnail_is_the_central_square(tmp_path: Path) -> None:
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, 10:20] = 255
    Image.fromarray(wide).save(tmp_path / "wide.png")
    assert (thumbnail(tmp_path / "wide.png", side_px=10) == 255).all()


def test_contact_sheet_shows_whole_classes_only(table: pd.DataFrame, root: Path) -> None:
    alone = table.iloc[:-1]  # one class of toys is left with one image
    [axes] = figures.contact_sheet(alone, root, classes=2, views=2).axes
    assert len(axes.images) == 2 * 2 * 2 + 2
    assert texts(axes.figure) == list(DOMAINS)


def test_captioned_sheet_has_each_domain(table: pd.DataFrame, root: Path) -> None:
    figure = figures.captioned_sheet(table, root, columns=2)
    assert Counter(texts(figure)) == {"a toy": 3, **dict.fromkeys(DOMAINS, 1)}


def test_noted_sheet_has_a_row_a_heading(table: pd.DataFrame, root: Path) -> None:
    rows = table.assign(heading=np.repeat(["leaks", "copies", "leaks"], 4), note=table["label"])
    figure = figures.noted_sheet(rows, root, views=2, columns=6)
    shown = texts(figure)
    assert [text for text in shown if text in ("leaks", "copies")] == ["leaks", "copies"]
    notes = Counter(text for text in shown if "/" in text)
    assert notes == Counter(rows.groupby("heading").head(6)["label"])  # of leaks two are left out
    assert len(figure.axes[0].images) == 10


def test_gallery_frames_right_wrong_and_uncounted(table: pd.DataFrame, root: Path) -> None:
    neighbours = pd.DataFrame(
        {
            "query": ["4.png"] * 3 + ["0.png"] * 2,
            "rank": [1, 2, 3, 1, 2],
            "image_path": ["5.png", "8.png", "6.png", "9.png", "1.png"],
            "distance": [0.1, 0.2, 0.3, 0.4, 0.5],
            "relevant": [1, 0, 1, 0, 1],
            "counted": [1, 1, 0, 1, 0],
        }
    )
    figure = figures.gallery(neighbours, table, root)
    [axes] = figure.axes
    frames = [p for p in axes.patches if isinstance(p, Rectangle)]
    assert [to_hex(f.get_edgecolor()) for f in frames] == [RIGHT, WRONG, IGNORED, WRONG, IGNORED]
    assert len(axes.images) == 2 + 5
    shown = texts(figure)
    assert [name for name in shown if name in DOMAINS] == ["dishes", "cars"]  # in the order given
    assert "✓ 0.10\n2" in shown and "✗ 0.20\n4" in shown and "· 0.30\n3" in shown


def test_split_bars_count_images_once_and_labels_apart(table: pd.DataFrame) -> None:
    table.loc[0, "label"] = "cars/0|cars/extra"
    repeated = pd.concat([table, table[table["domain"] == "toys"]])  # an image in two rows
    assert texts(figures.split_bars(repeated)) == ["4", "4", "4", "3", "2", "2"]


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
    figure = figures.size_histograms(SIZES[SIZES > 1], SIZES)
    colors = domain_colors(DOMAINS)
    found = heights(figure)
    one, two = found[colors["cars"]], found[colors["toys"]]
    assert len(one) == len(two) == 1 and one == pytest.approx(two)  # the fullest bin of each
    assert len(found[BEFORE]) == 4
    shown = {text.get_text() for text in figure.texts}
    assert {*DOMAINS, "2 → 1 classes, median 2 → 3", "1 classes, median 40"} <= shown


def test_size_histograms_without_a_before_have_no_grey() -> None:
    assert BEFORE not in heights(figures.size_histograms(SIZES))


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


def test_projection_keeps_neighbours_and_repeats() -> None:
    rng = np.random.default_rng(0)
    emb = np.repeat(np.eye(8, dtype=np.float32)[:2], 20, axis=0)
    emb += 0.05 * rng.normal(size=emb.shape).astype(np.float32)
    xy = figures.project(emb)
    assert np.array_equal(xy, figures.project(emb))
    gaps = np.linalg.norm(xy[:, None] - xy, axis=-1)
    np.fill_diagonal(gaps, np.inf)
    assert (gaps.argmin(axis=1) // 20 == np.arange(40) // 20).all()


def test_sample_keeps_order_and_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    table = pd.DataFrame({"domain": ["a"] * 300 + ["b"] * 100})
    monkeypatch.setattr(maps, "MAX_POINTS", 40)
    rows = figures.sample_rows(table)
    assert rows["domain"].value_counts().to_dict() == {"a": 30, "b": 10}
    assert rows.index.is_monotonic_increasing
    assert len(figures.sample_rows(table[:30])) == 30


def test_maps_place_every_image(table: pd.DataFrame, root: Path) -> None:
    xy = np.arange(24.0).reshape(12, 2)
    panels = figures.domain_map({"one": xy, "two": -xy}, table["domain"]).axes
    assert panels[1].collections[0].get_offsets().tolist() == (-xy).tolist()
    cars = table[table["domain"] == "cars"]
    [axes] = figures.class_map(xy[:4], cars, root, classes=1).axes
    assert [box.xy for box in axes.artists] == [(0, 1), (2, 3)]  # pictures of the largest class


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
