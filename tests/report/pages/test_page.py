"""The report: whole in one file, every name escaped, nothing from elsewhere."""

from __future__ import annotations

import base64
import io
import re

import numpy as np
import pandas as pd
import pytest
from mix_report import MERGES, ODD, gains, rows, summary
from page_parser import Page
from PIL import Image

from guie.curation.duplicates.findings import COLUMNS as FINDING
from guie.report.pages import class_sizes, left_after, write_report


def test_nothing_comes_from_elsewhere(full):
    page = Page(full)
    assert page.open == []
    assert len(page.all("script")) == len(page.all("style")) == 1
    assert not page.all("link") and not page.all("iframe")
    assert all(attrs["src"].startswith("data:image/jpeg;base64,") for attrs in page.all("img"))
    assert all(attrs["href"].startswith("#") for attrs in page.all("a"))
    assert not any(name.startswith("on") for _, attrs in page.elements for name in attrs)
    assert "@import" not in full and "://" not in full
    assert not re.search(r"(url\(|href=\")(?!#)", full)
    [policy] = [attrs for attrs in page.all("meta") if "http-equiv" in attrs]
    assert policy["content"].startswith("default-src 'none'")


def test_names_arrive_as_they_are(full):
    page = Page(full)
    for name in ODD:
        assert name in page.text
        assert f"{name}/class of {name}" in page.text
        assert f"{name}/class of {name}" in {attrs["alt"] for attrs in page.all("img")}
    for text in ("python src/curate.py --config 'a <b>.yaml'", "input/<x>", "no image <i>",
                 "x/<i>.jpg", "broken & <bad>", "<b>: no val split", "a: <b>", "+<b>"):  # fmt: skip
        assert text in page.text


def test_links_and_labels_lead_somewhere(full):
    page = Page(full)
    names = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(names) == len(set(names))
    wanted = {attrs["href"][1:] for attrs in page.all("a")}
    wanted |= {attrs["aria-labelledby"] for attrs in page.all("section")}
    assert wanted and wanted <= set(names) and len(page.all("section")) == len(page.all("a"))
    assert all(attrs.get("scope") in ("col", "row") for attrs in page.all("th"))
    assert all(attrs.get("alt") for attrs in page.all("img"))


def test_same_input_same_bytes(written, everything, full):
    assert written(**everything) == full


def test_thumbnails_are_small_and_true(written, table, root):
    pictures = {attrs["title"]: attrs for attrs in Page(written()).all("img")}
    assert set(pictures) == set(table["image_path"])
    for path, attrs in pictures.items():
        data = base64.b64decode(attrs["src"].partition(",")[2])
        image = Image.open(io.BytesIO(data))
        assert image.size == (int(attrs["width"]), int(attrs["height"])) and image.width == 128
        assert b"secret" not in data
        source = Image.open(root / path).resize((1, 1)).getpixel((0, 0))
        assert np.allclose(image.resize((1, 1)).getpixel((0, 0)), source, atol=3)


def test_what_was_not_looked_for_has_no_section(full, written):
    nothing = written(findings=pd.DataFrame(columns=FINDING), merges=MERGES[:0])
    every, some = ({attrs["id"] for attrs in Page(text).all("section")} for text in (full, nothing))
    assert every - some == {"merges", "selection"}


def test_an_empty_mix_has_a_page(tmp_path):
    table = pd.DataFrame(columns=["image_path", "label", "domain", "split"], dtype=str)
    path = tmp_path / "report.html"
    left, before = left_after({"read": table}), class_sizes(table)
    write_report(path, summary(table), table, tmp_path, left=left, before=before)
    assert Page(path.read_text(encoding="utf-8")).open == []


def test_a_picture_that_is_gone_is_said_to_be(written, root):
    (root / "3.jpg").unlink()
    (root / "4.jpg").write_text("no picture")
    page = Page(written())
    assert "no such image" in page.text
    assert any(text.startswith("not a readable image") for text in page.text)
    assert {attrs["title"] for attrs in page.all("img")}.isdisjoint({"3.jpg", "4.jpg"})


def test_a_name_that_is_no_utf8_is_written(written, table):
    files = [{"file": "bad-\udcff.jpg", "split": "train", "reason": "broken"}]
    assert "bad-\\udcff.jpg" in written(summary=summary(table, dropped_files=files))


@pytest.mark.slow
def test_hundreds_of_domains_make_a_page_of_megabytes_not_more(tmp_path):
    table = rows(*(("x", f"{d}/{c}", "train", n) for d in range(300) for c, n in enumerate((1, 5))))
    table["image_path"] = "none.jpg"
    steps = gains(*((n, f"+{n}", 0.1, 0.01, n / 300, "") for n in range(1, 301)),
                   *((pd.NA, f"-{n}", 0.1, pd.NA, pd.NA, "") for n in range(300)))  # fmt: skip
    path, left = tmp_path / "report.html", left_after({"read": table})
    write_report(
        path, summary(table), table, tmp_path, left=left, before=class_sizes(table), gains=steps
    )
    text = path.read_text(encoding="utf-8")
    assert len(text) < 1_500_000
    assert "the best 20 of 300" in text and "200 of 300 domains are shown" in text
