"""The sidecar: what it declares of domains, and what no declaration excuses."""

from __future__ import annotations

import pytest
from manifest_rows import GOOD, SHARED, refusal

from guie.base.errors import UserError
from guie.data.manifest import Sidecar, load_manifest, sidecar_path


@pytest.mark.parametrize(
    ("sidecar", "fault"),
    [
        ("domains: {toys: {shared: true}}", "domains.toys.shared"),
        ("domains: {toys: {shared_classes: 1}}", "domains.toys.shared_classes"),
        ("- a list", "the file"),
        ("domains: [", "line 1|line 2"),
    ],
)
def test_bad_sidecar_is_refused(written, sidecar, fault):
    path = written(sidecar=sidecar)
    with pytest.raises(UserError, match=fault) as caught:
        load_manifest(path)
    assert str(caught.value).startswith(str(sidecar_path(path)))


def test_empty_sidecar_declares_nothing(written):
    assert load_manifest(written(sidecar="")).sidecar == Sidecar()


MET = f"{GOOD}\nt/0.jpg,toys/car,toys,test,index\nt/9.jpg,toys/car,toys,test,query"


@pytest.mark.parametrize("rows", [SHARED, MET])
def test_overlaps_need_a_declaration(written, rows):
    assert "is in train and in test" in refusal(written(rows))


def test_shared_classes_are_declared_by_domain(written):
    load_manifest(written(SHARED, sidecar="domains: {toys: {shared_classes: true}}"))
    refusal(written(SHARED, sidecar="domains: {cars: {shared_classes: true}}"))


def test_index_is_train_lets_an_image_be_train_and_index(written):
    load_manifest(written(MET, sidecar="domains: {toys: {index_is_train: true}}"))
    assert "is already" in refusal(written(MET, sidecar="domains: {toys: {shared_classes: true}}"))


@pytest.mark.parametrize(
    "row",
    [
        "t/0.jpg,toys/car,toys,test,query",  # a training image as query
        "t/0.jpg,toys/car,toys,test,both",
        "t/0.jpg,toys/bike,toys,test,index",  # under another label
        "t/0.jpg,toys/car,toys,train,train",  # twice in train
        "t/5.jpg,toys/cat,toys,test,index",  # twice in the index
        "t/4.jpg,toys/cat,toys,val,index",  # query of one split, index of another
        "t/5.jpg,toys/cat,toys,val,index",  # index of two splits, but never trained on
    ],
)
def test_index_is_train_excuses_nothing_else(written, row):
    path = written(f"{GOOD}\n{row}", sidecar="domains: {toys: {index_is_train: true}}")
    assert ":8: image" in refusal(path)


def test_a_domain_that_is_declared_twice_is_refused(written):
    """The last one would count without a word."""
    twice = "domains:\n  toys: {shared_classes: true}\n  toys: {}"
    assert "line 3: key 'toys' is already in line 2" in refusal(written(sidecar=twice))
