"""The libraries' architectures, built small and random: what the exporter must carry over."""

from __future__ import annotations

from collections.abc import Callable

import open_clip
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from guie.model.patches import patch_size, set_grid

TEXT = {"context_length": 8, "vocab_size": 64, "width": 32, "heads": 2, "layers": 1}
TINY_CLIP = {"layers": 2, "width": 64, "head_width": 32, "patch_size": 8, "image_size": 32}
TINY_VIT = {"img_size": 32, "embed_dim": 64, "depth": 2, "num_heads": 2}


class Encoder(nn.Module):
    """Tower -> BatchNorm -> Linear 64 -> L2, all random; the head takes the images' shapes too."""

    def __init__(self, tower: nn.Module, size_px: int) -> None:
        super().__init__()
        self.tower = tower.eval()
        with torch.no_grad():
            features = tower(torch.zeros(1, 3, size_px, size_px)).shape[-1]
        self.head = nn.Sequential(nn.BatchNorm1d(features + 3), nn.Linear(features + 3, 64))
        self.eval()

    def forward(self, images_BCHW: Tensor, shapes_B3: Tensor) -> Tensor:
        """(B, 3, S, S) and (B, 3) -> (B, 64)."""
        feat_BF = torch.cat([self.tower(images_BCHW), shapes_B3], dim=-1)
        return F.normalize(self.head(feat_BF), dim=-1)


def _clip(**vision: object) -> Callable[[], nn.Module]:
    return lambda: open_clip.CLIP(embed_dim=64, vision_cfg={**vision}, text_cfg=TEXT).visual


def _timm(name: str, **kwargs: object) -> Callable[[], nn.Module]:
    return lambda: timm.create_model(name, pretrained=False, num_classes=0, **kwargs)


def _overlapping(tower: Callable[[], nn.Module], size_px: int) -> Callable[[], nn.Module]:
    """The tower at this size, its patches three quarters of a patch apart."""

    def build() -> nn.Module:
        overlapping = tower()
        set_grid(overlapping, size_px, 3 * patch_size(overlapping) // 4)
        return overlapping

    return build


SIGLIP = "vit_base_patch16_siglip_224"
# name -> (builder of the tower, image side in pixels; odd where padding depends on it)
ARCHITECTURES: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "open_clip ViT": (_clip(**TINY_CLIP), 32),
    "open_clip ViT, overlapping patches": (_overlapping(_clip(**TINY_CLIP), 44), 44),
    "open_clip ViT, attentional pooling": (
        _clip(**TINY_CLIP, attentional_pool=True, attn_pooler_queries=4, attn_pooler_heads=2),
        32,
    ),
    "open_clip ModifiedResNet": (_clip(layers=[1, 1, 1, 1], width=16, image_size=64), 64),
    "open_clip with a timm tower": (
        _clip(timm_model_name="resnet18", timm_pool="avg", timm_proj="linear", image_size=32),
        32,
    ),
    "timm ViT": (_timm("vit_tiny_patch16_224", **TINY_VIT), 32),
    "timm ViT, overlapping patches": (
        _overlapping(_timm("vit_tiny_patch16_224", **TINY_VIT), 64),
        64,
    ),
    "timm DINOv3, overlapping patches": (
        _overlapping(_timm("vit_small_patch16_dinov3", **TINY_VIT), 64),
        64,
    ),
    "timm SigLIP": (_timm(SIGLIP, **TINY_VIT), 32),
    "timm SigLIP, gelu tanh": (_timm(SIGLIP, **TINY_VIT, act_layer="gelu_tanh"), 32),
    "timm EVA-02": (_timm("eva02_tiny_patch14_224", **{**TINY_VIT, "img_size": 28}), 28),
    "timm DINOv3": (_timm("vit_small_patch16_dinov3", **TINY_VIT), 32),
    "timm ResNet-50": (_timm("resnet50"), 32),
    "timm ConvNeXt": (_timm("convnext_atto"), 64),
    "timm MobileNetV2, same padding": (_timm("mobilenetv2_100", pad_type="same"), 33),
    "timm MobileNetV3": (_timm("mobilenetv3_small_050"), 32),
    "timm EfficientNet": (_timm("efficientnet_b0"), 33),
}


def build(name: str) -> tuple[Encoder, int]:
    """The encoder of that architecture with fixed random weights, and its image side in pixels."""
    torch.manual_seed(0)
    tower, size_px = ARCHITECTURES[name]
    return Encoder(tower(), size_px), size_px
