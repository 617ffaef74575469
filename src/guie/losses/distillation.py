"""Relational distillation losses. Each computes in fp32, on the global batch.

Relational knowledge distillation (Park et al.), stochastic neighbour distillation (Feng et al.), cosine
similarity (UDON), logits. Shapes: B images, D dimensions of the student, T of the teacher, C classes.
"""

import math
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional

from guie.config.distillation import (
    MatchingConfig,
    Perplexity,
    RelationConfig,
    RkdConfig,
    SimilarityConfig,
    SndConfig,
)
from guie.losses.base import HostCounters, rows_of
from guie.losses.margin_softmax import cosines
from guie.losses.matching import Matching

SHORTEST = 1e-12  # lower bound of a mean distance or an edge
# Least bandwidth by perplexity, as a distance between unit vectors, and least deviation of cosines. Of more
# duplicates than the perplexity no bandwidth is enough: it would go to 0, and the loss to 1e11.
NARROWEST = 0.01
# Of the bandwidth search: finds log2 of the precision to 80 / 2 ** 30, below float32 resolution
RANGE, HALVINGS = 40, 30
MOST = 4.0  # squared distance between two unit vectors


def build_relation(config: RelationConfig, dim: int, teacher_dim: int) -> nn.Module:
    """Return the configured relation to one teacher, and its memory; not `Logits`.

    It takes unit-length float32 embeddings of the same images by student (N, D) and teacher (N, T). It
    returns a scalar, 0 if there are too few images; `Matching` one per image. The teacher gets no gradient.
    """
    if isinstance(config, RkdConfig):
        return Rkd(config)
    if isinstance(config, SndConfig):
        return Snd(config, (dim, teacher_dim))
    if isinstance(config, MatchingConfig):
        return Matching(config, dim, teacher_dim)
    assert isinstance(config, SimilarityConfig)
    return Similarity(config.balanced)


class Rkd(nn.Module):
    """Relational knowledge distillation: mean penalty on differences of pairs, and of triples.

    The means exclude pairs of an image with itself, and triples of fewer than three images.
    """

    def __init__(self, config: RkdConfig):
        super().__init__()
        self.config = config

    def forward(self, student_ND: Tensor, teacher_NT: Tensor) -> Tensor:
        """Return the weighted sum of the two terms."""
        config, total = self.config, student_ND.sum() * 0.0
        penalty = functional.l1_loss if config.penalty == "l1" else functional.huber_loss
        if config.distance and len(student_ND) > 1:
            theirs = relative_distances(teacher_NT).detach()
            total = total + config.distance * penalty(relative_distances(student_ND), theirs)
        if config.angle and len(student_ND) > 2:
            theirs = cosines_of_angles(teacher_NT).detach()
            total = total + config.angle * penalty(cosines_of_angles(student_ND), theirs)
        return total


def relative_distances(emb_ND: Tensor) -> Tensor:
    """Return the distances of all ordered pairs, (N (N - 1),), divided by their mean (eq. 1)."""
    distance_NN = torch.cdist(emb_ND, emb_ND, compute_mode="donot_use_mm_for_euclid_dist")
    pairs = of_pairs(distance_NN)
    return pairs / pairs.mean().clamp(min=SHORTEST)


def of_pairs(value_NN: Tensor) -> Tensor:
    """Return the entries off the diagonal, (N (N - 1),), by shape: a mask would wait for the device."""
    others = len(value_NN) - 1
    return value_NN.flatten()[1:].view(others, others + 2)[:, :-1].flatten()


def cosines_of_angles(emb_ND: Tensor) -> Tensor:
    """Return the cosine of the angle at j for all ordered triples, flat (Park et al., eq. 6)."""
    edge_jiD = functional.normalize(emb_ND[None] - emb_ND[:, None], dim=-1, eps=SHORTEST)
    cos_jik = edge_jiD @ edge_jiD.mT
    return cos_jik.flatten()[distinct_triples(len(emb_ND), emb_ND.device)]


@lru_cache(maxsize=4)
def distinct_triples(images: int, device: torch.device) -> Tensor:
    """Return the places of all triples of different images in a flat (N, N, N), ascending.

    They are looked for on the CPU, because a mask on a device would wait for it.
    """
    apart_NN = ~torch.eye(images, dtype=torch.bool)
    apart_jik = apart_NN[:, :, None] & apart_NN[:, None] & apart_NN
    return rows_of(apart_jik.flatten()).to(device, non_blocking=True)


class Similarity(nn.Module):
    """Squared differences of cosines, summed over each row of the matrix and averaged over rows.

    Balanced, it is divided by the variance of the teacher's cosines between different images. The idea of
    balancing teachers is that of C-RADIOv4's summary loss, which compares angles; this is ours.
    """

    def __init__(self, balanced: bool = False):
        super().__init__()
        self.balanced = balanced

    def forward(self, student_ND: Tensor, teacher_NT: Tensor) -> Tensor:
        """Return the loss: four times that of UDON's code, and N times that of its paper, a mean."""
        theirs_NN = (teacher_NT @ teacher_NT.T).detach()
        apart_NN = student_ND @ student_ND.T - theirs_NN
        loss = apart_NN.square().sum(1).sum() / max(1, len(student_ND))
        if not self.balanced or len(student_ND) < 2:
            return loss
        return loss / of_pairs(theirs_NN).var(correction=0).clamp(min=NARROWEST**2)


class Logits(nn.Module):
    """KL divergence of cosines to the classes that both know: by the student's ids, the teacher's weights."""

    def __init__(self, class_ids: Tensor, weight_CkT: Tensor, temperature: float):
        super().__init__()
        self.temperature = temperature
        self.class_ids: Tensor
        self.weight_CkT: Tensor
        self.register_buffer("class_ids", class_ids, persistent=False)
        self.register_buffer("weight_CkT", weight_CkT, persistent=False)

    def forward(self, student_NC: Tensor, teacher_NT: Tensor) -> Tensor:
        """Return the loss; takes the student's cosines to `class_ids` instead of its embeddings."""
        theirs_NC = cosines(teacher_NT, self.weight_CkT.to(teacher_NT))
        return kl_of_logits(student_NC, theirs_NC, self.temperature)


def kl_of_logits(student_NC: Tensor, teacher_NC: Tensor, temperature: float) -> Tensor:
    """Return the mean over images of KL(teacher || student) of softmax(logits / temperature)."""
    if not len(student_NC):
        return student_NC.sum() * 0.0
    log_q_NC = (student_NC / temperature).log_softmax(1)
    log_p_NC = (teacher_NC.detach() / temperature).log_softmax(1)
    return functional.kl_div(log_q_NC, log_p_NC, reduction="batchmean", log_target=True)


class Snd(nn.Module):
    """Stochastic neighbour distillation: mean over images of KL(P || Q) (eq. 2 to 4).

    P and Q are the neighbour probabilities of teacher and student. The paper's eq. 4 is a sum over
    images. The mean does not grow with the batch, so its weight against other terms keeps its meaning.

    With the teacher's bandwidth for both, a student with smaller distances than the teacher's has a loss.
    With a bandwidth of its own by perplexity (sigma' of eq. 3) it has none if all are equally smaller.
    Bandwidths are constants in the gradient; the paper does not say.
    """

    def __init__(self, config: SndConfig, dims: tuple[int, int]):
        super().__init__()
        self.config = config
        self.memory = Memory(config.queue, dims) if config.queue else None

    def forward(self, student_ND: Tensor, teacher_NT: Tensor) -> Tensor:
        """Return the loss; 0 without images or with fewer than two other images each."""
        past_QD, past_QT = self.memory.held() if self.memory else (student_ND[:0], teacher_NT[:0])
        ours_NM = squared_distances(student_ND, past_QD)
        theirs_NM = squared_distances(teacher_NT, past_QT)
        if self.memory and self.training:
            self.memory.add(student_ND, teacher_NT)
        if not len(ours_NM) or ours_NM.shape[1] < 3:
            return student_ND.sum() * 0.0
        theirs_N1 = precisions(theirs_NM, self.config.sigma)
        own = self.config.student_sigma
        ours_N1 = theirs_N1 if own is None else precisions(ours_NM.detach(), own)
        log_p_NM = log_neighbours(theirs_NM, theirs_N1)
        log_q_NM = log_neighbours(ours_NM, ours_N1)
        # An image is not its own neighbour: both are -inf there, and exp(-inf) (-inf - -inf) is NaN
        apart_NM = (log_p_NM - log_q_NM).masked_fill(torch.isinf(log_p_NM), 0.0)
        return (log_p_NM.exp() * apart_NM).sum(1).mean()


class Memory(HostCounters):
    """A queue of the newest embeddings of earlier steps, by student and teacher; empty at first.

    Counters: `filled`, the number of stored images; `place`, of the next image.
    """

    def __init__(self, length: int, dims: tuple[int, int]):
        super().__init__("filled", "place")
        self.student_QD: Tensor
        self.teacher_QT: Tensor
        for name, dim in zip(("student_QD", "teacher_QT"), dims, strict=True):
            self.register_buffer(name, torch.zeros(length, dim))

    def held(self) -> tuple[Tensor, Tensor]:
        """Return copies of its content, because the next `add` precedes the backward pass."""
        filled = self.counts["filled"]
        return self.student_QD[:filled].clone(), self.teacher_QT[:filled].clone()

    @torch.no_grad()
    def add(self, student_ND: Tensor, teacher_NT: Tensor) -> None:
        """Add images, replacing the oldest."""
        length, place = len(self.student_QD), self.counts["place"]
        student_ND, teacher_NT = student_ND[-length:], teacher_NT[-length:]
        slots = (place + torch.arange(len(student_ND), device=self.student_QD.device)) % length
        self.student_QD[slots] = student_ND.to(self.student_QD.dtype)
        self.teacher_QT[slots] = teacher_NT.to(self.teacher_QT.dtype)
        self.set_count("place", (place + len(student_ND)) % length)
        self.set_count("filled", min(self.counts["filled"] + len(student_ND), length))


def squared_distances(emb_ND: Tensor, past_QD: Tensor) -> Tensor:
    """Return squared distances to all images and the queue, (N, N + Q); inf to the image itself."""
    to_MD = torch.cat([emb_ND, past_QD.to(emb_ND)])
    # All have unit length. A square has a finite slope at 0, a root has not.
    squared_NM = (2 - 2 * emb_ND @ to_MD.T).clamp(min=0)
    itself = torch.eye(*squared_NM.shape, dtype=torch.bool, device=emb_ND.device)
    return squared_NM.masked_fill(itself, torch.inf)


def log_neighbours(squared_NM: Tensor, precision_N1: Tensor | float) -> Tensor:
    """Return the log probability of each other image being the neighbour (eq. 2)."""
    return (-precision_N1 * squared_NM).log_softmax(1)


def precisions(squared_NM: Tensor, sigma: float | Perplexity) -> Tensor | float:
    """Return 1 / (2 sigma^2): one number, or one per image, (N, 1)."""
    if isinstance(sigma, Perplexity):
        return precisions_of(squared_NM, sigma.perplexity)
    return 1 / (2 * sigma**2)


@torch.no_grad()
def precisions_of(squared_NM: Tensor, perplexity: float) -> Tensor:
    """Return the precision per image, (N, 1), with this perplexity, by bisection for all at once.

    Entropy falls as precision grows. If there are no more neighbours than `perplexity`, the precision
    goes to 0, and all neighbours are equally likely. The bandwidth is at least `NARROWEST`.
    """
    wanted = math.log(perplexity)  # entropy in nats
    # Relative to the nearest, whose probability then never underflows
    beyond_NM = squared_NM - squared_NM.amin(1, keepdim=True)
    low_N1 = torch.full_like(squared_NM[:, :1], -RANGE)
    high_N1 = -low_N1
    for _ in range(HALVINGS):
        middle_N1 = (low_N1 + high_N1) / 2  # of log2 of the precision
        too_many_N1 = entropy(beyond_NM, middle_N1.exp2()) > wanted
        low_N1 = torch.where(too_many_N1, middle_N1, low_N1)
        high_N1 = torch.where(too_many_N1, high_N1, middle_N1)
    return ((low_N1 + high_N1) / 2).exp2().clamp(max=1 / (2 * NARROWEST**2))


def entropy(squared_NM: Tensor, precision_N1: Tensor) -> Tensor:
    """Return the entropy of each image's neighbours, (N, 1), in nats: log Z + precision * mean distance^2."""
    chance_NM = (-precision_N1 * squared_NM).exp()
    total_N1 = chance_NM.sum(1, True)
    # For the image itself the probability is 0 and the distance inf
    within_NM = chance_NM.mul_(squared_NM.clamp(max=MOST))
    return total_N1.log() + precision_N1 * within_NM.sum(1, True) / total_N1
