"""A training step in bf16 on a CPU without instructions for it: PyTorch's products, ours, and float32.

TIMM_FUSED_ATTN=0 python tests/bench/slow_bf16.py [--size-px 80] [--batch 32]

A ViT-Ti/16. Ours are float32 products rounded to bf16, see `guie.base.slow_bf16`. On a CPU with the
instructions PyTorch's products are the fastest, and training uses those.
"""

from functools import partial

import timm
import torch
from common import arguments, in_turn, ratio, show
from torch import Tensor, nn

from guie.base.slow_bf16 import Float32Products


def step(tower: nn.Module, images_BCHW: Tensor, bf16: bool) -> None:
    """A forward and backward pass."""
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        loss = tower(images_BCHW).float().square().mean()
    loss.backward()
    tower.zero_grad()


def main() -> None:
    args = arguments(__doc__, size_px=80, batch=32, rounds=2)
    torch.set_num_threads(1)
    tower = timm.create_model("vit_tiny_patch16_224", num_classes=0, img_size=args.size_px).train()
    images_BCHW = torch.randn(args.batch, 3, args.size_px, args.size_px)

    def rounded() -> None:
        with Float32Products():
            step(tower, images_BCHW, bf16=True)

    ways = {
        "float32": partial(step, tower, images_BCHW, bf16=False),
        "bf16, PyTorch": partial(step, tower, images_BCHW, bf16=True),
        "bf16, ours": rounded,
    }
    seconds = in_turn(ways, args.rounds)
    rows = [
        [name, min(seconds[name]), max(seconds[name]), ratio(seconds, name, "float32")]
        for name in ways
    ]
    show(["one thread", "seconds, min", "max", "of float32"], rows)


if __name__ == "__main__":
    main()
