"""What a step and an embedding cost with something added to a frozen tower, against full fine-tuning.

python tests/bench/adapters.py [--backbone vit_small_patch16_224] [--px 112] [--batch 32] [--steps 6]
python tests/bench/adapters.py --device cuda --library open_clip --backbone ViT-H-14 --px 224

Steps of all kinds in turn, in one run, on one thread of the CPU or on a card in bf16; the median of each
over that of full fine-tuning at the same batch. Scored: an embedding over that of the tower alone. On a
card the most that a step holds, its own model included; without one by counting, tests/bench/memory.py.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from guie.config.model import ModelConfig
from guie.models import build_embedder

KINDS: dict[str, dict[str, Any]] = {
    "full": {},
    "linear": {},
    "stochastic adapters": {"adapters": {"kind": "stochastic"}},
    "prompt pool": {"prompts": {"kind": "pool"}},
    "puma": {"adapters": {"kind": "stochastic"}, "prompts": {"kind": "pool"}},
    "adaptformer": {"adapters": {"kind": "adaptformer"}},
    "lora, q and v": {"adapters": {"kind": "lora", "rank": 8}},
    "deep prompts": {"prompts": {"kind": "deep"}},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backbone", default="vit_small_patch16_224", help="of timm")
    parser.add_argument("--library", choices=["timm", "open_clip"], default="timm")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--px", type=int, default=112)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=6)
    args = parser.parse_args()
    torch.set_num_threads(1)
    images_BCHW = torch.randn(args.batch, 3, args.px, args.px, device=args.device)
    backbone = {"library": args.library, "name": args.backbone}
    models = {
        name: built(backbone, args.px, name, added).to(args.device) for name, added in KINDS.items()
    }
    steps = {name: trainer(model, images_BCHW) for name, model in models.items()}
    trained = in_turn(steps, args.steps)
    scored = in_turn({n: scorer(m, images_BCHW) for n, m in models.items()}, args.steps)
    device = torch.cuda.get_device_name() if args.device == "cuda" else "one thread"
    print(
        f"{args.backbone}, {args.px} px, batch {args.batch}, {device}: seconds and ratios, medians of"
        f" {args.steps}"
    )
    print(
        f"  {'':20} {'trains, M':>10} {'step, s':>8} {'/ full':>7} {'scored / tower':>15} {'step, GB':>9}"
    )
    for name, model in models.items():
        count = sum(p.numel() for p in model.parameters() if p.requires_grad) / 1e6
        ratio, over = trained[name] / trained["full"], scored[name] / scored["full"]
        print(f"  {name:20} {count:10.2f} {trained[name]:8.2f} {ratio:7.2f} {over:15.2f}"
            f" {held_gb(steps[name], model, images_BCHW):>9}")  # fmt: skip


def built(backbone: dict[str, str], px: int, name: str, added: dict[str, Any]) -> nn.Module:
    """An embedder of which the kind's parts train."""
    values = {"backbone": backbone, "image": {"size_px": px}, **added}
    model = build_embedder(ModelConfig.model_validate(values | {"head": {"dim": 128}}))
    model.backbone.tower.requires_grad_(name == "full").eval()
    return model


def trainer(model: nn.Module, images_BCHW: Tensor) -> Callable[[], None]:
    """A forward and a backward pass."""
    device = images_BCHW.device.type
    weights_D = torch.arange(128.0, device=device)

    def step() -> None:
        model.train().backbone.tower.eval()
        model.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            emb_BD = model(images_BCHW)
        emb_BD.float().square().mul(weights_D).sum().backward()

    return step


def scorer(model: nn.Module, images_BCHW: Tensor) -> Callable[[], None]:
    device = images_BCHW.device.type

    @torch.no_grad()
    def embed() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            model.eval()(images_BCHW)

    return embed


def in_turn(steps: dict[str, Callable[[], None]], count: int) -> dict[str, float]:
    """Median seconds of each, one after the other again and again, the first round left out."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for round_ in range(count + 1):
        for name, step in steps.items():
            begun = time.perf_counter()
            step()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if round_:
                seconds[name].append(time.perf_counter() - begun)
    return {name: statistics.median(those) for name, those in seconds.items()}


def held_gb(step: Callable[[], None], model: nn.Module, images_BCHW: Tensor) -> str:
    """The most that the card holds in a step, but for the other kinds' models; empty without a card."""
    if images_BCHW.device.type != "cuda":
        return ""
    model.zero_grad()
    own = sum(t.numel() * t.element_size() for t in model.state_dict().values())
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    model.zero_grad()
    return f"{(torch.cuda.max_memory_allocated() - before + own) / 1e9:.2f}"


if __name__ == "__main__":
    main()
