"""The report of a mix: whole in one file, every name escaped, its numbers those of the tables."""

import base64
import io
import re
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot
from page_parser import Page, check_self_contained, drawings
from PIL import Image

from guie.config.data import CleaningConfig
from guie.config.loading import parsed
from guie.curation.findings import COLUMNS as FINDING
from guie.report.figures import selection_curve
from guie.report.figures.mix import histograms
from guie.report.pages import class_sizes, left_after, write_report
from guie.report.pages.html import inline_svg
from guie.report.pages.mix import (
    CLASSES,
    IMAGES,
    MAX_PICTURES,
    PAIRS,
    PAIRS_OF_ONE,
    funnels,
    galleries,
    groups,
)

ODD = ["<script>alert(1)</script>", "a \"quoted\" & 'odd' name", "日本語の車", "🍕 pizza", "مرحبا"]


def finding(kind: str, similarity: float, action: str = "dropped", **more: Any) -> dict[str, Any]:
    values: dict[str, Any] = dict.fromkeys(FINDING, ODD[0])
    values |= {"image_path": "0.jpg", "other_path": "1.jpg", "split": "train", "distance": 3.0}
    values |= {"other_split": "train", "kind": kind, "similarity": similarity, "action": action}
    values |= {"copy": "near", "difference": 1 - similarity, "limit": 0.6, "labels": 0}
    return values | {"sure": True, "confirmed": False} | more


def steps(*rows: tuple) -> pd.DataFrame:
    columns = ["step", "change", "gain", "standard_error", "score", "mix"]
    types = {"step": "Int64", "gain": "float64", "standard_error": "Float64", "score": "Float64"}
    return pd.DataFrame(rows, columns=columns).astype(types)


SELECTION = steps(
    (1, "+<b>", 0.5, 0.0, 0.5, "<b>"),
    (2, "+logos", 0.1, 0.02, 0.6, "<b>+logos"),
    (pd.NA, "+toys", -0.01, pd.NA, pd.NA, ""),
)
MERGE = {"label": "a: <b>", "into": 'c "d"', "similarity": 0.97, "dataset": "one"}
MERGE |= {"into_dataset": "two", "images": 3, "into_images": 1234}
MERGES = pd.DataFrame([MERGE | {"image_path": "0.jpg", "into_path": "1.jpg"}])
LABELS = {"sure": 9, "looked_at": 10, "min_confidence": 0.5, "kept": 8, "calibrated_on": 77}
POINT = {"confidence": 0.7, "coverage": 0.5, "precision": 0.9, "at_least": 0.8}
LIMITS = {"domain": ODD[0], "labels": "none in common", "compared": 4321, "near": 7}
LIMITS |= {"sure_limit": 0.31, "copy_limit": 0.42, "sure": 5, "copies": 6, "false_sure": 0.25}
LIMITS |= {"false_copies": 1.5, "recall_sure": 0.9, "recall_copies": None}


def rows(*classes: tuple[str, str, str, int]) -> pd.DataFrame:
    """(dataset, label, split, images)."""
    made = [(d, label, split) for d, label, split, images in classes for _ in range(images)]
    table = pd.DataFrame(made, columns=["dataset", "label", "split"])
    table["image_path"] = [f"{i}.jpg" for i in range(len(table))]
    return table.assign(domain=table["label"].str.partition("/")[0])


def summary(table: pd.DataFrame, **more: Any) -> dict[str, Any]:
    domains = {
        domain: {"dropped": {}, "train": {"classes": 1, "images": len(rows)}}
        for domain, rows in table.groupby("domain")
    }
    values = {"name": "a_mix", "command": "python src/curate.py --config 'a <b>.yaml'"}
    values |= {"rows": len(table), "domains": domains, "notes": [], "dropped_files": []}
    source = {"kind": "folder", "path": "input/<x>", "skipped": {"no image <i>": 1234}}
    return values | {"sources": [source], "config": {"seed": 0, "verify": True}} | more


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    """A class of four images for each odd name, each in a domain of that name."""
    splits = dict.fromkeys(ODD, "train") | {ODD[-1]: "test"}
    return rows(*(("x", f"{name}/class of {name}", splits[name], 4) for name in ODD))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for i in range(20):
        image = Image.new("RGB", (300, 40 + i), (12 * i, 200, 90))
        image.save(tmp_path / f"{i}.jpg", comment=b"a secret of the camera")
    return tmp_path


@pytest.fixture
def written(root: Path, table: pd.DataFrame):
    """Write a report and return its text; `kept` is the mix if rules dropped images."""

    def text(kept: pd.DataFrame = table, **more: Any) -> str:
        left = left_after({"read": table, "max_images": kept})
        values, path = more.pop("summary", summary(kept)), root / "report.html"
        write_report(path, values, kept, root, left=left, before=class_sizes(table), **more)
        return path.read_text(encoding="utf-8")

    return text


def test_every_section_is_there_and_every_name_is_escaped(written, table) -> None:
    files = [{"file": "x/<i>-\udcff.jpg", "split": "train", "reason": "broken & <bad>"}]
    more = {"dropped_files": files, "notes": ["<b>: no val split"], "copies": [LIMITS]}
    more["pseudo_labels"] = LABELS | {"calibration": [POINT]}
    found = pd.DataFrame([finding("leak", 0.98), finding("conflict", 0.97, "both dropped")])
    values = {"summary": summary(table, **more), "findings": found, "merges": MERGES}
    html = written(**values, gains=SELECTION)
    assert written(**values, gains=SELECTION) == html
    check_self_contained(html)
    page = Page(html)
    assert len(page.all("script")) == len(page.all("style")) == 1
    assert len(page.all("section")) == len(page.all("a")) == 10
    for name in ODD:
        assert name in page.text and f"{name}/class of {name}" in page.text
    texts = "python src/curate.py --config 'a <b>.yaml'", "input/<x>", "no image <i>", "+<b>"
    texts += "x/<i>-\\udcff.jpg", "broken & <bad>", "<b>: no val split", "a: <b>"
    texts += "4,321", "0.31", "0.25", "90%", "0.42", "1.50"  # limits of cleaning
    texts += "rejected", "-0.0100", "0.6000"  # selection
    texts += "0.700", "0.900", "0.800"  # pseudo-labels
    assert set(texts) <= set(page.text)
    assert page.text.count("dropped") == 3  # one image of the leak, both of the conflict
    accepted = re.search(r"<pre><code>(clean:.*?)</code>", html, re.DOTALL)[1]
    merge = CleaningConfig(**parsed(unescape(accepted)).plain["clean"]).merge
    assert merge == {"a: <b>": 'c "d"'}
    bare = Page(written(findings=found[:0], merges=MERGES[:0]))
    sections, left = ({attrs["id"] for attrs in one.all("section")} for one in (page, bare))
    assert sections - left == {"merges", "selection", "labels"}


def test_charts_are_small_plain_and_in_the_colours_of_the_page(written, table) -> None:
    html = written(table[1:], gains=SELECTION)
    funnel, *panels, selection = drawings(html)
    assert len(panels) == len(ODD) - 1  # one per domain with train images
    for chart in (funnel, *panels, selection):
        assert len(chart) < 20_000
        assert not re.search(r"xmlns|metadata|<style|#222222|#777777|#dddddd", chart)
    assert all(text in funnel for text in ("found", "capped", ">20<", "in 5 classes", "−1<"))
    assert "var(--ink)" in funnel and "<title>+toys: -0.0100</title>" in selection
    assert sum("4 images: 1 classes before, 0 after" in panel for panel in panels) == 1
    assert "1&nbsp;→&nbsp;0" in html and "0&nbsp;→&nbsp;1" in html  # in the table of sizes
    assert pyplot.get_fignums() == []


def test_thumbnails_are_small_and_true_and_missing_ones_are_named(written, table, root) -> None:
    (root / "3.jpg").unlink()
    (root / "4.jpg").write_text("no picture")
    page = Page(written())
    pictures = {attrs["title"]: attrs for attrs in page.all("img")}
    assert set(pictures) == set(table["image_path"]) - {"3.jpg", "4.jpg"}
    assert "no such image" in page.text
    assert any(text.startswith("not a readable image") for text in page.text)
    for path, attrs in pictures.items():
        data = base64.b64decode(attrs["src"].partition(",")[2])
        image = Image.open(io.BytesIO(data))
        assert image.size == (int(attrs["width"]), int(attrs["height"])) and image.width == 128
        assert b"secret" not in data
        source = Image.open(root / path).resize((1, 1)).getpixel((0, 0))
        assert np.allclose(image.resize((1, 1)).getpixel((0, 0)), source, atol=3)


def test_an_empty_mix_has_a_page(written, table) -> None:
    assert Page(written(table[:0])).open == []
    assert funnels(left_after({"read": table[:0]})) == ([], [])


def test_any_name_can_be_drawn(recwarn: pytest.WarningsRecorder) -> None:
    nasty = ["<script>x</script>", "$\\foo$", "a$b", "\x00\x1b", "two\nlines", "日本語", "x" * 300]
    taken = [(i, f"+{name}", 0.1, 0.01, 0.5, "") for i, name in enumerate(nasty, start=1)]
    rejected = [(pd.NA, f"-{name}", 0.01, pd.NA, pd.NA, "") for name in nasty]
    text, other = (
        inline_svg(selection_curve(steps(*taken, *rejected)), name, "a <b>") for name in "ab"
    )
    assert text != other  # ids differ between charts
    page = Page(text)
    assert page.open == [] and not page.all("script")
    assert page.all("svg")[0]["aria-label"] == "a <b>"
    for name in ("<script>x</script>", "$\\foo$", "a$b", "\ufffd\ufffd", "two lines", "日本語"):
        assert f"+{name}" in page.text and f"-{name}" in page.text
    assert f"-{'x' * 300}: +0.0100" in page.text  # whole in the tooltip
    assert not recwarn.list


def images(stages: list[dict[str, Any]]) -> list[int]:
    return [stage["images"] for stage in stages]


def test_the_funnel_counts_what_each_rule_left() -> None:
    several = ("x", "cars/a|cars/b", "train", 2)
    read = rows(("x", "cars/a", "train", 5), several, ("x", "cars/a", "test", 3),
                ("y", "toys/c", "train", 2))  # fmt: skip
    kept = read[(read["label"] != "cars/a|cars/b") & (read["dataset"] == "x")]
    whole, (cars, toys) = funnels(left_after({"read": read, "min_images": kept}))
    assert [(s["images"], s["classes"], s["lost"]) for s in cars["stages"]] == [
        (10, 3, 0),  # a in train, b in train, a in test
        (8, 2, 2),
    ]
    assert [(s["images"], s["lost"], s["share"]) for s in toys["stages"]] == [(2, 0, 1), (0, 2, 0)]
    assert [(s["name"], s["images"]) for s in whole] == [("found", 12), ("classes large enough", 8)]
    assert class_sizes(read)["cars"].to_dict() == {"cars/a": 7, "cars/b": 2}  # without test
    # Images that change their domain are counted there
    moved = read[:5].assign(domain=["cars", "cars", "dogs", "dogs", "dogs"])
    _, parts = funnels(left_after({"read": read[:5], "pseudo_labels": moved}))
    found = {part["domain"]: images(part["stages"]) for part in parts}
    assert found == {"cars": [5, 2], "dogs": [0, 3]}


def test_a_rule_that_was_not_applied_loses_nothing() -> None:
    one, two = rows(("x", "cars/a", "train", 5)), rows(("y", "cars/a", "train", 9))
    sources = [
        left_after({"read": one, "unusable": one[:4]}),
        left_after({"read": two, "unusable": two, "max_images": two[:6]}),
    ]
    _, parts = funnels(pd.concat(sources))
    assert [images(part["stages"]) for part in parts] == [[5, 4, 4], [9, 9, 6]]
    both = pd.concat([one, two], ignore_index=True)
    later = left_after({"unusable": both[:8], "leaks": both[:4]})
    _, parts = funnels(pd.concat([*sources, later]))  # later rows replace earlier ones
    assert [images(part["stages"]) for part in parts] == [[5, 5, 5, 4], [9, 3, 6, 0]]


def test_histograms_agree_with_counting_one_by_one() -> None:
    sizes = np.random.default_rng(0).integers(1, 300, 200)
    index = pd.MultiIndex.from_product([["cars"], range(200)], names=["domain", "label"])
    before = pd.Series(sizes, index)
    after = before[before > 9].clip(upper=64)
    [(domain, bins, note)] = histograms(before, after)
    for one in bins.itertuples():
        low, _, high = one.name.partition("–")
        low, high = int(low), int(high or low)
        counts = [sum(low <= n <= high for n in part) for part in (before, after)]
        assert [one.largest, one.before, one.after] == [high, *counts]
    assert bins["name"][:5].tolist() == ["1", "2", "3–4", "5–8", "9–16"]
    medians = f"{before.median():g} → {after.median():g}"
    assert (domain, note) == ("cars", f"200 → {len(after)} classes, median {medians}")
    # Small classes have a bin each, and a domain that was dropped stays
    few = pd.Series({("cars", "a"): 1, ("toys", "b"): 3}).rename_axis(["domain", "label"])
    (_, cars, _), (_, _, note) = histograms(few, few[:1])
    assert cars["name"].tolist() == ["1", "2", "3"] and cars["after"].tolist() == [1, 0, 0]
    assert note == "1 → 0 classes, median 3 → 0"


def test_galleries_sample_whole_classes_by_seed() -> None:
    cars = [("x", f"cars/{i}", "train", 9) for i in range(20)]
    table = rows(*cars, ("x", "cars/t", "test", 3), ("x", "toys/t", "test", 2))
    (first, toys), hidden = galleries(table, seed=0)
    assert (first["split"], first["total"], hidden) == ("train", 20, 0)
    assert len(first["classes"]) == CLASSES
    label_of = table.set_index("image_path")["label"]
    for shown in first["classes"]:
        assert shown["images"] == 9 and len(set(shown["paths"])) == IMAGES
        assert set(label_of[shown["paths"]]) == {shown["label"]}
    assert (toys["split"], len(toys["classes"][0]["paths"])) == ("test", 2)
    shuffled = table.sample(frac=1, random_state=0).reset_index(drop=True)
    assert galleries(shuffled, seed=0) == ([first, toys], 0) != galleries(table, seed=1)
    # Many domains show fewer classes each
    table = rows(*(("x", f"{d}/{c}", "train", 5) for d in range(200) for c in "abcd"))
    found, hidden = galleries(table, seed=0)
    assert len(found) + hidden == 200
    pictures = sum(len(shown["paths"]) for gallery in found for shown in gallery["classes"])
    assert MAX_PICTURES / 2 < pictures <= MAX_PICTURES


def test_the_least_similar_pairs_are_shown_and_the_rest_counted(written) -> None:
    pairs = [
        finding("near duplicate", 0.9 + n / 1000, image_path=f"{n}.jpg", other_path=f"{n}.png")
        for n in range(PAIRS + 7)
    ]
    table = pd.DataFrame([*pairs, finding("leak", 0.5, "stop")][::-1])
    leak, near = groups(table)
    assert (leak["kind"], near["kind"]) == ("leak", "near duplicate")
    assert [pair["similarity"] for pair in near["pairs"]] == [0.9 + n / 1000 for n in range(PAIRS)]
    assert near["total"] == PAIRS + 7 and near["actions"] == {"dropped": PAIRS + 7}
    assert f"{PAIRS} of {PAIRS + 7} findings (each pair once" in written(findings=table)
    # A placeholder, 200 images of one picture, leaves room for others
    crowd = [
        finding("conflict", 0.9, image_path=f"{n}.jpg", other_path=f"{n // 2}.jpg")
        for n in range(1, 200)
    ]
    other = finding("conflict", 0.99, image_path="a", other_path="b")
    [found] = groups(pd.DataFrame([*crowd, other, other]))
    assert [pair["similarity"] for pair in found["pairs"]] == [0.9] * PAIRS_OF_ONE + [0.99]
    assert found["total"] == 201


def test_a_finding_is_explained_by_the_difference_and_by_numbers(written) -> None:
    near = finding("leak", 0.98, difference=0.123, limit=0.456, distance=7)
    doubtful = finding("conflict", 0.9, "reported", difference=0.5, sure=False, other_path="2.jpg")
    others = [
        finding("conflict", 0.9, confirmed=True),
        finding("exact duplicate", 1.0, copy="exact"),
        finding("placeholder", 1.0, copy="exact", labels=17),
    ]
    page = Page(written(findings=pd.DataFrame([near, doubtful, *others])))
    text = " ".join(page.text)
    assert "7 bits apart, cosine 0.980, pixels differ by 0.12 (copies: up to 0.46)" in text
    assert "a picture with 17 labels" in text and "copies by your verdict" in text
    drawn = [attrs for attrs in page.all("img") if attrs["alt"].startswith("difference")]
    assert len(drawn) == 3  # one for each near pair
