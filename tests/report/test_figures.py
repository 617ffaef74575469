"""Figures show the numbers and images they were given."""

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
from guie.report.figures import embeddings
from guie.report.figures.style import IGNORED, RIGHT, WRONG, domain_colors, legible

DOMAINS = ("cars", "dishes", "toys")
VAL = "val_r_at_1"


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


def titles(figure: Figure) -> list[str]:
    return [axes.get_title(loc="left") for axes in figure.axes if axes.get_visible()]


def points(lines: list) -> list[list[list[float]]]:
    return [line.get_xydata().tolist() for line in lines]


def test_names_are_cut_to_one_line_and_are_no_formula(tmp_path: Path) -> None:
    colors = domain_colors("abc")
    assert domain_colors("cba") == colors and len(set(colors.values())) == 3
    assert legible("a\nb\tc") == "a b c"
    assert legible("x" * 50, 10) == "x" * 9 + "…"
    assert legible("bad-\udcff\x00") == "bad-\ufffd\ufffd"
    counts = pd.DataFrame({"train": [1, 2]}, ["$\\no such command$", "b"])
    figures.funnel(counts).savefig(tmp_path / "funnel.png")


def test_bars_add_up(table: pd.DataFrame) -> None:
    counts = pd.DataFrame({"train": [5, 1], "test": [2, 2], "min_images": [0, 40]}, ["a", "b"])
    figure = figures.funnel(counts)
    assert texts(figure) == ["7", "43"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(counts)
    table.loc[0, "label"] = "cars/0|cars/extra"
    repeated = pd.concat([table, table[table["domain"] == "toys"]])  # an image in two rows
    assert texts(figures.split_bars(repeated)) == ["4", "4", "4", "3", "2", "2"]
    sizes = {("cars", "a"): 3, ("cars", "b"): 1, ("dishes", "c"): 40, ("toys", "d"): 2}
    figure = figures.size_histograms(pd.Series(sizes).rename_axis(["domain", "label"]))
    assert titles(figure) == list(DOMAINS)
    assert texts(figure)[:2] == ["2 classes, median 2", "1 classes, median 40"]
    assert [bar.get_height() for bar in figure.axes[0].patches] == [1, 0, 1, 0, 0, 0, 0]


def test_sheets_show_images_with_their_names(table: pd.DataFrame, root: Path) -> None:
    figure = figures.contact_sheet(table.iloc[:-1], root, classes=2, views=2)
    assert texts(figure) == list(DOMAINS)
    assert len(figure.axes[0].images) == 2 * 2 * 2 + 2  # one class of toys lacks an image
    figure = figures.captioned_sheet(table, root, columns=2)
    assert Counter(texts(figure)) == {"a toy": 3, **dict.fromkeys(DOMAINS, 1)}
    rows = table.assign(heading=np.repeat(["leaks", "copies", "leaks"], 4), note=table["label"])
    shown = texts(figures.noted_sheet(rows, root, views=2, columns=6))
    notes = Counter(text for text in shown if "/" in text)
    assert notes == Counter(rows.groupby("heading").head(6)["label"])  # two leaks are left out
    assert [text for text in shown if "/" not in text] == ["leaks", "copies"]


def test_curves_show_what_was_logged() -> None:
    first, second = (
        {"step": step, "stage": stage, "loss": loss, "accuracy": 0.1, "lr_backbone": rate}
        for step, stage, loss, rate in ((1, "head", 3.0, 0.0), (2, "full", 2.0, 1e-4))
    )
    val = {"step": 1, "stage": "head", VAL: 0.5, f"{VAL}/cars": 0.4, f"{VAL}/toys": 0.6}
    loss, _, rates, axes = figures.training_curves([first, val, second]).axes
    assert points(loss.lines[:1]) == [[[1, 3.0], [2, 2.0]]]
    assert points(rates.lines[:1]) == [[[2, 1e-4]]]  # 0 has no place on a log axis
    assert [line.get_label() for line in axes.lines[:3]] == ["cars", "toys", "mean"]
    assert [text.get_text() for text in loss.texts] == ["head", "full"]

    better = [val | {"step": 2, f"{VAL}/cars": cars} for cars in (0.1, 0.6)]  # a step twice
    figure = figures.val_courses({"run": [first, val, *better], "empty": [first]})
    dots = [line for line in figure.axes[0].lines if line.get_marker() == "o"]
    assert points(dots) == [[[2, 0.6]], [[1, 0.6]]]  # at the maximum of each domain
    assert texts(figure) == ["no val split"]


def test_scores_and_intervals_are_as_long_as_given() -> None:
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
    drawn = [line.get_xdata().tolist() for line in axes.lines]
    assert [x for x in drawn if len(x) == 2] == [[0.4, 0.6], [0.1, 0.3], [0.8, 0.8]] * 2
    assert [x for x in drawn if len(x) == 1] == [[0.5], [0.2], [0.8]] * 2
    assert "90%" in axes.get_xlabel()

    scores = pd.DataFrame({"before": [0.2, 0.4], "after": [0.5, 0.9]}, ["toys", "cars"])
    [axes] = figures.domain_bars(scores, "R@1").axes
    assert [bar.get_width() for bar in axes.patches] == [0.2, 0.4, 0.5, 0.9]
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    assert legend == ["before: mean 0.300", "after: mean 0.700"]

    values = pd.DataFrame({"cars": [0.1, 0.3], "food": [0.5, 0.5]}, index=[0.25, 0.5])
    lines = figures.lines_over(values, "R@1", "p").axes[0].lines
    assert [line.get_label() for line in lines] == ["cars", "food", "mean"]
    assert lines[-1].get_ydata() == pytest.approx([0.3, 0.4])


def test_heat_maps_colour_other_domains_and_are_even_about_zero() -> None:
    shares = pd.DataFrame([[0.9, 0.1], [0.005, 0.995]], ["a", "b"], ["a", "b"])
    figure = figures.confusion(shares)
    colored = figure.axes[0].images[0].get_array()
    assert np.isnan(colored.filled(np.nan)).tolist() == [[True, False], [False, True]]
    assert texts(figure) == ["90", "10", "<1", "100"] and shares.loc["a", "a"] == 0.9
    image = figures.heat_map(pd.DataFrame([[0.1, -0.4]]), "domain", "prompt").axes[0].images[0]
    assert image.get_clim() == (-0.4, 0.4)


def test_densities_peak_at_the_values_and_spectra_have_a_panel_per_domain() -> None:
    rng, centres = np.random.default_rng(0), {("one", "same"): 0.8, ("one", "other"): 0.1}
    values = pd.concat(
        pd.DataFrame(
            {"value": rng.normal(at, 0.02, 300), "panel": panel, "line": "cars", "dash": dash}
        )
        for (panel, dash), at in centres.items()
    )
    alone = {"value": [0.3, np.nan], "panel": "two", "line": "l", "dash": "same"}
    figure = figures.densities(pd.concat([values, pd.DataFrame(alone)]), "cosine", mark=1)
    curves = figure.axes[0].lines[:2]
    peaks = [curve.get_xdata()[np.argmax(curve.get_ydata())] for curve in curves]
    assert peaks == pytest.approx([0.8, 0.1], abs=0.02) and titles(figure) == ["one", "two"]
    assert figure.axes[1].lines[0].get_xdata() == [0.3, 0.3]  # of one value there is no density
    falling = np.array([0.5, 0.3, 0.1])
    figure = figures.spectra({name: {"own": falling, "all": falling / 2} for name in "abcde"})
    assert titles(figure) == list("abcde")
    assert figure.axes[4].lines[1].get_ydata() == pytest.approx(falling / 2)


def test_a_gallery_frames_right_wrong_and_uncounted(table: pd.DataFrame, root: Path) -> None:
    columns = ["query", "rank", "image_path", "distance", "relevant", "counted"]
    rows = [("4.png", 1, "5.png", 0.1, 1, 1), ("4.png", 2, "8.png", 0.2, 0, 1)]
    rows += [("4.png", 3, "6.png", 0.3, 1, 0), ("0.png", 1, "9.png", 0.4, 0, 1)]
    figure = figures.gallery(pd.DataFrame(rows, columns=columns), table, root)
    [axes] = figure.axes
    frames = [to_hex(p.get_edgecolor()) for p in axes.patches if isinstance(p, Rectangle)]
    assert frames == [RIGHT, WRONG, IGNORED, WRONG] and len(axes.images) == 2 + 4
    shown = texts(figure)
    assert [name for name in shown if name in DOMAINS] == ["dishes", "cars"]  # in the order given
    assert {"✓ 0.10\n2", "✗ 0.20\n4", "· 0.30\n3"} <= set(shown)


def test_maps_place_every_image(table: pd.DataFrame, root: Path) -> None:
    xy = np.arange(24.0).reshape(12, 2)
    panels = figures.domain_map({"one": xy, "two": -xy}, table["domain"]).axes
    assert panels[1].collections[0].get_offsets().tolist() == (-xy).tolist()
    cars = table[table["domain"] == "cars"]
    [axes] = figures.class_map(xy[:4], cars, root, classes=1).axes
    assert [box.xy for box in axes.artists] == [(0, 1), (2, 3)]  # pictures of the largest class


def test_a_projection_keeps_neighbours_and_a_sample_keeps_shares(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(0)
    emb = np.repeat(np.eye(8)[:2], 20, axis=0) + 0.05 * rng.normal(size=(40, 8))
    xy = figures.project(emb)
    gaps = np.linalg.norm(xy[:, None] - xy, axis=-1) + np.diag([np.inf] * 40)
    assert (gaps.argmin(axis=1) // 20 == np.arange(40) // 20).all()
    monkeypatch.setattr(embeddings, "MAX_POINTS", 40)
    rows = figures.sample_rows(pd.DataFrame({"domain": ["a"] * 300 + ["b"] * 100}))
    assert rows["domain"].value_counts().to_dict() == {"a": 30, "b": 10}
    assert rows.index.is_monotonic_increasing
