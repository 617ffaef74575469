"""Our margin softmax against pytorch-metric-learning's ArcFaceLoss: time and memory of a step.

python tests/bench/margin.py [--classes 316446] [--dim 64] [--batch 256] [--steps 5] [--threads 0]

A step is forward and backward on the CPU, in fp32, to gradients of embeddings and class weights; their
losses are compared. --threads 0: as torch chooses. Memory is a process's peak over what it held before
its first step, in a process each.
"""

from __future__ import annotations

import argparse
import math
import sys
from functools import partial

import numpy as np
import torch
from common import apart, arguments, forget_peak, in_turn, peak_gb, ratio, show
from pytorch_metric_learning.losses import ArcFaceLoss
from torch import Tensor, nn
from torch.nn import functional

from guie.losses.margin_softmax import MarginSoftmax
from guie.losses.rules import ArcFace

SCALE, MARGIN_RAD = 30.0, 0.3
PEER = "pytorch-metric-learning"


def build(name: str, classes: int, dim: int) -> nn.Module:
    torch.manual_seed(0)
    weight_CD = torch.randn(classes, dim)
    if name == "ours":
        loss = MarginSoftmax(classes, dim, ArcFace(MARGIN_RAD), scale=SCALE)
        loss.weight_CD.data = weight_CD
    else:
        loss = ArcFaceLoss(classes, dim, margin=math.degrees(MARGIN_RAD), scale=SCALE)
        loss.W.data = weight_CD.T.contiguous()
    return loss


def step(loss: nn.Module, emb_BD: Tensor, label_B: Tensor) -> float:
    """The loss of a forward and backward pass."""
    loss.zero_grad()
    value = loss(emb_BD.detach().requires_grad_(), label_B)
    value = value[0] if isinstance(value, tuple) else value
    value.backward()
    return value.item()


def draw(args: argparse.Namespace) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    emb_BD = functional.normalize(torch.randn(args.batch, args.dim), dim=-1)
    return emb_BD, torch.randint(args.classes, (args.batch,))


def extra_peak_mb(name: str, args: argparse.Namespace) -> float:
    """Of two steps; called in a process of their own."""
    torch.set_num_threads(args.threads or torch.get_num_threads())
    loss, batch = build(name, args.classes, args.dim), draw(args)
    forget_peak()
    before_gb = peak_gb()
    for _ in range(2):
        step(loss, *batch)
    return 1e3 * (peak_gb() - before_gb)


def main() -> None:
    args = arguments(__doc__, classes=316_446, dim=64, batch=256, steps=5, threads=0)
    torch.set_num_threads(args.threads or torch.get_num_threads())
    batch = draw(args)
    losses = {name: build(name, args.classes, args.dim) for name in (PEER, "ours")}
    values = {name: step(loss, *batch) for name, loss in losses.items()}
    if not math.isclose(values[PEER], values["ours"], rel_tol=1e-4):
        sys.exit(f"the two do not compute the same loss: {values}")
    seconds = in_turn({n: partial(step, loss, *batch) for n, loss in losses.items()}, args.steps)
    extra_mb = {name: apart(extra_peak_mb, name, args) for name in losses}
    rows = (
        (
            n,
            np.median(seconds[n]),
            ratio(seconds, n, PEER),
            extra_mb[n],
            extra_mb[n] / extra_mb[PEER],
        )
        for n in losses
    )
    title = (
        f"{args.classes} classes, {args.dim} dimensions, batch {args.batch},"
        f" {torch.get_num_threads()} threads, {args.steps} steps; loss {values['ours']:.3f}"
    )
    show(["", "s/step", "of peer", "extra MB", "of peer"], rows, title)


if __name__ == "__main__":
    main()
