"""What a mix's page counts and samples: images after each rule, classes by size, galleries."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from mix_report import rows

from guie.report.figures.mix import histograms
from guie.report.pages import class_sizes, left_after
from guie.report.pages.mix import CLASSES, IMAGES, MAX_PICTURES, funnels, galleries, whole


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


def test_a_table_without_datasets_has_no_name_for_them():
    table = rows(("x", "cars/a", "train", 2), ("x", "cars/b", "train", 1))
    assert set(left_after({"read": table.drop(columns="dataset")})["dataset"]) == {""}
    table.loc[0, "dataset"] = None
    assert left_after({"read": table}).set_index("dataset")["images"].to_dict() == {"": 1, "x": 2}


def test_sizes_count_train_and_val_of_every_label():
    table = rows(("x", "cars/a", "train", 5), ("x", "cars/a|cars/b", "val", 2),
                 ("x", "cars/a", "test", 3))  # fmt: skip
    assert class_sizes(table).to_dict() == {("cars", "cars/a"): 7, ("cars", "cars/b"): 2}


def test_histograms_agree_with_counting_one_by_one():
    sizes = np.random.default_rng(0).integers(1, 300, 200)
    index = pd.MultiIndex.from_product([["cars"], range(200)], names=["domain", "label"])
    before = pd.Series(sizes, index)
    after = before[before > 9].clip(upper=64)
    [panel] = histograms(before, after)
    counted = {}
    for bar in panel.bins:
        low, _, high = bar.name.partition("–")
        low, high = int(low), int(high or low)
        counted[bar.name] = [sum(low <= n <= high for n in part) for part in (before, after)]
    assert counted == {bar.name: [bar.before, bar.after] for bar in panel.bins}
    assert panel.classes == (200, len(after)) == tuple(np.sum(list(counted.values()), axis=0))
    assert panel.highest == max(map(max, counted.values()))
    assert [bar.name for bar in panel.bins][:5] == ["1", "2", "3–4", "5–8", "9–16"]


def test_a_domain_that_is_gone_keeps_its_histogram():
    index = pd.MultiIndex.from_tuples([("cars", "a"), ("toys", "b")], names=["domain", "label"])
    before = pd.Series([1, 2], index)
    cars, toys = histograms(before, before[:1])
    assert (cars.classes, toys.classes) == ((1, 1), (1, 0)) and toys.median == (2.0, 0.0)
    assert [(bar.name, bar.before, bar.after) for bar in toys.bins] == [("1", 0, 0), ("2", 1, 0)]


def test_small_classes_have_a_bin_for_each_size():
    index = pd.MultiIndex.from_product([["cars"], list("abc")], names=["domain", "label"])
    [panel] = histograms(pd.Series([3, 9, 12], index), pd.Series([3, 9, 12], index))
    assert [bar.name for bar in panel.bins if bar.after] == ["3", "9", "12"]
    assert len(panel.bins) == 12


def test_galleries_show_train_and_say_how_much_there_is():
    table = pd.concat([rows(("x", f"cars/{i}", "train", 9)) for i in range(20)])
    table = pd.concat([table, rows(("x", "cars/t", "test", 3), ("x", "toys/t", "test", 2))])
    table["image_path"] = [f"{i}.jpg" for i in range(len(table))]
    table = table.reset_index(drop=True)
    (cars, toys), hidden = galleries(table, seed=0)
    assert (cars["split"], cars["total"], len(cars["classes"]), hidden) == ("train", 20, CLASSES, 0)
    label_of = table.set_index("image_path")["label"]
    for shown in cars["classes"]:
        assert shown["images"] == 9 and len(set(shown["paths"])) == IMAGES
        assert set(label_of[shown["paths"]]) == {shown["label"]}
    assert (toys["split"], len(toys["classes"][0]["paths"])) == ("test", 2)
    shuffled = table.sample(frac=1, random_state=0).reset_index(drop=True)
    assert galleries(shuffled, seed=0) == ([cars, toys], 0)
    assert galleries(table, seed=1) != ([cars, toys], 0)


@pytest.mark.parametrize("domains", [60, 200])
def test_many_domains_share_the_room(domains):
    table = rows(*(("x", f"{d}/{c}", "train", 5) for d in range(domains) for c in "abcd"))
    table["image_path"] = table.index.astype(str)
    found, hidden = galleries(table, seed=0)
    assert len(found) + hidden == domains
    pictures = sum(len(shown["paths"]) for gallery in found for shown in gallery["classes"])
    assert MAX_PICTURES / 2 < pictures <= MAX_PICTURES
