"""The page of a report as a person meets it: sorted, pointed at, on a phone, in the dark."""

import json

import numpy as np
import pytest

from browsing import overflow
from scored_pages import (
    BROKEN,
    CLASSES,
    CLOSING,
    DOMAINS,
    IMAGES,
    MISSING,
    SCRIPT,
    embeddings,
    scored_table,
    write_scored,
)

# Relative luminance and contrast as WCAG 2.2 defines them, of colours as the browser computes them.
CONTRAST = """([ink, paper]) => {
  const light = (color) => color.match(/[\\d.]+/g).slice(0, 3).map(Number)
    .map((c) => (c /= 255) <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [.2126, .7152, .0722][i], 0);
  const [low, high] = [light(ink), light(paper)].sort((a, b) => a - b);
  return (high + .05) / (low + .05);
}"""
PIXEL = """async (picture) => {
  await picture.decode();
  const pen = new OffscreenCanvas(1, 1).getContext("2d");
  pen.drawImage(picture, 0, 0, 1, 1);
  return [...pen.getImageData(0, 0, 1, 1).data];
}"""
COLOR = "(element) => getComputedStyle(element).color"


@pytest.fixture(scope="session")
def address(browser, tmp_path_factory) -> str:
    """Of a page of two models; nothing is drawn without a browser."""
    root = tmp_path_factory.mktemp("pages")
    table = scored_table(root)
    models = {"runs/a/E.npz": embeddings(table, 1.0), "runs/b/E.npz": embeddings(table, 1.6, 1)}
    write_scored(root / "two.html", root, table, models=models)
    return (root / "two.html").as_uri()


@pytest.fixture
def opened(page, address):
    page.goto(address)
    return page


def points(page) -> list[dict]:
    """The data of the map."""
    return json.loads(page.locator("#map-points").text_content())


def centre(page, place: int) -> tuple[float, float]:
    """Where the circle of a point stands on the screen, by the point's number in the data."""
    page.locator("svg.points").scroll_into_view_if_needed()
    point = points(page)[place]
    circle = page.locator(f"circle[cx='{point['x']}'][cy='{point['y']}']").first
    box = circle.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def lonely(page) -> int:
    """A point that no other lies near, so that pointing there means it."""
    found = points(page)
    xy_N2 = np.array([(point["x"], point["y"]) for point in found])
    away_NN = np.linalg.norm(xy_N2[:, None] - xy_N2, axis=2) + np.diag([1e9] * len(found))
    return int(away_NN.min(axis=1).argmax())


def test_a_click_on_a_head_sorts_and_names_from_outside_are_text(opened):
    assert opened.title() == "a/E: how good it is, and where it fails"
    assert opened.locator("#scores tbody th", has_text=SCRIPT).count() == 1
    assert opened.locator(".label", has_text=CLOSING).count() > 0
    table = opened.locator("#scores table").first
    cells = table.locator("tbody tr td:nth-child(2)")

    def shown() -> list[float]:
        return [float(n) for n in cells.evaluate_all("all => all.map((c) => c.dataset.sort)")]

    foot, before = table.locator("tfoot").inner_text(), shown()
    head = table.locator("thead button").nth(1)
    head.click()
    assert shown() == sorted(before) and len(set(before)) > 1
    head.click()
    assert shown() == sorted(before, reverse=True)
    assert table.locator("tfoot").inner_text() == foot


def test_pointing_at_the_map_shows_who_is_there_and_a_click_keeps_it(opened):
    place, card = lonely(opened), opened.locator(".atlas .found")
    point, (x, y) = points(opened)[place], centre(opened, place)
    opened.mouse.move(x, y)
    assert card.locator(".label").inner_text() == point["label"]
    assert card.locator(".path").inner_text() == point["path"]
    assert ("✓" in card.locator(".verdict").inner_text()) == point["right"]
    row = int(point["path"].partition(".")[0])
    if row not in (MISSING, BROKEN):
        pixel = card.locator("img.query").evaluate(PIXEL)
        assert pixel[:3] == pytest.approx([5 * row, 90, 200], abs=12)  # JPEG
    opened.mouse.click(x, y)
    assert opened.locator("circle.same").count() == IMAGES
    opened.mouse.move(*centre(opened, 0 if place else 1))
    assert card.locator(".label").inner_text() == point["label"]
    opened.keyboard.press("Escape")
    assert opened.locator("circle.same").count() == 0


def test_arrows_walk_over_the_map(opened):
    opened.locator("svg.points").focus()
    seen = []
    for key in ("ArrowRight", "ArrowRight", "ArrowUp", "ArrowLeft"):
        opened.keyboard.press(key)
        seen.append(opened.locator(".atlas .found .path").inner_text())
    assert len(set(seen)) >= 3
    opened.keyboard.press("Enter")
    assert opened.locator("circle.same").count() == IMAGES


def test_domains_are_taken_off_the_map(opened):
    visible = opened.locator("circle:not(.off)")
    every = len(DOMAINS) * CLASSES * IMAGES
    assert visible.count() == every
    opened.locator(".legend button", has_text="cars").click()
    assert visible.count() == every - CLASSES * IMAGES
    opened.locator(".legend button", has_text="cars").click()
    opened.get_by_label("mistakes only").check()
    assert visible.count() == opened.locator("circle.wrong").count() < every


def test_a_phone_shows_it_without_scrolling_sideways(browse, address):
    page = browse(width=320, touch=True)
    page.goto(address)
    assert overflow(page) <= 0
    page.touchscreen.tap(*centre(page, lonely(page)))
    map_box = page.locator("svg.points").bounding_box()
    assert map_box["width"] > 0.8 * 320
    assert page.locator(".atlas .found .label").inner_text()
    below = page.locator(".atlas .about").bounding_box()
    assert below["y"] >= map_box["y"] + map_box["height"]  # not over it


@pytest.mark.parametrize("dark", [False, True])
def test_it_is_read_in_the_light_and_in_the_dark(browse, address, dark):
    page = browse(dark=dark)
    page.goto(address)
    paper = page.locator("body").evaluate("(body) => getComputedStyle(body).backgroundColor")
    assert (sum(map(int, paper[4:-1].split(","))) < 3 * 60) == dark
    for what in ("h1", ".quiet >> nth=0", "nav a >> nth=0", "#scores small >> nth=0", ".verdict"):
        ink = page.locator(what).first.evaluate(COLOR)
        assert page.evaluate(CONTRAST, [ink, paper]) >= 4.5, what
