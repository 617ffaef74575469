"""Calibration of guesses: the temperature, and a threshold that keeps its precision."""

from __future__ import annotations

import numpy as np
import pytest
from label_inputs import units

from guie.curation.pseudo_labels import (
    calibration_error,
    fit_scale,
    guess,
    least_confidence,
    precision_curve,
    wilson_bound,
)


def drawn_labels(cos_NC: np.ndarray, scale: float, seed: int) -> np.ndarray:
    """Labels drawn from the softmax itself: at `scale` the model is calibrated by construction."""
    gumbel = np.random.default_rng(seed).gumbel(size=cos_NC.shape)
    return (scale * cos_NC + gumbel).argmax(axis=1)


def test_fit_scale_finds_the_temperature_that_drew_the_labels():
    cos_NC = units(4000, 16, seed=0) @ units(6, 16, seed=1).T
    truth_N = drawn_labels(cos_NC, scale=8.0, seed=2)
    assert fit_scale(cos_NC, truth_N, start=100.0) == pytest.approx(8.0, rel=0.06)


def test_calibration_lowers_its_error():
    emb_ND, text_CD = units(4000, 16, seed=0), units(6, 16, seed=1)
    truth_N = drawn_labels(emb_ND @ text_CD.T, scale=8.0, seed=2)
    errors = {}
    for scale in (8.0, 100.0):
        found = guess(emb_ND, text_CD, scale)
        errors[scale] = calibration_error(found.confidence_N, found.first_N == truth_N)
    assert errors[8.0] < 0.03 and errors[100.0] > 0.3


def test_calibration_error_by_hand():
    confidence = np.array([0.1, 0.15, 0.95, 1.0])
    right = np.array([False, True, True, False])
    # two bins of ten hold (0.1, 0.15) and (0.95, 1.0): gaps 0.25 and 0.475, half of the images each
    gap = (abs(0.5 - 0.125) + abs(0.5 - 0.975)) / 2
    assert calibration_error(confidence, right, bins=10) == pytest.approx(gap)
    assert calibration_error(right.astype(float), right) == 0.0


def test_precision_curve_counts_ties_together():
    confidence = np.array([0.9, 0.5, 0.5, 0.2], np.float32)
    curve = precision_curve(confidence, np.array([True, True, False, False]))
    assert curve["coverage"].tolist() == [0.25, 0.75, 1.0]
    assert curve["precision"].to_numpy() == pytest.approx([1.0, 2 / 3, 0.5])
    assert (curve["at_least"] < curve["precision"]).all()


def test_threshold_keeps_the_precision_on_other_images():
    """Chosen on one sample it must hold on others: in 95 of 100, by the bound's own claim."""
    kept_it = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        confidence = rng.random((2, 500))
        right = rng.random((2, 500)) < confidence
        least = least_confidence(precision_curve(confidence[0], right[0]), 0.8)
        kept_it += (1 + least) / 2 >= 0.8  # the true precision of what reaches `least`
    assert kept_it >= 36


def test_threshold_needs_evidence():
    confidence = np.array([0.99, 0.1, 0.1, 0.1])
    curve = precision_curve(confidence, np.array([True, False, False, False]))
    assert least_confidence(curve, 0.9) is None, "one image that is right proves little"


def test_wilson_bound_of_a_textbook():
    # 10 of 10: z2 = 2.706, bound = 10 / (10 + z2)
    assert wilson_bound(np.array([1.0]), np.array([10]))[0] == pytest.approx(10 / 12.706, rel=1e-3)
