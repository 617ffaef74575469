"""The budget against sums by hand."""

import numpy as np
import pytest
import timm
import torch
from scorer_toys import rewritten, torchscript_bytes

from scorer.budget import MEASURED_HW, describe, project
from scorer.process import Limits, ModelProcess


def vit_flops(tokens: int, width: int, depth: int, patch_px: int) -> int:
    """Of a ViT's matrix products by hand, a multiply-add as two: qkv and output 4, MLP 8 widths."""
    block = 2 * 12 * tokens * width**2 + 2 * 2 * tokens**2 * width
    return depth * block + 2 * (tokens - 1) * width * 3 * patch_px**2


VIT_H = vit_flops(257, 1280, 32, 14)
VIT_H_BYTES = 4 * (32 * 12 * 1280**2)  # of its blocks, in fp32


def budget(models: int, views: int, weight_bytes: int = VIT_H_BYTES) -> dict:
    return project(models * views * VIT_H, models * weight_bytes, 10**9, 0.005)


def test_vit_h_has_167_g_multiply_adds():
    assert VIT_H / 2 == pytest.approx(167e9, rel=0.01)


@pytest.mark.parametrize(
    ("models", "views", "fits"), [(1, 1, "yes"), (2, 1, "yes"), (2, 2, "perhaps"), (2, 3, "no")]
)
def test_vit_h_side_by_side_with_views(models, views, fits):
    """One takes 2.0 h at the card's full rate; two 4.1 h, at half of it 8.2 h, and .3 h of decoding.

    Two of them on the image and its mirror image take 8.2 h if nothing is lost; on three views, 12 h.
    """
    found = budget(models, views)
    assert found["fits"] == fits
    assert found["hours"]["least"] - found["hours"]["decode"] == pytest.approx(
        models * views * 334.7e9 / 9.3e12 * 205_000 / 3600, rel=0.01
    )


def test_what_the_card_does_not_hold_does_not_fit():
    found = budget(1, 1, weight_bytes=15 * 10**9)
    assert found["fits"] == "no" and "17.0 GB of 16 GB" in describe(found)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_a_model_is_counted_as_by_hand(tmp_path):
    """Through the process, the TorchScript file and the resize of a 480 x 640 image."""

    class Scored(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            tower = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 3, "num_heads": 3}
            net = timm.models.VisionTransformer(**tower, num_classes=0).eval()
            for block in net.blocks:
                block.attn.fused_attn = False
            self.net = torch.jit.trace(net, torch.zeros(1, 3, 32, 32), check_trace=False)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            small = torch.nn.functional.adaptive_avg_pool2d(images.float(), [32, 32])
            return self.net(small)

    path = tmp_path / "saved_model.pt"
    path.write_bytes(rewritten(torchscript_bytes(Scored()), {}))
    with ModelProcess(path, Limits(threads=1)) as process:
        process.call("load")
        image = np.zeros((*MEASURED_HW, 3), np.uint8)
        flops, weight_bytes, _ = process.call("measure", image)
    assert flops == vit_flops(17, 48, 3, 8)
    assert weight_bytes == pytest.approx(4 * 3 * 12 * 48**2, rel=0.2)
