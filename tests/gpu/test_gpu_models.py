"""Every kind of model embeds on the GPU as on the CPU; half precision is near; attention is fused."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch.nn.attention import SDPBackend, sdpa_kernel

from guie.config.model import ModelConfig
from guie.data.manifest import load_manifest
from guie.models.embedder import build_embedder
from guie.rows.embedding import embed_files
from runs_of_every_task import MODELS, Material
from torch111.architectures import FAMILIES


@pytest.fixture(autouse=True)
def no_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.parametrize("kind", MODELS)
def test_embeddings_are_the_cpus(kind: str, material: Material, tmp_path: Path) -> None:
    manifest = load_manifest(material.mix, material.root)
    files = [manifest.file(path) for path in manifest.split("val")["image_path"]]
    job = partial(embed_files, files=files, workers=0, batch_size=8)
    model = MODELS[kind](tmp_path / "run")
    found = []
    for cpu in (True, False):
        AcceleratorState._reset_state(reset_partial_state=True)
        found.append(job(Accelerator(cpu=cpu), model.embedder, model.preprocess))
        assert next(model.embedder.parameters()).is_cuda != cpu
    np.testing.assert_allclose(found[1], found[0], atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_every_family_is_the_cpus(family: str) -> None:
    torch.manual_seed(0)
    backbone = FAMILIES[family]().eval()
    images_BCHW = torch.randn(2, 3, *[backbone.size_px] * 2)
    plain_BF = backbone(images_BCHW)
    backbone.cuda()
    found_BF = backbone(images_BCHW.cuda())
    torch.testing.assert_close(found_BF.cpu(), plain_BF, rtol=1e-3, atol=1e-3)
    with torch.autocast("cuda", torch.bfloat16):
        half_BF = backbone(images_BCHW.cuda()).float().cpu()
    assert torch.nn.functional.cosine_similarity(half_BF, plain_BF).min() > 0.99


@pytest.mark.parametrize("library", ["open_clip", "timm"])
def test_attention_in_bf16_is_flash_attention(library: str) -> None:
    """No other kernel is allowed here, so that another raises."""
    names = {"open_clip": "ViT-B-16", "timm": "vit_small_patch16_224"}
    backbone = {"library": library, "name": names[library]}
    model = ModelConfig.model_validate({"backbone": backbone, "image": {"size_px": 224}})
    embedder = build_embedder(model, weights=False).cuda().train()
    images_BCHW = torch.randn(2, 3, 224, 224, device="cuda")
    with torch.autocast("cuda", torch.bfloat16), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        embedder(images_BCHW).sum().backward()
