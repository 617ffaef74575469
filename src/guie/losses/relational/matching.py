"""The features of several teachers themselves, each through a head of its own.

Sariyildiz et al., UNIC, ECCV 2024, and DUNE, CVPR 2025. Shapes: N images, D dimensions of the student,
T of a teacher, K teachers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from guie.config.relational import DimensionConfig, MatchingConfig, PhiSConfig
from guie.losses.relational.standardising import ByDimension, PhiS, Standard


class Matching(nn.Module):
    """A student's embeddings, by an expendable head, beside one teacher's, standardised."""

    def __init__(self, config: MatchingConfig, dim: int, teacher_dim: int):
        super().__init__()
        widths = [dim, *config.hidden, teacher_dim]
        layers: list[nn.Module] = []
        for wide, next_wide in zip(widths[:-1], widths[1:], strict=True):
            layers += [nn.Linear(wide, next_wide), nn.GELU()]
        self.head = nn.Sequential(*layers[:-1])
        self.standard = standard(config.standardise, teacher_dim)

    def forward(self, student_ND: Tensor, teacher_NT: Tensor) -> Tensor:
        """For each image, (N,), .5 (1 - cosine) + .5 smooth l1; 0 while the teacher is measured."""
        target_NT = teacher_NT.detach()
        with torch.autocast(student_ND.device.type, enabled=False):
            ours_NT = self.head(student_ND.float())
        if self.standard is not None:
            if self.training:
                self.standard.measure(target_NT)
            if not self.standard.settled:
                return ours_NT.sum(1) * 0.0  # processes that train together wait for a gradient
            target_NT = self.standard(target_NT)
        cos_N = functional.cosine_similarity(ours_NT, target_NT, dim=1)
        apart_N = functional.smooth_l1_loss(ours_NT, target_NT, reduction="none").mean(1)
        return 0.5 * (1 - cos_N) + 0.5 * apart_N


def standard(config: DimensionConfig | PhiSConfig | None, dim: int) -> Standard | None:
    """What makes teachers comparable, as configured."""
    if config is None:
        return None
    kind = ByDimension if isinstance(config, DimensionConfig) else PhiS
    return kind(dim, config.steps)


def dropped(apart_NK: Tensor, taught_NK: Tensor, drop: float) -> Tensor:
    """Weights of each image's teachers, (N, K), of sum 1, or 0 where it has none.

    The worst matched teacher of an image stays, each other one goes by chance (UNIC).

    Args:
        apart_NK: how far each image is from what each teacher makes of it.
        taught_NK: which teachers an image has.
        drop: the chance to go, in training.
    """
    far_NK = apart_NK.detach().masked_fill(~taught_NK, -torch.inf)
    worst_NK = functional.one_hot(far_NK.argmax(1), far_NK.shape[1]).bool()
    stays_NK = taught_NK & (worst_NK | (torch.rand_like(far_NK) >= drop))
    return stays_NK / stays_NK.sum(1, keepdim=True).clamp(min=1)


def mean_of(apart: Sequence[Tensor], taught: Sequence[Tensor], drop: float) -> Tensor:
    """Mean over the images that have a teacher, of what each is apart from its teachers.

    Args:
        apart: of each teacher, for the images (N_k,) that it has.
        taught: of each teacher which of all images these are, (N,).
    """
    taught_NK = torch.stack(list(taught), 1)
    apart_NK = torch.zeros(taught_NK.shape, dtype=apart[0].dtype, device=taught_NK.device)
    columns = []
    for number, own_N in enumerate(taught):
        columns.append(apart_NK[:, number].masked_scatter(own_N, apart[number]))
    apart_NK = torch.stack(columns, 1)
    weight_NK = dropped(apart_NK, taught_NK, drop)
    return (weight_NK * apart_NK).sum() / taught_NK.any(1).sum().clamp(min=1)
