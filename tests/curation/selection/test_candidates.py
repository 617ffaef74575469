"""Candidates and the rows of their mixes, and what each source earned."""

from __future__ import annotations

import pandas as pd
import pytest
from additive_scores import CERTAIN, additive, candidates

from guie.config.data import ProxyEvaluatorConfig, SelectionConfig, SelectionRule
from guie.curation.selection import Candidate, candidates_of, earned, mix_rows, render, select
from guie.report.figures.mix import selection_curve


@pytest.fixture
def table() -> pd.DataFrame:
    sizes = {"cars/x": 9, "cars/y": 2, "logos/x": 3, "logos/y": 1}
    rows = [
        (f"{label}/{n}.jpg", label, label.split("/")[0], "train")
        for label, size in sizes.items()
        for n in range(size)
    ]
    rows.append(("v.jpg", "cars/v", "cars", "val"))
    return pd.DataFrame(rows, columns=["image_path", "label", "domain", "split"])


def test_candidates_are_sources_times_caps_that_cut(table):
    found = candidates_of(table, "domain", [None, 5, 2])
    assert list(map(str, found)) == ["cars", "cars@2", "cars@5", "logos", "logos@2"]


def test_rows_of_a_mix(table):
    mix = frozenset({Candidate("cars", 5), Candidate("logos")})
    rows = mix_rows(table, mix, "domain", seed=0)
    assert rows["label"].value_counts().to_dict() == {
        "cars/x": 5,
        "logos/x": 3,
        "cars/y": 2,
        "logos/y": 1,
    }
    assert (rows["split"] == "train").all() and rows["image_path"].is_unique
    alone = mix_rows(table, frozenset({Candidate("cars", 5)}), "domain", seed=0)
    assert set(alone["image_path"]) < set(rows["image_path"]), "the same images in every mix"


def test_what_each_source_earned(tmp_path):
    steps = list(select(candidates(), additive(), CERTAIN))
    table = earned(steps)
    assert table["change"].tolist() == ["+a", "+b", "+c", "+e", "+d"]
    assert table["step"].tolist() == [1, 2, 3, pd.NA, pd.NA]
    assert table["gain"].to_numpy() == pytest.approx([0.3, 0.1, 0.05, 0.0, -0.02])
    assert "0.0500" in render(steps)


def test_the_curve_shows_scores_and_what_was_turned_down():
    figure = selection_curve(earned(list(select(candidates(), additive(), CERTAIN))))
    left, right = figure.axes
    assert left.lines[0].get_ydata() == pytest.approx([0.3, 0.4, 0.45])
    assert [text.get_text() for text in left.get_xticklabels()] == ["+a", "+b", "+c"]
    assert [bar.get_width() for bar in right.patches] == pytest.approx([-0.02, 0.0])


def test_the_curve_of_a_search_that_turned_nothing_down():
    figure = selection_curve(earned(list(select(candidates("ab"), additive(), CERTAIN))))
    assert "nothing" in [text.get_text() for text in figure.axes[1].texts]


def test_configs_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="1 seed has no standard error"):
        SelectionRule(confirm_seeds=1)
    with pytest.raises(ValueError, match="full: missing, and evaluator full needs it"):
        SelectionConfig(evaluator="full", proxy=ProxyEvaluatorConfig(model="timm:resnet18"))
