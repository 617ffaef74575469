"""What torch.compile and channels_last bring a tower's training step, in one run.

python tests/bench/compiling.py [--towers vit_tiny_patch16_224 resnet50] [--batch 16] [--steps 10]
TIMM_FUSED_ATTN=0 python tests/bench/compiling.py --towers vit_tiny_patch16_224 --size-px 80 --bf16

A step is forward and backward, fp32 or (--bf16) under autocast, on a GPU where there is one. Steps
of the variants alternate, so that all meet the same machine; the first of each, where it compiles,
is left out and shown by itself.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time

import timm
import torch
from torch import Tensor, nn

from guie.config import RunConfig, config_from
from guie.training.stage import set_up_tower

VARIANTS = {
    "plain": {},
    "compile": {"compile": True},
    "channels_last": {"channels_last": True},
    "both": {"compile": True, "channels_last": True},
}


def config(**settings: bool) -> RunConfig:
    backbone = {"library": "timm", "name": "resnet50"}
    model = {"backbone": backbone, "image": {"size_px": 224}}
    train = {"epochs": 1.0, "lr": {"backbone": 1e-3, "classes": 1.0}}
    values = {"name": "bench", "data": {"manifest": "none.csv"}, "model": model, "train": train}
    return config_from(values | settings, RunConfig)


def step(tower: nn.Module, images_BCHW: Tensor, bf16: bool) -> float:
    """Seconds of a forward and backward pass."""
    began = time.perf_counter()
    with torch.autocast(images_BCHW.device.type, torch.bfloat16, enabled=bf16):
        loss = tower(images_BCHW).float().square().mean()
    loss.backward()
    tower.zero_grad()
    if images_BCHW.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--towers", nargs="+", default=["vit_tiny_patch16_224", "resnet50"])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--size-px", type=int, default=224)
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=VARIANTS)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    images_BCHW = torch.randn(args.batch, 3, args.size_px, args.size_px, device=device)
    print(f"batch {args.batch}, {device}, {torch.get_num_threads()} threads, {args.steps} steps")
    for name in args.towers:
        size = {"img_size": args.size_px} if "vit" in name else {}
        plain = timm.create_model(name, num_classes=0, **size).to(device).train()
        towers = {variant: copy.deepcopy(plain) for variant in args.variants}
        for variant in args.variants:
            if settings := VARIANTS[variant]:
                set_up_tower(towers[variant], config(**settings))
        seconds = {variant: [] for variant in towers}
        for _ in range(args.steps + 1):
            for variant, tower in towers.items():
                seconds[variant].append(step(tower, images_BCHW, args.bf16))
        print(f"{name:<28}{'s/step':>9}{'of first':>10}{'first s':>9}")
        middle = {variant: statistics.median(taken[1:]) for variant, taken in seconds.items()}
        for variant, taken in seconds.items():
            share = middle[variant] / middle[args.variants[0]]
            print(f"  {variant:<26}{middle[variant]:>9.3f}{share:>10.2f}{taken[0]:>9.1f}")


if __name__ == "__main__":
    main()
