"""The calibration error that `zero_shot.py` prints."""

from __future__ import annotations

import numpy as np
import pytest
from zero_shot import calibration_error


def test_calibration_error_by_hand():
    confidence = np.array([0.1, 0.15, 0.95, 1.0])
    right = np.array([False, True, True, False])
    # two bins of ten hold (0.1, 0.15) and (0.95, 1.0): gaps 0.25 and 0.475, half of the images each
    gap = (abs(0.5 - 0.125) + abs(0.5 - 0.975)) / 2
    assert calibration_error(confidence, right, bins=10) == pytest.approx(gap)
    assert calibration_error(right.astype(float), right) == 0.0
