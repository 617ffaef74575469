"""Patches that overlap: their tokens against a computation by hand, what is refused.

What holds for every backbone of the configs stands in test_families.py.
"""

import pytest
import torch
import torch.nn.functional as F
from small_models import TINY_CLIP, TINY_VIT
from torch import Tensor, nn

from guie.base.errors import UserError
from guie.config.model import BackboneConfig
from guie.models.backbones import Backbone, build_backbone


def clip() -> Backbone:
    torch.manual_seed(0)
    return build_backbone(BackboneConfig(**TINY_CLIP)).eval()


def vit() -> Backbone:
    torch.manual_seed(0)
    return build_backbone(BackboneConfig(**TINY_VIT), 64).eval()


def tokens_of(backbone: Backbone, images: Tensor) -> Tensor:
    """What enters the first block: (B, 1 + patches, width)."""
    trunk = backbone.trunk
    first = trunk.blocks[0] if hasattr(trunk, "blocks") else trunk.ln_pre
    seen = []
    handle = first.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    backbone(images)
    handle.remove()
    return seen[0]


def parts_of(backbone: Backbone) -> tuple[nn.Conv2d, Tensor, Tensor]:
    """Patch convolution, class token (width,), position embeddings (1 + patches, width)."""
    trunk = backbone.trunk
    if hasattr(trunk, "patch_embed"):
        return trunk.patch_embed.proj, trunk.cls_token[0, 0], trunk.pos_embed[0].detach().clone()
    return trunk.conv1, trunk.class_embedding, trunk.positional_embedding.detach().clone()


def tokens_by_hand(
    images: Tensor, stride_px: int, conv: nn.Conv2d, first: Tensor, positions: Tensor
) -> Tensor:
    """Unfold the image, multiply, add positions that were interpolated from a square grid."""
    patch_px = conv.kernel_size[0]
    pixels_BPN = F.unfold(images, patch_px, stride=stride_px)
    patches_BNW = pixels_BPN.transpose(1, 2) @ conv.weight.flatten(1).T
    if conv.bias is not None:
        patches_BNW = patches_BNW + conv.bias
    old, new = (round(count**0.5) for count in (len(positions) - 1, patches_BNW.shape[1]))
    grid = positions[1:].T.unflatten(1, (old, old))[None]
    grid = F.interpolate(grid, (new, new), mode="bicubic", antialias=True)[0].flatten(1).T
    rows = [(first + positions[0]).expand(len(images), 1, -1), patches_BNW + grid]
    return torch.cat(rows, dim=1)


@pytest.mark.parametrize(
    ("build", "size_px", "stride_px", "count"),
    [
        (clip, 64, 8, 64),
        (clip, 62, 6, 100),
        (clip, 36, 7, 25),
        (vit, 64, 12, 25),
        (vit, 100, 12, 64),
    ],
)
@torch.no_grad()
def test_tokens_are_those_of_overlapping_patches(build, size_px, stride_px, count) -> None:
    backbone = build()
    parts = parts_of(backbone)
    backbone.set_image_size(size_px, stride_px)
    images = torch.randn(2, 3, size_px, size_px)
    found = tokens_of(backbone, images)
    assert found.shape[1] == 1 + count
    torch.testing.assert_close(found, tokens_by_hand(images, stride_px, *parts), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("size_px", "stride_px", "said"),
    [
        (60, None, "image size 60 px: .* patches of 8 px with stride 8 px; use 56 or 64"),
        (45, 6, "use 44 or 50"),
        (4, None, "use 8 or 16"),
        (64, 9, "stride_px 9: is above the patch size 8 px"),
    ],
)
def test_what_does_not_fit_is_refused(size_px: int, stride_px: int | None, said: str) -> None:
    backbone = clip()
    with pytest.raises(UserError, match=said):
        backbone.set_image_size(size_px, stride_px)
    assert (backbone.size_px, backbone.stride_px) == (64, None)
    backbone.native_px = size_px  # a pretraining may leave pixels over, as SigLIP's 384 px of 14 px
    if size_px > 8 and not stride_px:
        backbone.set_image_size(size_px)


def test_a_tower_without_patches_has_no_stride() -> None:
    config = BackboneConfig(library="timm", name="resnet10t", stride_px=12)
    with pytest.raises(UserError, match="ResNet has no patches with a stride"):
        build_backbone(config, 64)
