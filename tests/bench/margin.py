"""Our margin softmax against pytorch-metric-learning's ArcFaceLoss: time and memory of a step.

python tests/bench/margin.py [--classes 316446] [--dim 64] [--batch 256] [--steps 5] [--threads 0]

A step is forward and backward on the CPU, in fp32, to gradients of embeddings and class weights.
Steps of the two alternate, so that both meet the same machine; their losses are compared. Memory is
a process's peak over what it held before its first step, in a process each.
"""

from __future__ import annotations

import argparse
import math
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from pytorch_metric_learning.losses import ArcFaceLoss
from torch import Tensor, nn
from torch.nn import functional

from guie.losses import ArcFace
from guie.losses.margin_softmax import MarginSoftmax

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


def step(loss: nn.Module, emb_BD: Tensor, label_B: Tensor) -> tuple[float, float]:
    """Seconds of a forward and backward pass, and the loss."""
    loss.zero_grad()
    began = time.perf_counter()
    value = loss(emb_BD.detach().requires_grad_(), label_B)
    value = value[0] if isinstance(value, tuple) else value
    value.backward()
    return time.perf_counter() - began, value.item()


def draw(args: argparse.Namespace) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    emb_BD = functional.normalize(torch.randn(args.batch, args.dim), dim=-1)
    return emb_BD, torch.randint(args.classes, (args.batch,))


def extra_peak_mb(name: str, args: argparse.Namespace) -> float:
    """Two steps in a process of their own."""
    sizes = [f"--{key}={getattr(args, key)}" for key in ("classes", "dim", "batch", "threads")]
    command = [sys.executable, Path(__file__), *sizes, "--peak-of", name]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def print_extra_peak_mb(args: argparse.Namespace) -> None:
    loss, (emb_BD, label_B) = build(args.peak_of, args.classes, args.dim), draw(args)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew from what is held now
    before_mb = peak_mb()
    for _ in range(2):
        step(loss, emb_BD, label_B)
    print(peak_mb() - before_mb)


def peak_mb() -> float:
    """Linux's account of this process; rusage would count the parent's memory too."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (peak,) = (line.split()[1] for line in lines if line.startswith("VmHWM"))
    return int(peak) * 1024 / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", type=int, default=316_446)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0, help="0: as torch chooses")
    parser.add_argument("--peak-of", choices=["ours", PEER], help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads or torch.get_num_threads())
    if args.peak_of:
        return print_extra_peak_mb(args)

    batch = draw(args)
    losses = {name: build(name, args.classes, args.dim) for name in (PEER, "ours")}
    seconds, values = {name: [] for name in losses}, {}
    for number in range(args.steps + 1):
        for name, loss in losses.items():
            taken, values[name] = step(loss, *batch)
            seconds[name] += [taken] if number else []  # the first warms up
    if not math.isclose(values[PEER], values["ours"], rel_tol=1e-4):
        sys.exit(f"the two do not compute the same loss: {values}")

    print(f"{args.classes} classes, {args.dim} dimensions, batch {args.batch}", end=", ")
    print(f"{torch.get_num_threads()} threads, {args.steps} steps; loss {values['ours']:.3f}")
    print(f"{'':<26}{'s/step':>9}{'of peer':>9}{'extra MB':>11}{'of peer':>9}")
    time_s = {name: statistics.median(seconds[name]) for name in losses}
    extra_mb = {name: extra_peak_mb(name, args) for name in losses}
    for name in losses:
        shares = time_s[name] / time_s[PEER], extra_mb[name] / extra_mb[PEER]
        print(f"{name:<26}{time_s[name]:>9.2f}{shares[0]:>9.2f}", end="")
        print(f"{extra_mb[name]:>11.0f}{shares[1]:>9.2f}")


if __name__ == "__main__":
    main()
