"""The budget against sums by hand."""

import pytest

from scorer.budget import describe, project

VIT_H = 2 * 167e9  # operations of an image, a multiply-add as two
VIT_H_BYTES = 4 * (32 * 12 * 1280**2)  # of its blocks, in fp32


def budget(models: int, views: int, weight_bytes: int = VIT_H_BYTES) -> dict:
    return project(models * views * VIT_H, models * weight_bytes, 10**9, 0.005)


@pytest.mark.parametrize(
    ("models", "views", "fits"), [(1, 1, "yes"), (2, 1, "yes"), (2, 2, "perhaps"), (2, 3, "no")]
)
def test_vit_h_side_by_side_with_views(models, views, fits):
    """One takes 2.0 h at the card's full rate; two 4.1 h, at half of it 8.2 h, and .3 h of decoding.

    Two of them on the image and its mirror image take 8.2 h if nothing is lost; on three views, 12 h.
    """
    found = budget(models, views)
    assert found["fits"] == fits
    assert found["hours"]["least"] - found["hours"]["decode"] == pytest.approx(
        models * views * 334.7e9 / 9.3e12 * 205_000 / 3600, rel=0.01
    )


def test_what_the_card_does_not_hold_does_not_fit():
    found = budget(1, 1, weight_bytes=15 * 10**9)
    assert found["fits"] == "no" and "17.0 GB of 16 GB" in describe(found)
