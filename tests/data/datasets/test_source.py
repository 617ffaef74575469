"""A dataset as a source of a mix: what the config says is what is read."""

from __future__ import annotations

import pytest
from miniatures import MINIATURES
from pydantic import TypeAdapter, ValidationError

from guie.base.errors import UserError
from guie.config.data import DatasetSource
from guie.data.datasets import finding
from guie.data.datasets.finding import read_source
from guie.data.manifest import check


def source(**keys) -> DatasetSource:
    return TypeAdapter(DatasetSource).validate_python(keys)


def test_a_source_with_a_path_is_read_there(tmp_path):
    MINIATURES["met"](tmp_path)
    config = source(kind="met", path=str(tmp_path), domain="art", partial=True)
    manifest, skipped, warnings = read_source(config)
    assert manifest.root == tmp_path / "met"
    assert manifest.sidecar.domains["art"].index_is_train
    assert check(manifest.table, manifest.sidecar) == []
    assert not skipped
    assert any("Met: 397,121 train images expected, 8 found" in line for line in warnings)


def test_a_source_without_a_path_is_looked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(finding, "ROOTS", [tmp_path])
    with pytest.raises(UserError, match="Stanford Online Products is not in"):
        read_source(source(kind="sop"))
    MINIATURES["sop"](tmp_path)
    with pytest.raises(UserError, match="59,551 train images expected, 6 found"):
        read_source(source(kind="sop"))
    manifest, _, _ = read_source(source(kind="sop", partial=True, splits=["train"]))
    assert len(manifest.table) == 6


def test_a_thinned_test_set_is_accounted_for(tmp_path):
    MINIATURES["food2k"](tmp_path)
    options = {"test_classes": 2}
    config = source(kind="food2k", path=str(tmp_path), partial=True, options=options)
    whole, _, _ = read_source(config)
    thinned, skipped, _ = read_source(config.model_copy(update={"test_max_images": 2}))
    assert len(whole.table) == 12 and len(thinned.table) == 10
    assert skipped == {"test image beyond the class's limit, or a near-duplicate": 2}


@pytest.mark.parametrize(
    "keys",
    [
        {"kind": "imaginary"},
        {"kind": "sop", "size": 1},
        {"kind": "sop", "splits": []},
        {"kind": "sop", "splits": ["dev"]},
        {"kind": "sop", "test_max_images": 0},
        {"kind": "sop", "test_near_duplicate_bits": 65},
        {"kind": "sop", "partial": "yes"},
    ],
)
def test_a_faulty_source_is_refused(keys):
    with pytest.raises(ValidationError):
        source(**keys)
