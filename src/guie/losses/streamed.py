"""Compute a margin softmax without storing a (B, C) matrix.

The loss of an image needs the logit of its own class and the log-sum-exp of all others. The forward
pass computes both in one pass over blocks of classes that fit the cache. The backward pass recomputes
each block and its gradients, including the normalisation of class weights. Computing a cached block
twice costs less than writing a (B, C) matrix once, as measured by tests/bench/margin.py.

Shapes: B images, D dimensions, C classes, k centres a class; in a block, R of the images and K of
the classes.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed
from torch.autograd.function import once_differentiable

from guie.losses.base import on_device_of

# Logits per block: 2 MB, about the size of a CPU's caches, and enough work to fill a GPU.
BLOCK_LOGITS = {"cpu": 2**19, "cuda": 2**25}
NORM_FLOOR = 1e-12  # as in torch.nn.functional.normalize


class Terms(NamedTuple):
    """The terms of the loss, in image order; `nearest_B` has no gradient."""

    own_B: Tensor  # logit of the own class, before any margin
    others_B: Tensor  # log-sum-exp of the other classes' logits; -inf if there are none
    nearest_B: Tensor  # greatest logit of another class


class Hardening(NamedTuple):
    """CurricularFace's weight on hard negatives: z > threshold becomes z (t + z / scale)."""

    threshold_B: Tensor  # a logit
    t_B: Tensor
    scale: float

    def of(self, rows: slice, logit_RK: Tensor) -> tuple[Tensor, Tensor]:
        """Return hardened logits of other classes and their slope, both (R, K)."""
        t_R1 = self.t_B[rows, None]
        hard_RK = logit_RK > self.threshold_B[rows, None]
        raised_RK = torch.addcmul(t_R1 * logit_RK, logit_RK, logit_RK, value=1 / self.scale)
        slope_RK = torch.add(t_R1, logit_RK, alpha=2 / self.scale)
        one = logit_RK.new_ones(())
        return torch.where(hard_RK, raised_RK, logit_RK), torch.where(hard_RK, slope_RK, one)


class Part(NamedTuple):
    """The classes whose weights this process has; together the processes have all of them."""

    first: int  # class id of its first row
    classes: int  # C, of all processes


class Block(NamedTuple):
    """A block of images and of classes in their softmax."""

    rows: slice  # of the images, sorted by label
    classes: slice
    own: slice  # of the images: those whose own class is in this block


def blocks(
    labels: Sequence[int], edges: Sequence[int], logits: int, classes: int
) -> Iterator[Block]:
    """Yield blocks of at most about `logits` logits.

    Args:
        labels: ascending.
        edges: an image of a class in [edges[i], edges[i + 1]) is compared with that range only.
        logits: R times K of a block.
        classes: the classes in [0, classes) are here; others are at other processes.
    """
    for low, high in pairwise(edges):
        rows = slice(bisect_left(labels, low), bisect_left(labels, high))
        if rows.start == rows.stop:
            continue
        low, high = max(low, 0), min(high, classes)
        width = max(1, logits // (rows.stop - rows.start))
        for first in range(low, high, width):
            some = slice(first, min(first + width, high))
            own = slice(bisect_left(labels, some.start), bisect_left(labels, some.stop))
            yield Block(rows, some, own)


def softmax_terms(
    query_BD: Tensor,
    weight_CD: Tensor,
    label_B: Tensor,
    *,
    centers: int = 1,
    edges: Sequence[int] | None = None,
    hardening: Hardening | None = None,
    block_logits: int | None = None,
    part: Part | None = None,
) -> Terms:
    """Return the own logit and the log-sum-exp of the others, differentiable in queries and weights.

    A class's logit is the largest inner product of the query with its k unit-length centres.

    With a part, every process passes the same images and its own classes, and gets the same terms. A
    gradient of the queries is that of its classes, times the number of processes: summed by
    `gather_rows` and averaged over processes, as gradients are, it is that of all classes.

    Args:
        query_BD: embeddings times the softmax's scale, float32 or float64, in order of their labels.
        weight_CD: (C * k, D) of any length, the centres of a class one after another; with a part, only
            its rows.
        label_B: ascending class ids, on the CPU if no device is to be waited for.
        centers: k.
        edges: bounds of class ranges with a softmax each; None: one softmax over all.
        hardening: of CurricularFace, for the other classes.
        block_logits: logits per block; None: by device.
        part: the classes of this process; None: it has all of them.
    """
    here = len(weight_CD) // centers
    first, classes = part or (0, here)
    labels = label_B.tolist()
    if labels and not 0 <= min(labels) <= max(labels) < classes:
        raise ValueError(f"labels {min(labels)} to {max(labels)} are not among {classes} classes")
    logits = block_logits or BLOCK_LOGITS.get(query_BD.device.type, BLOCK_LOGITS["cuda"])
    # From here on a class is numbered from the first one here
    places = [label - first for label in labels]
    bounds = [edge - first for edge in edges or (0, classes)]
    walk = list(blocks(places, bounds, logits // centers, here))
    place_B, split = on_device_of(label_B - first, query_BD), part is not None
    return Terms(*_Streamed.apply(query_BD, weight_CD, place_B, walk, centers, hardening, split))


class _Streamed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query_BD: Tensor,
        weight_CD: Tensor,
        label_B: Tensor,
        walk: list[Block],
        centers: int,
        hardening: Hardening | None,
        split: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        nearest_B = query_BD.new_full((len(query_BD),), -torch.inf)
        own_B, total_B = torch.zeros_like(nearest_B), torch.zeros_like(nearest_B)
        # Finite, so that a block with own classes only does not subtract infinities.
        peak_B = torch.full_like(nearest_B, torch.finfo(nearest_B.dtype).min)
        for block in walk:
            rows = block.rows
            unit_KD, _ = _unit(weight_CD, block, centers)
            logit_RK, _ = _logits(query_BD[rows], unit_KD, centers)
            own = _own(block, label_B)
            own_B[block.own] = logit_RK[own]
            # A plain number would be copied from the CPU, which waits for the GPU
            logit_RK[own] = logit_RK.new_full((), -torch.inf)
            highest_R = logit_RK.amax(1)
            nearest_B[rows] = torch.maximum(nearest_B[rows], highest_R)
            if hardening:
                logit_RK, _ = hardening.of(rows, logit_RK)
                highest_R = logit_RK.amax(1)
            peak_R = torch.maximum(peak_B[rows], highest_R)
            total_B[rows] *= (peak_B[rows] - peak_R).exp_()
            total_B[rows] += logit_RK.sub_(peak_R[:, None]).exp_().sum(1)
            peak_B[rows] = peak_R
        if split:
            own_peak_B, maximum = peak_B.clone(), distributed.ReduceOp.MAX
            distributed.all_reduce(peak_B, maximum)
            distributed.all_reduce(nearest_B, maximum)
            total_B *= (own_peak_B - peak_B).exp_()
            distributed.all_reduce(total_B)
            distributed.all_reduce(own_B)
        others_B = total_B.log_().add_(peak_B)
        ctx.walk, ctx.centers, ctx.hardening, ctx.split = walk, centers, hardening, split
        ctx.save_for_backward(query_BD, weight_CD, label_B, others_B)
        ctx.mark_non_differentiable(nearest_B)
        return own_B, others_B, nearest_B

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_own_B: Tensor, grad_others_B: Tensor, _: Tensor) -> tuple:
        query_BD, weight_CD, label_B, others_B = ctx.saved_tensors
        grad_query_BD = torch.zeros_like(query_BD) if ctx.needs_input_grad[0] else None
        grad_weight_CD = torch.zeros_like(weight_CD) if ctx.needs_input_grad[1] else None
        for block in ctx.walk:
            rows = block.rows
            unit_KD, norm_K1 = _unit(weight_CD, block, ctx.centers)
            logit_RK, center_RK = _logits(query_BD[rows], unit_KD, ctx.centers)
            if ctx.hardening:
                logit_RK, slope_RK = ctx.hardening.of(rows, logit_RK)
            grad_RK = logit_RK.sub_(others_B[rows, None]).exp_().mul_(grad_others_B[rows, None])
            if ctx.hardening:
                grad_RK.mul_(slope_RK)
            grad_RK[_own(block, label_B)] = grad_own_B[block.own]
            if center_RK is not None:
                grad_RK = _to_center(grad_RK, center_RK, ctx.centers)
            if grad_query_BD is not None:
                grad_query_BD[rows].addmm_(grad_RK, unit_KD)
            if grad_weight_CD is not None:
                grad_KD = grad_weight_CD[_weights_of(block, ctx.centers)]
                torch.mm(grad_RK.T, query_BD[rows], out=grad_KD)
                _through_norm(grad_KD, unit_KD, norm_K1)
        if ctx.split and grad_query_BD is not None:
            grad_query_BD.mul_(distributed.get_world_size())
        return grad_query_BD, grad_weight_CD, None, None, None, None, None


def _weights_of(block: Block, centers: int) -> slice:
    return slice(block.classes.start * centers, block.classes.stop * centers)


def _unit(weight_CD: Tensor, block: Block, centers: int) -> tuple[Tensor, Tensor]:
    """Return the block's centres at unit length, and their original lengths."""
    weight_KD = weight_CD[_weights_of(block, centers)]
    norm_K1 = torch.linalg.vector_norm(weight_KD, dim=1, keepdim=True).clamp_min_(NORM_FLOOR)
    return weight_KD / norm_K1, norm_K1


def _logits(query_RD: Tensor, unit_KD: Tensor, centers: int) -> tuple[Tensor, Tensor | None]:
    """Return logits (R, K) and, with several centres, the nearest centre of each class."""
    logit_RK = query_RD @ unit_KD.T
    if centers == 1:
        return logit_RK, None
    return torch.max(logit_RK.view(len(query_RD), -1, centers), dim=-1)


def _own(block: Block, label_B: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows and columns of the own classes in the block."""
    label_R = label_B[block.own]
    row_R = torch.arange(block.own.start, block.own.stop, device=label_B.device)
    return row_R - block.rows.start, label_R - block.classes.start


def _to_center(grad_RK: Tensor, center_RK: Tensor, centers: int) -> Tensor:
    """Route a class's gradient to its nearest centre: (R, K) -> (R, K * k)."""
    grad_RKk = grad_RK.new_zeros(*grad_RK.shape, centers)
    return grad_RKk.scatter_(2, center_RK[..., None], grad_RK[..., None]).flatten(1)


def _through_norm(grad_KD: Tensor, unit_KD: Tensor, norm_K1: Tensor) -> None:
    """Turn the gradient of unit rows into that of rows, in place: project off the row, divide by length."""
    along_K1 = (grad_KD * unit_KD).sum(1, keepdim=True)
    grad_KD.addcmul_(unit_KD, along_K1, value=-1).div_(norm_K1)
