"""The patches of a vision transformer: how many an image has, and whether they overlap.

A stride below the patch size gives more tokens from the same pixels, by the same weights. The
challenge's 1st place took 290 px in patches of 14 px, one every 12 px: 24 x 24 tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import open_clip
from timm.layers import PatchEmbed, resample_abs_pos_embed, to_2tuple
from torch import nn

from guie.base.errors import UserError

# A library's image tower: a torch Module with methods and settings of its own, which has no types.
Tower = Any


class StridedPatchEmbed(PatchEmbed):
    """timm's patch embedding, told its grid by the stride of the convolution.

    timm's own takes the patch size for the stride; both are one where the patches lie side by side.
    """

    def dynamic_feat_size(self, img_size: Sequence[int]) -> tuple[int, int]:
        """(height, width) in pixels -> (rows, columns) of patches."""
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
    """Patches along a side of the image."""
    return (size_px - patch_px) // stride_px + 1


def patch_size(tower: Tower) -> int | None:
    """The side of the tower's patches in pixels; None if its grid cannot be set."""
    trunk = trunk_of(tower)
    if isinstance(trunk, open_clip.transformer.VisionTransformer):
        return trunk.patch_size[0]
    if isinstance(getattr(trunk, "patch_embed", None), PatchEmbed):
        return trunk.patch_embed.patch_size[0] if hasattr(trunk, "set_input_size") else None
    return None


def set_grid(tower: Tower, size_px: int, stride_px: int) -> None:
    """Take square images of this size, a patch every `stride_px`; the tower has a `patch_size`.

    Position embeddings are interpolated to the new grid, bicubic and antialiased, by timm's
    resampler. The weights stay.
    """
    trunk = trunk_of(tower)
    if isinstance(trunk, open_clip.transformer.VisionTransformer):
        _set_open_clip_grid(trunk, size_px, stride_px)
        return
    patches = trunk.patch_embed
    patches.__class__ = StridedPatchEmbed  # the same module, weights and names
    patches.proj.stride = (stride_px, stride_px)
    # Only the size that is set will come: no need of one that the patch size divides.
    patches.strict_img_size = True
    patches.img_size = None  # else timm sees the size it has, and keeps the grid
    tower.set_input_size((size_px, size_px))


def refuse_misfit(size_px: int, patch_px: int, stride_px: int) -> None:
    """Raise UserError where a stride skips pixels, or the image leaves some over at its edge."""
    if stride_px > patch_px:
        raise UserError(
            f"stride_px {stride_px}: is above the patch size {patch_px} px, and pixels between"
            f" patches would not be seen; take 1 to {patch_px}"
        )
    over = (size_px - patch_px) % stride_px
    if over or size_px < patch_px:
        smaller = max(patch_px, size_px - over)
        raise UserError(
            f"image size {size_px} px: no whole number of patches of {patch_px} px, one every"
            f" {stride_px} px; take {smaller} or {smaller + stride_px}"
        )


def trunk_of(tower: Tower) -> Tower:
    """The timm model inside open_clip's wrapper, or the tower itself."""
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
