"""Classes held out for validation and testing."""

from __future__ import annotations

import pandas as pd
import pytest
from tables import random_table, rows

from guie.curation.classes import apply_merges
from guie.curation.splits import (
    choose_test_classes,
    held_out_classes,
    move_to_test,
    split_validation,
)


def classes_by_split(table: pd.DataFrame) -> dict[str, set[str]]:
    classes = table.assign(label=table["label"].str.split("|")).explode("label")
    return classes.groupby("split")["label"].agg(set).to_dict()


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.5, 0.99])
@pytest.mark.parametrize("seed", range(3))
def test_validation_classes_leave_train_whole(seed, fraction):
    table = pd.concat([random_table(seed), rows(["e"] * 4 + ["f"] * 3 + ["g"], domain="z")])
    table = table.reset_index(drop=True)
    split = split_validation(table, fraction, seed)
    classes = classes_by_split(split)
    assert not classes["train"] & classes["val"]
    assert {"e", "f"} & classes["val"], "a domain with two classes validates on at least one"
    assert "g" in classes["train"], "a class of one image has no positive"
    assert set(split.loc[split["split"] == "val", "role"]) == {"both"}
    same = ["image_path", "label", "domain"]
    pd.testing.assert_frame_equal(split[same], table[same])
    pd.testing.assert_frame_equal(split[split["split"] == "test"], table[table["split"] == "test"])


@pytest.mark.parametrize(
    ("classes", "fraction", "wanted"),
    [(1, 0.5, 0), (2, 0.01, 1), (2, 0.99, 1), (10, 0.1, 1), (10, 0.26, 3), (20, 0.5, 10)],
)
def test_share_of_classes_is_rounded_at_least_one_never_all(classes, fraction, wanted):
    table = rows([f"c{n}" for n in range(classes)] * 2)
    split = split_validation(table, fraction, seed=0)
    assert split.loc[split["split"] == "val", "label"].nunique() == wanted


def test_classes_that_share_an_image_stay_together():
    pairs = [(0, "a"), (0, "b"), (1, "b"), (1, "c"), (2, "a"), (3, "c"), (4, "d"), (5, "d")]
    pairs += [(6 + n, f"e{n // 2}") for n in range(8)]
    members = pd.DataFrame(pairs, columns=["row", "label"])
    sizes = set()
    for seed in range(20):
        chosen = held_out_classes(members, 0.5, seed)
        assert len(chosen & {"a", "b", "c"}) in (0, 3)
        sizes.add(len(chosen))
        assert not held_out_classes(members, 0.5, seed, stay={"a", "d"}) & {"a", "b", "c", "d"}
    assert max(sizes) == 4 and min(sizes) >= 1


def test_the_split_depends_on_seed_and_classes_alone():
    table = rows([f"c{n}" for n in range(30)] * 3)
    chosen = classes_by_split(split_validation(table, 0.2, 5))["val"]
    fewer = table.iloc[::-1].drop(index=[0, 40]).reset_index(drop=True)
    assert classes_by_split(split_validation(fewer, 0.2, 5))["val"] == chosen
    assert classes_by_split(split_validation(table, 0.2, 6))["val"] != chosen


def test_images_of_several_test_classes_move_with_them():
    table = pd.concat([random_table(3), rows(["e"] * 4 + ["f"] * 3 + ["g"], domain="z")])
    table = table[table["split"] == "train"].reset_index(drop=True)
    for fraction in (0.3, 0.6):
        chosen = choose_test_classes(table, fraction, seed=2)
        moved = move_to_test(table, chosen)
        classes = classes_by_split(moved)
        assert classes["test"] == chosen and not classes["train"] & chosen
        assert set(moved.loc[moved["split"] == "test", "role"]) == {"both"}
    left = choose_test_classes(table, 0.5, 2, leave=["z"])
    assert left == choose_test_classes(table[table["domain"] == "d"], 0.5, 2)


@pytest.mark.parametrize("merge", [{"a/0": "b/0", "a/1": "b/1"}, {"b/0": "a/0", "b/1": "a/1"}])
def test_classes_that_join_a_domain_with_a_test_split_stay_in_train(merge):
    labels = {"a": [f"a/{n // 2}" for n in range(10)], "b": ["b/0", "b/0", "b/1", "b/1"]}
    tables = [rows(own, domain=domain) for domain, own in labels.items()]
    table = pd.concat([*tables, rows(["b/9"], "test", domain="b")], ignore_index=True)
    chosen = choose_test_classes(table, 0.9, seed=2, merge=merge)
    classes = classes_by_split(apply_merges(move_to_test(table, chosen), merge))
    assert not classes["train"] & classes["test"] and classes["test"] >= {"a/3", "b/9"}


def test_domains_that_bring_val_or_are_left_do_not_change():
    brings = pd.concat([rows(["a", "a", "b", "b"]), rows(["v", "v"], "val")])
    table = pd.concat([brings, rows(["m", "m", "n", "n"], domain="met")], ignore_index=True)
    pd.testing.assert_frame_equal(split_validation(table, 0.5, 0, leave=["met"]), table)
    pd.testing.assert_frame_equal(split_validation(table, 0.0, 0), table)
