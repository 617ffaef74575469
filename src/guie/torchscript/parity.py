"""The saved file against the eager model, over images of odd sizes."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor, nn


def parity(
    eager: nn.Module, path: str | Path, sizes: Iterable[tuple[int, int]]
) -> list[dict[str, float]]:
    """Largest absolute difference of the embeddings, eager and saved, for each (height, width).

    `eager` maps uint8 (1, 3, H, W) to (1, D), on the CPU. Per size: an image of noise (every
    frequency, where two resizes would differ most) and one of slow waves. NaN where an answer is.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # TorchScript is deprecated, and demanded
        saved = torch.jit.load(str(path), map_location="cpu").eval()
    rows = []
    with torch.inference_mode():
        for height, width in sizes:
            row = {"height": height, "width": width}
            for name, image_1CHW in (("noise", _noise), ("smooth", _smooth)):
                images = image_1CHW(height, width)
                row[name] = (eager(images) - saved(images)).abs().max().item()
            rows.append(row)
    return rows


def odd_sizes(size_px: int) -> list[tuple[int, int]]:
    """(height, width): degenerate, the network's own and one off it, portrait, landscape, large."""
    return [
        (1, 1),
        (1, 2000),
        (2000, 1),
        (size_px, size_px),
        (size_px + 1, max(1, size_px - 1)),
        (641, 427),
        (427, 641),
        (1501, 2003),
    ]


def _noise(height: int, width: int) -> Tensor:
    generator = torch.Generator().manual_seed(height * 65536 + width)
    return torch.randint(0, 256, (1, 3, height, width), generator=generator, dtype=torch.uint8)


def _smooth(height: int, width: int) -> Tensor:
    y = torch.linspace(0, 3, height).view(1, 1, -1, 1)
    x = torch.linspace(0, 5, width).view(1, 1, 1, -1)
    phase = torch.tensor([0.0, 1.0, 2.0]).view(1, 3, 1, 1)
    return (127.5 + 127.5 * torch.sin(x + y + phase)).to(torch.uint8)
