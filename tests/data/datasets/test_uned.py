"""UnED: eight domains in one folder."""

from __future__ import annotations

import pytest
from miniatures import MINIATURES

from guie.base.errors import UserError
from guie.data.datasets import DATASETS, read_dataset


def test_uned_is_eight_domains_with_its_indexes(mini):
    table = mini("uned").table
    roles = table.groupby(["domain", "split"])["role"].agg(lambda role: "/".join(sorted(set(role))))
    assert roles["inshop"].to_dict() == {"train": "train", "val": "both", "test": "index/query"}
    assert roles["met"].to_dict() == {"train": "train", "val": "index/query", "test": "index/query"}
    assert roles["cars"].to_dict() == {"train": "train", "val": "both", "test": "both"}
    assert len(roles.unstack()) == 8


def test_uned_numbers_that_start_again_are_not_the_same_class(mini):
    labels = mini("uned", subsets=["sop"]).table["label"].unique().tolist()
    assert labels == ["sop/uned/train-0", "sop/uned/val-0", "sop/uned/test-0"]


def test_uned_query_of_several_landmarks(mini):
    reading = mini("uned", subsets=["gldv2"])
    query = reading.table[reading.table["role"] == "query"]
    assert query["label"].tolist() == ["gldv2/uned/test-0|gldv2/uned/test-3"]
    assert reading.sidecar.domains["gldv2"].shared_classes


def test_uned_escaped_names_find_the_real_ones(mini):
    paths = mini("uned", subsets=["rp2k"]).table["image_path"]
    assert "images/rp2k/all/train/百事/1.jpg" in set(paths)


def test_uned_subset_is_counted_alone(tmp_path):
    MINIATURES["uned"](tmp_path)
    with pytest.raises(UserError) as caught:
        read_dataset(DATASETS["uned"], tmp_path / "uned", subsets=["cars"])
    lines = str(caught.value).splitlines()
    assert lines[0] == "UnED: 6,346 cars train images expected, 2 found"
    assert len(lines) == 3
