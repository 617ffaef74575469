"""What torch.compile and channels_last bring a tower's training step, in one run.

python tests/bench/compiling.py [--towers vit_tiny_patch16_224 resnet50] [--batch 16] [--steps 10]
TIMM_FUSED_ATTN=0 python tests/bench/compiling.py --towers vit_tiny_patch16_224 --size-px 80 --bf16

A step is forward and backward, fp32 or (--bf16) under autocast, on a GPU where there is one. Steps
of the variants alternate, so that all meet the same machine; the first of each, where it compiles,
is left out and shown by itself.
"""

from __future__ import annotations

import copy
from functools import partial

import numpy as np
import timm
import torch
from common import arguments, in_turn, ratio, show, timm_model
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
    model = timm_model("resnet50", 224)
    train = {"epochs": 1.0, "lr": {"backbone": 1e-3, "classes": 1.0}}
    values = {"name": "bench", "data": {"manifest": "none.csv"}, "model": model, "train": train}
    return config_from(values | settings, RunConfig)


def step(tower: nn.Module, images_BCHW: Tensor, bf16: bool) -> None:
    """A forward and backward pass."""
    with torch.autocast(images_BCHW.device.type, torch.bfloat16, enabled=bf16):
        loss = tower(images_BCHW).float().square().mean()
    loss.backward()
    tower.zero_grad()


def main() -> None:
    args = arguments(
        __doc__,
        towers=["vit_tiny_patch16_224", "resnet50"],
        batch=16,
        steps=10,
        bf16=False,
        size_px=224,
        variants=list(VARIANTS),
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    images_BCHW = torch.randn(args.batch, 3, args.size_px, args.size_px, device=device)
    print(f"batch {args.batch}, {device}, {torch.get_num_threads()} threads, {args.steps} steps")
    for name in args.towers:
        size = {"img_size": args.size_px} if "vit" in name else {}
        plain = timm.create_model(name, num_classes=0, **size).to(device).train()
        ways = {}
        for variant in args.variants:
            tower = copy.deepcopy(plain)
            if settings := VARIANTS[variant]:
                set_up_tower(tower, config(**settings))
            ways[variant] = partial(step, tower, images_BCHW, args.bf16)
        taken = in_turn(ways, args.steps + 1, warm_up=False)
        steady = {variant: seconds[1:] for variant, seconds in taken.items()}
        rows = (
            (variant, np.median(steady[variant]), ratio(steady, variant, args.variants[0]), first)
            for variant, (first, *_) in taken.items()
        )
        show([name, "s/step", "of first", "first s"], rows)


if __name__ == "__main__":
    main()
