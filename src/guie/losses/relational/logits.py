"""Logits of classes as the teacher has them.

Hinton et al., Distilling the Knowledge in a Neural Network, 2015; on cosines in Ypsilantis et al., UDON,
NeurIPS 2024. Shapes: N images, T dimensions of the teacher, C classes, k centres a class.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from guie.losses.relational.relation import Relation, nothing
from guie.losses.softmax import cosines


class Logits(Relation):
    """How the student's cosines to the classes that both know differ from the teacher's.

    Args:
        class_ids: of these classes, to the student.
        weight_CkT: of the teacher, of the same classes.
        temperature: of the softmax of cosines.
    """

    def __init__(self, class_ids: Tensor, weight_CkT: Tensor, temperature: float):
        super().__init__()
        self.temperature = temperature
        self.class_ids: Tensor
        self.weight_CkT: Tensor
        self.register_buffer("class_ids", class_ids, persistent=False)
        self.register_buffer("weight_CkT", weight_CkT, persistent=False)

    def forward(self, student_NC: Tensor, teacher_NT: Tensor) -> Tensor:
        """Takes the student's cosines to `class_ids` in place of its embeddings."""
        theirs_NC = cosines(teacher_NT, self.weight_CkT.to(teacher_NT))
        return kl_of_logits(student_NC, theirs_NC, self.temperature)


def kl_of_logits(student_NC: Tensor, teacher_NC: Tensor, temperature: float) -> Tensor:
    """Mean over images of KL(teacher || student) of the softmax of logits / temperature."""
    if not len(student_NC):
        return nothing(student_NC)
    log_q_NC = (student_NC / temperature).log_softmax(1)
    log_p_NC = (teacher_NC.detach() / temperature).log_softmax(1)
    return functional.kl_div(log_q_NC, log_p_NC, reduction="batchmean", log_target=True)
