"""Splits of our own, where a dataset has none with classes held out: RP2K, Food2K."""

from __future__ import annotations

import pytest
from miniatures.files import touch

from guie.base.errors import UserError


def test_rp2k_class_is_the_same_however_it_was_unzipped(mini):
    reading = mini("rp2k")
    assert set(reading.table["label"]) == {
        f"retail/rp2k/{name}" for name in ("可口可乐", "可口", "百事", "others")
    }
    assert reading.table["label"].value_counts().tolist() == [4] * 4  # train and test pooled
    assert reading.table["image_path"].str.contains("#U53ef#U53e3").sum() == 4


@pytest.mark.parametrize(("name", "option"), [("rp2k", 3), ("food2k", 1), ("food2k", 3)])
def test_own_splits_hold_out_whole_classes(name, option, mini):
    table = mini(name, test_classes=option).table
    held = set(table.loc[table["split"] == "test", "label"])
    assert len(held) == option
    assert not held & set(table.loc[table["split"] == "train", "label"])
    assert set(table.loc[table["split"] == "test", "role"]) == {"both"}


def test_own_splits_depend_on_the_seed_and_on_no_other_class(mini, tmp_path):
    choices = {
        seed: frozenset(mini("food2k", seed=seed).table.query("split == 'test'")["label"])
        for seed in range(8)
    }
    assert len(set(choices.values())) > 1
    touch(tmp_path / "Food2k_complete", ["77/0.jpg"])
    for seed, before in choices.items():
        after = mini("food2k", build=False, seed=seed, test_classes=3).table
        assert before - {"food/food2k/77"} <= set(after.query("split == 'test'")["label"])


def test_own_split_leaves_something_to_train(mini):
    with pytest.raises(UserError, match="test_classes 4: there are only 4 classes"):
        mini("food2k", test_classes=4)
