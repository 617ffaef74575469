"""Compare the saved file with the eager model on images of unusual sizes."""

import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor, nn

from guie.base.errors import UserError

Answer = Callable[[Tensor], Tensor]  # uint8 (B, 3, H, W) -> (B, D)


def parity(
    eager: nn.Module, path: str | Path, sizes: Iterable[tuple[int, int]]
) -> list[dict[str, float]]:
    """Return the largest absolute difference of eager and saved embeddings for each (height, width).

    `eager` maps uint8 (1, 3, H, W) to (1, D), on the CPU. A NaN in an embedding gives NaN.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # TorchScript is deprecated, but required
        saved = torch.jit.load(str(path), map_location="cpu").eval()
    return differences(eager, saved, sizes)


def differences(
    eager: Answer, found: Answer, sizes: Iterable[tuple[int, int]], images: int = 1
) -> list[dict[str, float]]:
    """Return the largest absolute difference of two models' embeddings for each (height, width).

    Half of each image is noise, with every frequency, where two resizes would differ most. The other half
    is slow waves. So one pass of the encoder tests both. A NaN in an embedding gives NaN.

    Args:
        images: number in one call, each shifted relative to the previous one.
    """
    rows = []
    with torch.inference_mode():
        for height, width in sizes:
            image = _image(height, width)
            batch = torch.cat([image.roll(shift, -1) for shift in range(images)])
            difference = (eager(batch) - found(batch)).abs().max().item()
            rows.append({"height": height, "width": width, "difference": difference})
    return rows


def refuse_differences(
    rows: Iterable[dict[str, float]], tolerance: float, source: str, file: str
) -> None:
    """Raise UserError naming the first image size at which a file differs too much from the model."""
    for row in rows:
        if not row["difference"] <= tolerance:  # also true for NaN
            where, much = f"{row['height']} x {row['width']}", f"{row['difference']:.1e}"
            wrong = f"{file} differs from the trained model by {much}, above {tolerance:g}"
            why = "check whether the model branches on the image size, or its weights contain NaN"
            raise UserError(f"{source}: at {where} {wrong}; {why}")


def remembered(model: Answer, sizes: Iterable[tuple[int, int]]) -> Answer:
    """Store a model's embeddings before it is modified, for `differences` on images of these sizes."""
    with torch.inference_mode():
        answers = {size: model(_image(*size)) for size in sizes}
    return lambda images: answers[images.size(2), images.size(3)]


def odd_sizes(size_px: int) -> list[tuple[int, int]]:
    """Return (height, width): degenerate, the network's size, off by one, portrait, landscape, large."""
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
    """Return uint8 (1, 3, H, W): along the longer side, first half noise, second half slow waves."""
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
