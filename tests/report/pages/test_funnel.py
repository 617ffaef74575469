"""The funnel: how many images each rule left, in which domain."""

from __future__ import annotations

import pandas as pd
from mix_report import rows

from guie.report.pages import left_after
from guie.report.pages.mix import funnels, whole


def test_funnel_counts_what_each_rule_left():
    read = rows(("x", "cars/a", "train", 5), ("x", "cars/a|cars/b", "train", 2),
                ("x", "cars/a", "test", 3), ("y", "toys/c", "train", 2))  # fmt: skip
    kept = read[(read["label"] != "cars/a|cars/b") & (read["dataset"] == "x")]
    cars, toys = funnels(left_after({"read": read, "min_images": kept}))
    assert [(stage["images"], stage["classes"], stage["lost"]) for stage in cars.stages] == [
        (10, 3, 0),  # a in train, b in train, a in test
        (8, 2, 2),
    ]
    assert [(stage["images"], stage["lost"], stage["share"]) for stage in toys.stages] == [
        (2, 0, 1.0),
        (0, 2, 0.0),  # gone, not passed over
    ]
    assert [(stage["name"], stage["images"]) for stage in whole([cars, toys])] == [
        ("found", 12),
        ("classes large enough", 8),
    ]


def test_a_source_without_a_rule_loses_nothing_by_it():
    one, two = rows(("x", "cars/a", "train", 5)), rows(("y", "cars/a", "train", 9))
    accounts = [
        left_after({"read": one, "unusable": one[:4]}),
        left_after({"read": two, "unusable": two, "max_images": two[:6]}),
    ]
    first, second = funnels(pd.concat(accounts))
    assert [stage["images"] for stage in first.stages] == [5, 4, 4]
    assert [stage["images"] for stage in second.stages] == [9, 9, 6]
    assert [stage["name"] for stage in first.stages] == ["found", "readable", "capped"]


def test_rules_of_the_whole_mix_follow_those_of_the_sources():
    table = rows(("x", "cars/a", "train", 5), ("y", "cars/a", "train", 9))
    before = left_after({"read": table, "unusable": table})
    after = left_after({"unusable": table[:8], "leaks": table[:4]})
    first, second = funnels(pd.concat([before, after]))
    assert [stage["images"] for stage in first.stages] == [5, 5, 4]
    assert [stage["images"] for stage in second.stages] == [9, 3, 0]


def test_images_that_a_rule_moves_to_another_domain_are_counted_there():
    read = rows(("x", "unknown/a", "train", 5))
    moved = read.assign(domain=["cars", "cars", "cars", "toys", "toys"])
    parts = funnels(left_after({"read": read, "pseudo_labels": moved, "min_images": moved[:3]}))
    assert {part.domain: [stage["images"] for stage in part.stages] for part in parts} == {
        "cars": [0, 3, 3],
        "toys": [0, 2, 0],
        "unknown": [5, 0, 0],
    }
    assert [stage["share"] for stage in parts[0].stages] == [0, 1, 1]
    assert [(stage["images"], stage["lost"]) for stage in whole(parts)] == [(5, 0), (5, 0), (3, 2)]


def test_a_table_without_datasets_takes_the_name_given():
    table = rows(("x", "cars/a", "train", 2), ("x", "cars/b", "train", 1))
    assert set(left_after({"read": table.drop(columns="dataset")}, "sop")["dataset"]) == {"sop"}
    table.loc[0, "dataset"] = None
    assert left_after({"read": table}, "sop").set_index("dataset")["images"].to_dict() == {
        "sop": 1,
        "x": 2,
    }
