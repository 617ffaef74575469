"""Losses on embeddings. Each computes in fp32, whatever the model's precision.

Every loss takes unit-length embeddings (B, D) and class ids (B,), and returns (loss, logs).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from guie.losses.margin_softmax import MarginSoftmax


def ArcFace(
    classes: int, dim: int, *, margin_rad: float = 0.3, scale: float = 30.0
) -> MarginSoftmax:
    """Return ArcFace (Deng et al., CVPR 2019, equation 3) with its class weights (C, D).

    Args:
        margin_rad: added to the angle to the own class.
        scale: factor on the cosines.
    """
    from guie.losses import rules
    from guie.losses.margin_softmax import MarginSoftmax

    return MarginSoftmax(classes, dim, rules.ArcFace(margin_rad), scale=scale)


def CurricularFace(
    classes: int, dim: int, *, margin_rad: float = 0.3, scale: float = 32.0
) -> MarginSoftmax:
    """Return CurricularFace (Huang et al., CVPR 2020, equation 10) with its class weights (C, D).

    Arguments as of `ArcFace`; the defaults are PUMA's.
    """
    from guie.losses import rules
    from guie.losses.margin_softmax import MarginSoftmax

    return MarginSoftmax(classes, dim, rules.CurricularFace(margin_rad), scale=scale)
