"""Cosines of images as the teacher has them.

Ypsilantis et al., UDON: Universal Dynamic Online Distillation for Generic Image Representations,
NeurIPS 2024. Shapes: N images, D dimensions of the student, T of the teacher.
"""

from __future__ import annotations

from torch import Tensor

from guie.losses.relational.relation import Relation


class Similarity(Relation):
    """Squared differences of cosines, summed over a row of the matrix and meaned over rows."""

    def forward(self, student_ND: Tensor, teacher_NT: Tensor) -> Tensor:
        """The code sums over columns; the paper's mean over all is this over N."""
        apart_NN = student_ND @ student_ND.T - (teacher_NT @ teacher_NT.T).detach()
        return apart_NN.square().sum(1).sum() / max(1, len(student_ND))
