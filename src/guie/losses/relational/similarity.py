"""Cosines of images, and logits of classes, as the teacher has them.

Ypsilantis et al., UDON: Universal Dynamic Online Distillation for Generic Image Representations,
NeurIPS 2024. Shapes: N images, D dimensions of the student, T of the teacher, C classes.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from guie.losses.relational.relation import Relation


class Similarity(Relation):
    """Squared differences of cosines, summed over a row of the matrix and meaned over rows."""

    def forward(self, student_ND: Tensor, teacher_NT: Tensor) -> Tensor:
        """The code sums over columns; the paper's mean over all is this over N."""
        apart_NN = student_ND @ student_ND.T - (teacher_NT @ teacher_NT.T).detach()
        return apart_NN.square().sum(1).sum() / max(1, len(student_ND))


def kl_of_logits(student_NC: Tensor, teacher_NC: Tensor, temperature: float) -> Tensor:
    """Mean over images of KL(teacher || student) of the softmax of logits / temperature."""
    log_q_NC = (student_NC / temperature).log_softmax(1)
    log_p_NC = (teacher_NC.detach() / temperature).log_softmax(1)
    return functional.kl_div(log_q_NC, log_p_NC, reduction="batchmean", log_target=True)
