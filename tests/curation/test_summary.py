"""What a summary counts, and how sources are joined: pure functions."""

from __future__ import annotations

import pandas as pd
import pytest
from tables import rows, together

from guie.base.errors import UserError
from guie.curation import summary
from guie.curation.classes import cap, drop_rare
from guie.curation.sources import combine


def test_combine_fills_columns_that_only_some_sources_have():
    first = rows(["a"]).assign(weight=2.0, width=5, height="")
    second = rows(["b"], domain="e").assign(caption="a bee")
    table = combine([first, second])
    assert table["weight"].tolist() == [2.0, 1.0]
    assert table["caption"].tolist() == ["", "a bee"]
    assert table["width"].tolist() == [5, pd.NA] and table["height"].isna().all()
    assert table.index.tolist() == [0, 1]
    twice = rows(["a", "a"])
    with pytest.raises(UserError, match="sources 0 and 2 both contain d/train/001.jpg"):
        combine([twice, rows(["b"], domain="e"), twice.tail(1)])


def test_losses_and_contents_count_classes_images_and_roles():
    held = rows(["t", "t", "u|t"], "test").assign(role=["query", "index", "both"])
    table = together(rows(["a"] * 5 + ["b"] * 2 + ["c"]), rows(["g"], domain="gone"), held)
    stages = {"read": table, "min_images": drop_rare(table, 2)}
    stages["max_images"] = cap(stages["min_images"], 3)
    one = {"classes": 1, "images": 1}
    losses = summary.losses(stages)
    lost = {"min_images": one, "max_images": {"classes": 0, "images": 2}}
    assert losses == {"d": lost, "gone": {"min_images": one}}
    mix = stages["max_images"]
    alone = pd.Series(mix["role"] == "both", mix.index)
    counts = summary.by_domain(mix, losses, alone)
    test = {"classes": 2, "images": 3, "queries": 2, "index": 2, "queries_without_positive": 1}
    own = {"train": {"classes": 2, "images": 5}, "test": test, "dropped": lost}
    assert counts == {"d": own, "gone": {"dropped": {"min_images": one}}}
