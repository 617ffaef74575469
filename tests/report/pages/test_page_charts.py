"""Charts of a page: small, labelled, with every number and any name."""

from __future__ import annotations

import re

import pandas as pd
from matplotlib import pyplot
from mix_report import ODD, SELECTION, gains, summary
from page_parser import Page, describe, drawings

from guie.report import figures
from guie.report.pages import class_sizes, left_after, write_report
from guie.report.pages.html import inline_svg


def test_selection_tells_what_was_turned_down(full):
    page = Page(full)
    assert "rejected" in page.text and "-0.0100" in page.text and "0.6000" in page.text
    assert "-0.0100" in "".join(describe(full)) and "+<b>" in page.text


def test_each_chart_says_what_it_is_and_has_its_own_ids(full):
    page = Page(full)
    charts = page.all("svg")
    assert len(charts) == len(ODD) - 1 + 2, "a panel a domain that has train images, and two more"
    assert all(chart["role"] == "img" and chart["aria-label"] for chart in charts)
    ids = re.findall(r'\bid="([^"]+)"', full)
    assert len(ids) == len(set(ids))
    referred = re.findall(r'(?:url\(|xlink:href="|<use href=")#([^")]+)', full)
    assert referred and set(referred) <= set(ids)
    assert pyplot.get_fignums() == []


def test_charts_are_small_plain_and_take_the_colours_of_the_page(full):
    for chart in drawings(full):
        assert len(chart) < 20_000
        assert not re.search(r"xmlns|metadata|<style|#222222|#777777|#dddddd", chart)
    assert any("var(--ink)" in chart for chart in drawings(full))


def test_the_funnel_and_the_sizes_show_their_numbers(written, table):
    page = written()
    funnel, *panels = drawings(page)
    for text in ("found", "readable", "<text", ">20<", ">in 5 classes<"):
        assert text in funnel
    assert len(panels) == len(ODD) - 1
    assert all("4 images: 1 classes before, 1 after" in panel for panel in panels)
    cells = re.findall('<td class="number" data-sort="1">1</td>', page)
    assert len(cells) >= len(panels), "one class of four images in each"


def test_what_a_rule_took_of_the_sizes_stands_in_the_table(root, table):
    left, before = left_after({"read": table, "max_images": table[1:]}), class_sizes(table)
    path = root / "report.html"
    write_report(path, summary(table), table[1:], root, left=left, before=before)
    page = path.read_text(encoding="utf-8")
    assert "1&nbsp;→&nbsp;0" in page and "0&nbsp;→&nbsp;1" in page
    assert "4 images: 1 classes before, 0 after" in page
    assert "−1<" in drawings(page)[0]


NASTY = ["<script>x</script>", "$\\foo$", "a$b", "\x00\x1b", "two\nlines", "日本語", "x" * 300]


def test_any_name_can_be_drawn(recwarn):
    steps = [(i, f"+{name}", 0.1, 0.01, 0.5, "") for i, name in enumerate(NASTY, start=1)]
    steps += [(pd.NA, f"-{name}", 0.01, pd.NA, pd.NA, "") for name in NASTY]
    text = inline_svg(figures.selection_curve(gains(*steps)), "a", "a <b>")
    page = Page(text)
    assert page.open == [] and not page.all("script")
    assert page.all("svg")[0]["aria-label"] == "a <b>"
    for name in ("<script>x</script>", "$\\foo$", "a$b", "\ufffd\ufffd", "two lines", "日本語"):
        assert f"+{name}" in page.text and f"-{name}" in page.text
    assert f"-{'x' * 300}: +0.0100" in page.text, "whole where the mouse rests"
    assert not recwarn.list


def test_a_chart_is_drawn_to_the_same_text_twice():
    first, second, other = (
        str(inline_svg(figures.selection_curve(SELECTION), name, "")) for name in "aab"
    )
    assert first == second != other
