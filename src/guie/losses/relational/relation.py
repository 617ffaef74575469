"""What every criterion of a student beside a teacher is to training."""

from __future__ import annotations

from torch import Tensor, nn


class Relation(nn.Module):
    """Takes embeddings of the same images by student (N, D) and teacher (N, T), float32, of unit length.

    Returns a number; 0 where there are too few images for a relation. No gradient reaches the
    teacher's. A relation knows one teacher: what it remembers is of that one.
    """

    def forward(self, student_ND: Tensor, teacher_NT: Tensor) -> Tensor:
        """How far the student is from the teacher."""
        raise NotImplementedError


def nothing(student_ND: Tensor) -> Tensor:
    """0, of which the student's gradient is 0."""
    return student_ND.sum() * 0.0
