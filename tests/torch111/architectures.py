"""Small random models of the libraries' architectures, which the exporter must support.

FAMILIES are the transformers that configs/ names, CONVOLUTIONS the convolutional networks.
tests/models/test_families.py compares them with the real ones and exports them.
"""

from collections.abc import Callable

import open_clip
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from guie.config.model import BackboneConfig
from guie.models.backbones import Backbone, build_backbone
from guie.models.backbones.open_clip import OpenClip

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


def _clip_backbone(
    features: str = "projected", quick_gelu: bool = False, **vision: object
) -> Callable[[], Backbone]:
    config = BackboneConfig(library="open_clip", name="a small one", features=features)
    small = {"layers": 2, "width": 48, "head_width": 24, "patch_size": 8, "image_size": 40}

    def build() -> Backbone:
        clip = open_clip.CLIP(64, {**small, **vision}, TEXT, quick_gelu=quick_gelu)
        statistics = {"mean": [0.5] * 3, "std": [0.25] * 3}
        clip.visual.preprocess_cfg = {"size": clip.visual.image_size, **statistics}
        return _stirred(OpenClip.of_clip(clip, config, 40))

    return build


@timm.models.register_model
def pe_core_small(pretrained: bool = False, **kwargs: object) -> nn.Module:
    """Registered in timm, because open_clip passes no sizes."""
    small = {"img_size": 40, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 2}
    return timm.create_model("vit_pe_core_tiny_patch16_384", **small, **kwargs)


def _timm_backbone(name: str, **kwargs: object) -> Callable[[], Backbone]:
    small = {"patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 2}
    config = BackboneConfig(library="timm", name=name, kwargs={**small, **kwargs})
    return lambda: _stirred(build_backbone(config, 40))


def _convolutions(name: str, size_px: int = 40, **small: object) -> Callable[[], Backbone]:
    config = BackboneConfig(library="timm", name=name, kwargs=small)
    return lambda: build_backbone(config, size_px)


def _stirred(backbone: Backbone) -> Backbone:
    """Add noise to all weights: new layer scales are 1e-5, and a block after them does nothing."""
    with torch.no_grad():
        for parameter in backbone.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return backbone


INCEPTION_PX = 75  # with fewer, its last maps would be empty

# Two blocks, images of 5 x 5 patches
FAMILIES: dict[str, Callable[[], Backbone]] = {
    "open_clip ViT": _clip_backbone(),
    "open_clip ViT, pooled": _clip_backbone("pooled"),
    "open_clip ViT, QuickGELU": _clip_backbone(quick_gelu=True),
    "open_clip ViT, QuickGELU, pooled": _clip_backbone("pooled", quick_gelu=True),
    "open_clip PE": _clip_backbone(
        timm_model_name="pe_core_small", timm_pool="map", timm_proj=None
    ),
    "timm ViT": _timm_backbone("vit_tiny_patch16_224"),
    "timm SigLIP": _timm_backbone("vit_so400m_patch14_siglip_384"),
    "timm SigLIP 2": _timm_backbone("vit_so400m_patch16_siglip_384"),
    "timm DINOv3": _timm_backbone("vit_large_patch16_dinov3", global_pool="token"),
    "timm TIPSv2": _timm_backbone("vit_large_patch14_reg1_tipsv2"),
    "timm C-RADIOv4": _timm_backbone("vit_so400m_patch16_radio_v4"),
    "timm EVA02-CLIP": _timm_backbone("eva02_large_patch14_clip_336"),
}
CONVOLUTIONS: dict[str, Callable[[], Backbone]] = {
    "timm ResNet": _convolutions("resnet50", layers=(1, 1, 1, 1), channels=(8, 8, 8, 8)),
    "timm ResNet of two convolutions": _convolutions(
        "resnet18", layers=(2, 2, 2, 2), channels=(64, 16, 16, 16)
    ),
    "timm VGG": _convolutions("vgg16_bn", mlp_ratio=0.01),
    "timm Inception": _convolutions("inception_v3", INCEPTION_PX),  # there is no smaller one
}


def _overlapping(build: Callable[[], Backbone]) -> Callable[[], Backbone]:
    """The backbone at 44 px, a patch of 8 px every 6 px: 7 x 7."""

    def overlapping() -> Backbone:
        backbone = build()
        backbone.set_image_size(44, 6)
        return backbone

    return overlapping


# Others that people may choose:
# name -> (builder of the tower, image side in pixels; odd where padding depends on it)
OTHERS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "open_clip ViT, attentional pooling": (
        _clip(**TINY_CLIP, attentional_pool=True, attn_pooler_queries=4, attn_pooler_heads=2),
        32,
    ),
    "open_clip ModifiedResNet": (_clip(layers=[1, 1, 1, 1], width=16, image_size=64), 64),
    "open_clip with a timm tower": (
        _clip(timm_model_name="resnet18", timm_pool="avg", timm_proj="linear", image_size=32),
        32,
    ),
    "open_clip ConvNeXt": (
        _clip(timm_model_name="convnext_atto", timm_pool="", timm_proj="linear", image_size=64),
        64,
    ),
    "timm EVA-02": (_timm("eva02_tiny_patch14_224", **{**TINY_VIT, "img_size": 28}), 28),
    "timm ResNet-50": (_timm("resnet50"), 32),
    "timm ConvNeXt": (_timm("convnext_atto"), 64),
    "timm MobileNetV2, same padding": (_timm("mobilenetv2_100", pad_type="same"), 33),
    "timm MobileNetV3": (_timm("mobilenetv3_small_050"), 32),
    "timm EfficientNet": (_timm("efficientnet_b0"), 33),
}
ARCHITECTURES = {
    **{name: (backbone, 40) for name, backbone in FAMILIES.items()},
    **{f"{name}, overlapping": (_overlapping(b), 44) for name, b in FAMILIES.items()},
    **{
        name: (backbone, INCEPTION_PX if name == "timm Inception" else 40)
        for name, backbone in CONVOLUTIONS.items()
    },
    **OTHERS,
}


def build(name: str) -> tuple[Encoder, int]:
    """The encoder of that architecture with fixed random weights, and its image side in pixels."""
    torch.manual_seed(0)
    tower, size_px = ARCHITECTURES[name]
    return Encoder(tower(), size_px), size_px
