"""Labels guessed by a CLIP, against plain twins."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from label_inputs import CLASSES, rows, units

from guie.config.data import PseudoLabelConfig
from guie.curation import pseudo_labels as zero_shot
from guie.curation.pseudo_labels import Guesses, contradicted, guess, relabelled, sure

LABELS = ("cars/sedan", "cars/bus", "toys/doll")


@pytest.mark.parametrize("block", [2**24, 12])
def test_guesses_agree_with_a_softmax_spelt_out(monkeypatch, block):
    monkeypatch.setattr(zero_shot, "BLOCK_LOGITS", block)  # 12: two images at a time
    emb_ND, text_CD = units(7, 8, seed=0), units(5, 8, seed=1)
    found = guess(emb_ND, text_CD, 20.0)
    for n, emb_D in enumerate(emb_ND):
        weights = [math.exp(20 * sum(map(float, emb_D * text_D))) for text_D in text_CD]
        shares = sorted((w / sum(weights) for w in weights), reverse=True)
        assert found.first_N[n] == weights.index(max(weights))
        assert found.confidence_N[n] == pytest.approx(shares[0], rel=1e-4)
        assert found.margin_N[n] == pytest.approx(shares[0] - shares[1], rel=1e-3, abs=1e-6)


def test_half_precision_embeddings_are_enough():
    emb_ND, text_CD = units(50, 8, seed=0), units(5, 8, seed=1)
    half = guess(emb_ND.astype(np.float16), text_CD, 20.0)
    assert (half.first_N == guess(emb_ND, text_CD, 20.0).first_N).all()
    assert half.confidence_N.dtype == np.float32


def test_sure_applies_each_threshold():
    found = Guesses(
        np.array([0, 0, 1, 1]), np.array([0.9, 0.5, 0.6, 0.4]), np.array([0.8, 0, 0.5, 0])
    )
    assert sure(found).tolist() == [True] * 4
    assert sure(found, min_confidence=0.5).tolist() == [True, True, True, False]
    assert sure(found, min_margin=0.5).tolist() == [True, False, True, False]


def test_sure_keeps_the_most_confident_of_each_class():
    first = np.array([0, 1, 0, 0, 1, 2])
    confidence = np.array([0.5, 0.9, 0.8, 0.7, 0.95, 0.1])
    found = Guesses(first, confidence, confidence)
    assert sure(found, max_images=1).tolist() == [False, False, True, False, True, True]
    assert sure(found, max_images=2).tolist() == [False, True, True, True, True, True]
    assert sure(found, min_confidence=0.6, max_images=3).tolist() == [False, *[True] * 4, False]


def test_relabelled_rows_are_told_apart():
    table = rows(["cars/all"] * 3).set_index(pd.Index([4, 7, 9]))
    found = Guesses(np.array([0, 2, 1]), np.ones(3), np.ones(3))
    new = relabelled(table, found, np.array([True, True, False]), LABELS)
    assert new.index.tolist() == [4, 7]
    assert new["label"].tolist() == ["cars/sedan", "toys/doll"]
    assert new["domain"].tolist() == ["cars", "toys"]
    assert set(new["label_source"]) == {"clip"}


def test_contradicted_spares_labels_that_could_not_be_guessed():
    table = rows(["cars/sedan", "cars/sedan", "cars/bus|cars/sedan", "cars/van", "cars/bus"])
    found = Guesses(np.array([0, 1, 0, 0, 0]), np.ones(5), np.ones(5))
    sure_N = np.array([True, True, True, True, False])
    assert contradicted(table, found, sure_N, LABELS).tolist() == [False, True, False, False, False]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (
            {"classes": {"sedan": ["a"], "cars/bus": ["b"]}},
            "'sedan' is not of the form domain/class",
        ),
        ({"classes": {"a/b|c/d": ["a"], "cars/bus": ["b"]}}, "is not of the form domain/class"),
        ({"mode": "check", "max_images": 3}, "max_images: is for mode label"),
        ({"clip": {"model": "open_clip:x:y", "templates": ["a photo"]}}, "needs exactly one {}"),
        ({"clip": {"model": "timm:x:y"}}, "should match pattern"),
    ],
)
def test_configs_that_make_no_sense_are_refused(change, fault):
    config = {"clip": {"model": "open_clip:x:y"}, "domains": ["cars"], "classes": CLASSES}
    with pytest.raises(ValueError, match=fault):
        PseudoLabelConfig.model_validate(config | change)
