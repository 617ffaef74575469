"""Set the patch grid of a vision transformer: image size and stride of the patches.

A stride below the patch size gives more tokens from the same pixels and weights. The challenge's 1st
place used images of 290 px, patches of 14 px and a stride of 12 px: 24 x 24 tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import open_clip
from timm.layers import PatchEmbed, resample_abs_pos_embed, to_2tuple
from torch import nn

from guie.base.errors import UserError

# A library's image backbone: a torch Module with methods and attributes of its own, without types.
Tower = Any


class StridedPatchEmbed(PatchEmbed):
    """timm's patch embedding with its grid computed from the convolution's stride.

    timm's own assumes that the stride is the patch size, which holds only without overlap.
    """

    def dynamic_feat_size(self, img_size: Sequence[int]) -> tuple[int, int]:
        """Convert (height, width) in pixels to (rows, columns) of patches."""
        rows, columns = (
            grid_side(side, patch, stride)
            for side, patch, stride in zip(img_size, self.patch_size, self.proj.stride, strict=True)
        )
        return rows, columns

    def _init_img_size(
        self, img_size: int | tuple[int, int]
    ) -> tuple[tuple[int, int], tuple[int, int], int]:
        size = to_2tuple(img_size)
        rows, columns = self.dynamic_feat_size(size)
        return size, (rows, columns), rows * columns


def grid_side(size_px: int, patch_px: int, stride_px: int) -> int:
    """Return the number of patches along a side of the image."""
    return (size_px - patch_px) // stride_px + 1


def patch_size(tower: Tower) -> int | None:
    """Return the side of the backbone's patches in pixels; None if its grid cannot be set."""
    trunk = trunk_of(tower)
    if isinstance(trunk, open_clip.transformer.VisionTransformer):
        return trunk.patch_size[0]
    if isinstance(getattr(trunk, "patch_embed", None), PatchEmbed):
        return trunk.patch_embed.patch_size[0] if hasattr(trunk, "set_input_size") else None
    return None


def set_grid(tower: Tower, size_px: int, stride_px: int) -> None:
    """Set the size of the square images and the stride; the backbone must have a `patch_size`.

    timm's resampler interpolates position embeddings to the new grid, bicubic and antialiased. Other
    weights stay.
    """
    trunk = trunk_of(tower)
    if isinstance(trunk, open_clip.transformer.VisionTransformer):
        _set_open_clip_grid(trunk, size_px, stride_px)
        return
    patches = trunk.patch_embed
    patches.__class__ = StridedPatchEmbed  # the same module, weights and names
    patches.proj.stride = (stride_px, stride_px)
    # Inputs always have the size that is set, so the patch size need not divide it.
    patches.strict_img_size = True
    patches.img_size = None  # otherwise timm keeps the grid if the size does not change
    tower.set_input_size((size_px, size_px))


def refuse_misfit(size_px: int, patch_px: int, stride_px: int) -> None:
    """Raise UserError if the stride skips pixels, or patches do not reach the image's edge."""
    if stride_px > patch_px:
        raise UserError(
            f"stride_px {stride_px}: is above the patch size {patch_px} px, so pixels between patches"
            f" would be ignored; use 1 to {patch_px}"
        )
    over = (size_px - patch_px) % stride_px
    if over or size_px < patch_px:
        smaller = max(patch_px, size_px - over)
        raise UserError(
            f"image size {size_px} px: not a whole number of patches of {patch_px} px with stride"
            f" {stride_px} px; use {smaller} or {smaller + stride_px}"
        )


def trunk_of(tower: Tower) -> Tower:
    """Return the timm model inside open_clip's wrapper, or the backbone itself."""
    return getattr(tower, "trunk", tower)


def _set_open_clip_grid(
    tower: open_clip.transformer.VisionTransformer, size_px: int, stride_px: int
) -> None:
    side = grid_side(size_px, tower.patch_size[0], stride_px)
    old = tower.positional_embedding
    resampled = resample_abs_pos_embed(old.detach()[None], [side, side], tower.grid_size)[0]
    tower.positional_embedding = nn.Parameter(resampled, requires_grad=old.requires_grad)
    tower.conv1.stride = (stride_px, stride_px)
    tower.grid_size, tower.image_size = (side, side), (size_px, size_px)
