"""The saved file against the eager model, over images of odd sizes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor, nn

Answer = Callable[[Tensor], Tensor]  # uint8 (B, 3, H, W) -> (B, D)


def parity(
    eager: nn.Module, path: str | Path, sizes: Iterable[tuple[int, int]]
) -> list[dict[str, float]]:
    """Largest absolute difference of the embeddings, eager and saved, for each (height, width).

    `eager` maps uint8 (1, 3, H, W) to (1, D), on the CPU. NaN where an answer is.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # TorchScript is deprecated, and demanded
        saved = torch.jit.load(str(path), map_location="cpu").eval()
    return differences(eager, saved, sizes)


def differences(
    eager: Answer, found: Answer, sizes: Iterable[tuple[int, int]], images: int = 1
) -> list[dict[str, float]]:
    """Largest absolute difference of two models' answers, for each (height, width).

    Half of each image is noise (every frequency, where two resizes would differ most), half slow
    waves: one pass of the encoder, which sees the same square whatever the size, tells of both. NaN
    where an answer is.

    Args:
        images: in one call, each shifted from the one before.
    """
    rows = []
    with torch.inference_mode():
        for height, width in sizes:
            image = _image(height, width)
            batch = torch.cat([image.roll(shift, -1) for shift in range(images)])
            difference = (eager(batch) - found(batch)).abs().max().item()
            rows.append({"height": height, "width": width, "difference": difference})
    return rows


def remembered(model: Answer, sizes: Iterable[tuple[int, int]]) -> Answer:
    """The answers of a model that is about to change, for `differences` of images of these sizes."""
    with torch.inference_mode():
        answers = {size: model(_image(*size)) for size in sizes}
    return lambda images: answers[images.size(2), images.size(3)]


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


def _image(height: int, width: int) -> Tensor:
    """uint8 (1, 3, H, W): noise, and from the middle of the longer side on, slow waves."""
    generator = torch.Generator().manual_seed(height * 65536 + width)
    noise = torch.randint(0, 256, (1, 3, height, width), generator=generator, dtype=torch.uint8)
    y = torch.linspace(0, 3, height).view(1, 1, -1, 1)
    x = torch.linspace(0, 5, width).view(1, 1, 1, -1)
    phase = torch.tensor([0.0, 1.0, 2.0]).view(1, 3, 1, 1)
    waves = (127.5 + 127.5 * torch.sin(x + y + phase)).to(torch.uint8)
    axis = 2 if height > width else 3
    size = max(height, width)
    halves = [size // 2, size - size // 2]
    return torch.cat([noise.split(halves, axis)[0], waves.split(halves, axis)[1]], axis)
