"""Match standardised features of several teachers, each through a separate head (UNIC, DUNE, PHI-S)."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from guie.base.errors import UserError
from guie.config.distillation import DimensionConfig, MatchingConfig, PhiSConfig
from guie.losses.base import HostCounters, on_device_of, rows_of

LEAST = 1e-12  # lower bound of a variance


class Standardiser(HostCounters):
    """Measure features for some steps, then standardise them by the measured statistics.

    dimension: divide each dimension by its standard deviation (UNIC uses running ones).
    phi_s: rotate by H U', so that all dimensions have equal variance, and divide by one number. U are the
    eigenvectors of the covariance, H a Hadamard matrix / sqrt(T). Distances keep their proportions
    (Ranzinger et al., PHI-S: Distribution Balancing for Label-Free Multi-Teacher Distillation, 2024).

    Counters: `images` and `seen`, the images and batches that were measured.

    Raises UserError if `hadamard` has no matrix of this size.
    """

    def __init__(self, dim: int, config: DimensionConfig | PhiSConfig):
        super().__init__("images", "seen")
        self.steps, self.rotates = config.steps, isinstance(config, PhiSConfig)
        if self.rotates:
            hadamard(dim)  # raise before training
        self.images: Tensor
        self.sum_T: Tensor
        self.square_TT: Tensor
        self.map_TT: Tensor
        self.register_buffer("sum_T", torch.zeros(dim, dtype=torch.float64))
        self.register_buffer("square_TT", torch.zeros(dim, dim, dtype=torch.float64))
        self.register_buffer("map_TT", torch.eye(dim))

    @property
    def settled(self) -> bool:
        """Whether measuring is finished."""
        return self.counts["seen"] >= self.steps

    @torch.no_grad()
    def measure(self, feat_NT: Tensor) -> None:
        """Measure a batch with images of the teacher, unless measuring is finished."""
        if self.settled or not len(feat_NT):
            return
        feat_NT = feat_NT.double()
        self.sum_T += feat_NT.sum(0)
        self.square_TT += feat_NT.T @ feat_NT
        self.set_count("images", self.counts["images"] + len(feat_NT))
        self.set_count("seen", self.counts["seen"] + 1)
        if self.settled:
            mean_T = self.sum_T / self.images
            covariance_TT = self.square_TT / self.images - mean_T.outer(mean_T)
            self.map_TT.copy_(self._mapping(covariance_TT))

    def forward(self, feat_NT: Tensor) -> Tensor:
        """Standardise features (N, T)."""
        mean_T = (self.sum_T / self.images).to(feat_NT)
        return (feat_NT - mean_T) @ self.map_TT.T.to(feat_NT)

    def _mapping(self, covariance_TT: Tensor) -> Tensor:
        """Return the matrix (T, T) to multiply centred features by."""
        if not self.rotates:
            return covariance_TT.diagonal().clamp(min=LEAST).rsqrt().diag()
        value_T, vector_TT = torch.linalg.eigh(covariance_TT)
        turn_TT = torch.from_numpy(hadamard(len(value_T))).to(covariance_TT) / len(value_T) ** 0.5
        return turn_TT @ vector_TT.T * value_T.mean().clamp(min=LEAST).rsqrt()


def hadamard(size: int) -> np.ndarray:
    """Return a matrix (size, size) of +1 and -1 with orthogonal rows.

    By Sylvester's doubling of Paley's first construction (q + 1, q a prime of 4 n + 3). It covers 192,
    384, 768, 1024, 1152, 1280 and 1536. Raises UserError for other sizes that it lacks.
    """
    doublings, odd = 0, size
    while odd > 1 and not _is_paley(odd - 1) and odd % 2 == 0:
        doublings, odd = doublings + 1, odd // 2
    if odd == 1:
        matrix = np.ones((1, 1), int)
    elif _is_paley(odd - 1):
        matrix = _paley(odd - 1)
    else:
        raise UserError(
            f"task.criteria: standardise: phi_s has no Hadamard matrix of {size} rows, the teacher's"
            " dimension; use standardise: dimension"
        )
    for _ in range(doublings):
        matrix = np.kron([[1, 1], [1, -1]], matrix)
    return matrix


def _is_paley(prime: int) -> bool:
    return prime % 4 == 3 and all(prime % d for d in range(2, int(prime**0.5) + 1))


def _paley(prime: int) -> np.ndarray:
    squares = {number * number % prime for number in range(1, prime)}
    character = np.array([0] + [1 if n in squares else -1 for n in range(1, prime)])
    number = np.arange(prime)
    skew = np.zeros((prime + 1, prime + 1), int)
    skew[0, 1:], skew[1:, 0] = 1, -1
    skew[1:, 1:] = character[(number[:, None] - number) % prime]
    return skew + np.eye(prime + 1, dtype=int)


class Matching(nn.Module):
    """Match the student, through a training-only head, to one teacher's standardised features."""

    def __init__(self, config: MatchingConfig, dim: int, teacher_dim: int):
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise([dim, *config.hidden, teacher_dim]):
            layers += [nn.Linear(inputs, outputs), nn.GELU()]
        self.head = nn.Sequential(*layers[:-1])
        wanted = config.standardise
        self.standard = Standardiser(teacher_dim, wanted) if wanted else None

    def forward(self, student_ND: Tensor, teacher_NT: Tensor) -> Tensor:
        """Return .5 (1 - cosine) + .5 smooth l1 per image, (N,); 0 while measuring the teacher."""
        target_NT = teacher_NT.detach()
        with torch.autocast(student_ND.device.type, enabled=False):
            ours_NT = self.head(student_ND.float())
        if self.standard is not None:
            if self.training:
                self.standard.measure(target_NT)
            if not self.standard.settled:
                return ours_NT.sum(1) * 0.0  # DDP waits for a gradient
            target_NT = self.standard(target_NT)
        cos_N = functional.cosine_similarity(ours_NT, target_NT, dim=1)
        apart_N = functional.smooth_l1_loss(ours_NT, target_NT, reduction="none").mean(1)
        return 0.5 * (1 - cos_N) + 0.5 * apart_N


def dropped(apart_NK: Tensor, taught_NK: Tensor, drop: float) -> Tensor:
    """Return weights of each image's teachers, (N, K), with sum 1, or 0 without teachers.

    The worst matched teacher of an image is kept; each other one is dropped at random (UNIC).

    `apart_NK` is the loss of each image with each teacher, `taught_NK` which teachers it has.
    """
    far_NK = apart_NK.detach().masked_fill(~taught_NK, -torch.inf)
    teacher_K = torch.arange(far_NK.shape[1], device=far_NK.device)
    worst_NK = far_NK.argmax(1, keepdim=True) == teacher_K
    stays_NK = taught_NK & (worst_NK | (torch.rand_like(far_NK) >= drop))
    return stays_NK / stays_NK.sum(1, keepdim=True).clamp(min=1)


def mean_of(apart: Sequence[Tensor], taught: Sequence[Tensor], drop: float) -> Tensor:
    """Return the mean loss over the images that have a teacher, weighted over their teachers.

    Args:
        apart: per teacher, the losses (N_k,) of its images.
        taught: per teacher, a mask (N,) of its images; on the CPU if no device is to be waited for.
    """
    taught_NK = on_device_of(torch.stack(list(taught), 1), apart[0])
    columns = []
    for own_N, apart_n in zip(taught, apart, strict=True):
        own_rows = on_device_of(rows_of(own_N), apart_n)
        columns.append(apart_n.new_zeros(len(own_N)).index_put((own_rows,), apart_n))
    apart_NK = torch.stack(columns, 1)
    weight_NK = dropped(apart_NK, taught_NK, drop)
    return (weight_NK * apart_NK).sum() / taught_NK.any(1).sum().clamp(min=1)
