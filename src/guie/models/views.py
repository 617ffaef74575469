"""Views of an image: size, normalisation and part for each model, concatenated in one row.

Shapes: B images, S the side of a model's input, M input values of all models per image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from guie.base.errors import UserError
from guie.config.ensemble import Corner, ViewConfig
from guie.config.model import Fit, PadColor, Resize
from guie.models.preprocess import Preprocess


@dataclass(frozen=True)
class ViewSpec:
    """A model's preprocessing combined with a view."""

    size_px: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    fit: Fit = "squash"
    resize: Resize = "bicubic"
    antialias: bool = True
    part: float = 1.0
    at: Corner = "center"
    flip: bool = False
    pad_color: PadColor = "white"

    def through(self, view: ViewConfig) -> ViewSpec:
        """Apply a view to this model's preprocessing. Raises UserError if both take part of the image."""
        if self.part < 1 and view.part < 1:
            raise UserError(
                f"views: part {view.part:g} applies to a member that already has part {self.part:g}; set"
                " only one of the two"
            )
        cut = view if view.part < 1 else self
        plain = view.resize == "bicubic" and view.antialias
        return replace(
            self,
            fit=view.fit or self.fit,
            resize=self.resize if plain else view.resize,
            antialias=self.antialias if plain else view.antialias,
            part=cut.part,
            at=cut.at,
            flip=self.flip != view.flip,
            pad_color=view.pad_color or self.pad_color,
        )

    def build(self) -> Preprocess | View:
        """Build the preprocessing module."""
        whole_px = max(self.size_px, round(self.size_px / self.part))
        preprocess = Preprocess(
            whole_px,
            self.mean,
            self.std,
            self.fit,
            self.resize,
            self.antialias,
            self.pad_color,
        )
        return View(preprocess, self) if self.part < 1 or self.flip else preprocess


class View(nn.Module):
    """Preprocess to a larger square, then crop a part of it, optionally mirrored."""

    def __init__(self, preprocess: Preprocess, look: ViewSpec):
        super().__init__()
        self.preprocess, self.size_px, self.flip = preprocess, look.size_px, look.flip
        room = preprocess.size_px - look.size_px
        below, right = look.at.startswith("bottom"), look.at.endswith("right")
        self.top = room // 2 if look.at == "center" else room * below
        self.left = room // 2 if look.at == "center" else room * right
        self.seen: dict[str, Any] = {"part": look.part, "at": look.at, "flip": look.flip}

    def forward(self, images: Tensor) -> Tensor:
        """Map (B, 3, H, W) to (B, 3, S, S), as `Preprocess` does."""
        side = self.size_px
        whole = self.preprocess(images)
        seen = whole[:, :, self.top : self.top + side, self.left : self.left + side]
        return torch.flip(seen, [3]) if self.flip else seen

    @torch.jit.ignore
    def recipe(self) -> dict[str, Any]:
        """Return its settings as JSON."""
        whole = self.preprocess.recipe()
        return whole | {"whole_px": whole["size_px"], "size_px": self.size_px} | self.seen


class Inputs(nn.Module):
    """All views of an image that an ensemble needs, flattened into one row.

    Loaders can then batch and transfer it like an image.

    Attributes: `sides_px`, the side of each view; `size_px`, the largest.
    """

    def __init__(self, looks: Sequence[ViewSpec]):
        super().__init__()
        self.looks = nn.ModuleList([look.build() for look in looks])
        self.sides_px = [look.size_px for look in looks]
        self.size_px = max(self.sides_px)

    def forward(self, images: Tensor) -> Tensor:
        """Map images (B, 3, H, W), as for `Preprocess`, to (B, M) float32."""
        rows = []
        for look in self.looks:
            rows.append(look(images).flatten(1))
        return torch.cat(rows, dim=1)

    @torch.jit.ignore
    def recipe(self) -> dict[str, Any]:
        """Return its settings as JSON."""
        looks = cast("Sequence[Preprocess | View]", self.looks)  # a ModuleList has no element type
        return {"looks": [look.recipe() for look in looks]}


# For one model, and for an ensemble
AnyPreprocess = Preprocess | Inputs
