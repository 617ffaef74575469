"""Relational knowledge distillation: distances and angles in proportion to the teacher's.

Park et al., Relational Knowledge Distillation, CVPR 2019, 3.2; Yu et al., CVPR 2019. In Feng et al.,
Unifying Specialist Image Embedding into Universal Image Embedding, 3.1, it is the baseline of SND.
Shapes: N images, D dimensions of the student, T of the teacher, i j k images of a triple.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from guie.config.relational import RkdConfig
from guie.losses.relational.relation import Relation, nothing

SHORTEST = 1e-12  # a mean distance or an edge of less counts as this


class Rkd(Relation):
    """Mean over pairs, and over triples, of a penalty on how they differ.

    The means leave out pairs of an image and itself, and triples of fewer than three images.
    """

    def __init__(self, config: RkdConfig):
        super().__init__()
        self.config = config

    def forward(self, student_ND: Tensor, teacher_NT: Tensor) -> Tensor:
        """The weighted sum of the two terms."""
        total = nothing(student_ND)
        if self.config.distance and len(student_ND) > 1:
            term = self._apart(relative_distances(student_ND), relative_distances(teacher_NT))
            total = total + self.config.distance * term
        if self.config.angle and len(student_ND) > 2:
            term = self._apart(cosines_of_angles(student_ND), cosines_of_angles(teacher_NT))
            total = total + self.config.angle * term
        return total

    def _apart(self, ours: Tensor, theirs: Tensor) -> Tensor:
        if self.config.penalty == "l1":
            return functional.l1_loss(ours, theirs.detach())
        return functional.huber_loss(ours, theirs.detach())


def relative_distances(emb_ND: Tensor) -> Tensor:
    """Distances of all ordered pairs of two images, (N (N - 1),), in units of their mean (eq. 1)."""
    distance_NN = torch.cdist(emb_ND, emb_ND, compute_mode="donot_use_mm_for_euclid_dist")
    pairs = distance_NN[~torch.eye(len(emb_ND), dtype=torch.bool, device=emb_ND.device)]
    return pairs / pairs.mean().clamp(min=SHORTEST)


def cosines_of_angles(emb_ND: Tensor) -> Tensor:
    """Cosine of the angle at j of all ordered triples of three images, flat (Park et al., eq. 6)."""
    edge_jiD = functional.normalize(emb_ND[None] - emb_ND[:, None], dim=-1, eps=SHORTEST)
    cos_jik = edge_jiD @ edge_jiD.mT
    same = torch.eye(len(emb_ND), dtype=torch.bool, device=emb_ND.device)
    return cos_jik[~(same[:, :, None] | same[:, None, :] | same[None])]
