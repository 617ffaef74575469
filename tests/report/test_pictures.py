"""Sheets, galleries and maps show the images they were given, and galleries judge as the scorer did."""

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
from guie.report.figures import embeddings as maps
from guie.report.figures.style import IGNORED, RIGHT, WRONG, thumbnail

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
