"""What a step and an embedding cost with something added to a frozen backbone, over full fine-tuning.

python tests/bench/adapters.py [--backbone vit_small_patch16_224] [--px 112] [--batch 32] [--steps 6]
python tests/bench/adapters.py --device cuda --library open_clip --backbone ViT-H-14 --px 224

On one thread of the CPU, or on a GPU in bf16; ratios to full fine-tuning at the same batch. Scored: an
embedding over that of the backbone alone. On a GPU also the peak memory of a step, its own model included;
without one, tests/bench/memory.py estimates it.
"""

from functools import partial
from typing import Any

import numpy as np
import torch
from common import arguments, in_turn, ratio, show
from torch import Tensor, nn

from guie.config.model import ModelConfig
from guie.models.embedder import build_embedder

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
    small = {"backbone": "vit_small_patch16_224", "library": "timm"}
    args = arguments(__doc__, **small, device="cpu", px=112, batch=32, steps=6)
    torch.set_num_threads(1)
    images_BCHW = torch.randn(args.batch, 3, args.px, args.px, device=args.device)
    models = {}
    for name, added in KINDS.items():
        backbone = {"library": args.library, "name": args.backbone}
        values = {"backbone": backbone, "image": {"size_px": args.px}, "head": {"dim": 128}}
        models[name] = build_embedder(ModelConfig.model_validate(values | added)).to(args.device)
        models[name].backbone.tower.requires_grad_(name == "full").eval()
    steps = {name: partial(step, model, images_BCHW) for name, model in models.items()}
    trained = in_turn(steps, args.steps)
    scored = in_turn({n: partial(embed, m, images_BCHW) for n, m in models.items()}, args.steps)
    rows = []
    for name, model in models.items():
        trains = sum(p.numel() for p in model.parameters() if p.requires_grad) / 1e6
        ratios = [ratio(taken, name, "full") for taken in (trained, scored)]
        rows.append([name, trains, np.median(trained[name]), *ratios, held_gb(model, images_BCHW)])
    device = torch.cuda.get_device_name() if args.device == "cuda" else "one thread"
    title = f"{args.backbone}, {args.px} px, batch {args.batch}, {device}"
    show(["", "trains, M", "step, s", "/ full", "scored / full", "step, GB"], rows, title)


def step(model: nn.Module, images_BCHW: Tensor) -> None:
    """A forward and a backward pass."""
    device = images_BCHW.device.type
    model.train().backbone.tower.eval()
    model.zero_grad()
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        emb_BD = model(images_BCHW)
    emb_BD.float().square().mul(torch.arange(128.0, device=device)).sum().backward()


@torch.no_grad()
def embed(model: nn.Module, images_BCHW: Tensor) -> None:
    device = images_BCHW.device.type
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        model.eval()(images_BCHW)


def held_gb(model: nn.Module, images_BCHW: Tensor) -> float | str:
    """The GPU's peak memory in a step, without the other kinds' models; empty without a GPU."""
    if images_BCHW.device.type != "cuda":
        return ""
    model.zero_grad()
    own = sum(t.numel() * t.element_size() for t in model.state_dict().values())
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step(model, images_BCHW)
    model.zero_grad()
    return (torch.cuda.max_memory_allocated() - before + own) / 1e9


if __name__ == "__main__":
    main()
