"""Classes by size, before and after: histograms against counting one by one."""

from __future__ import annotations

import numpy as np
import pandas as pd
from mix_report import rows

from guie.report.figures.mix import histograms
from guie.report.pages import class_sizes


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
