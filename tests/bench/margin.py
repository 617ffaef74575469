"""Our margin softmax against pytorch-metric-learning's ArcFaceLoss: time and memory of a step.

python tests/bench/margin.py [--classes 316446] [--batch 256] [--steps 5]

A step is forward and backward on the CPU, in fp32, of 64-D embeddings, to gradients of embeddings and class
weights. Both losses must be equal. Memory is a process's peak above what it held before its first step, in a
process each.
"""

import argparse
import math
import sys
from functools import partial

import numpy as np
import torch
from common import arguments, forget_peak, in_own_process, in_turn, peak_gb, ratio, show
from pytorch_metric_learning.losses import ArcFaceLoss
from torch import Tensor, nn
from torch.nn import functional

from guie.losses.margin_softmax import MarginSoftmax
from guie.losses.rules import ArcFace

DIM, SCALE, MARGIN_RAD = 64, 30.0, 0.3
OTHER = "pytorch-metric-learning"


def build(name: str, classes: int) -> nn.Module:
    torch.manual_seed(0)
    weight_CD = torch.randn(classes, DIM)
    if name == OTHER:
        loss = ArcFaceLoss(classes, DIM, margin=math.degrees(MARGIN_RAD), scale=SCALE)
        loss.W.data = weight_CD.T.contiguous()
    else:
        loss = MarginSoftmax(classes, DIM, ArcFace(MARGIN_RAD), scale=SCALE)
        loss.weight_CD.data = weight_CD
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
    emb_BD = functional.normalize(torch.randn(args.batch, DIM), dim=-1)
    return emb_BD, torch.randint(args.classes, (args.batch,))


def extra_peak_mb(name: str, args: argparse.Namespace) -> float:
    """The peak of two steps; called in a process of its own."""
    loss, batch = build(name, args.classes), draw(args)
    forget_peak()
    before_gb = peak_gb()
    for _ in range(2):
        step(loss, *batch)
    return 1e3 * (peak_gb() - before_gb)


def main() -> None:
    args = arguments(__doc__, classes=316_446, batch=256, steps=5)
    batch = draw(args)
    losses = {name: build(name, args.classes) for name in (OTHER, "ours")}
    values = {name: step(loss, *batch) for name, loss in losses.items()}
    if not math.isclose(values[OTHER], values["ours"], rel_tol=1e-4):
        sys.exit(f"the two do not compute the same loss: {values}")
    seconds = in_turn({n: partial(step, loss, *batch) for n, loss in losses.items()}, args.steps)
    extra_mb = {name: in_own_process(extra_peak_mb, name, args) for name in losses}
    rows = []
    for name in losses:
        times = np.median(seconds[name]), ratio(seconds, name, OTHER)
        rows.append([name, *times, extra_mb[name], extra_mb[name] / extra_mb[OTHER]])
    title = f"{args.classes} classes, batch {args.batch}, {torch.get_num_threads()} threads"
    show(["", "s/step", "of the other", "extra MB", "of the other"], rows, title)


if __name__ == "__main__":
    main()
