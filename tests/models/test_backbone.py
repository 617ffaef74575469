"""Backbones of both libraries behind one surface."""

from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from small_models import TINY_CLIP, model_config

from guie.base.errors import UserError
from guie.config.model import BackboneConfig
from guie.data.images import open_as_host
from guie.models import open_model
from guie.models.backbones import build_backbone
from guie.models.backbones.open_clip import OpenClip, create_clip
from guie.models.embedder import build_embedder


@pytest.mark.parametrize(
    ("library", "name", "tag"),
    [("open_clip", "ViT-B-16-SigLIP", "webli"), ("timm", "vit_base_patch16_siglip_224", "webli")],
)
def test_statistics_are_the_tags_also_without_its_weights(
    library: str, name: str, tag: str
) -> None:
    kwargs = {"device": "meta"} if library == "open_clip" else {}
    config = BackboneConfig(library=library, name=name, pretrained=tag, kwargs=kwargs)
    with torch.device("meta"):  # a whole base model, without its numbers
        backbone = build_backbone(config, weights=False)  # as a trained run is loaded again
    assert backbone.mean == backbone.std == [0.5, 0.5, 0.5]


def test_pooled_features_leave_out_clips_projection() -> None:
    clip = create_clip(BackboneConfig(**TINY_CLIP), None)
    images = torch.randn(2, 3, 64, 64)
    proj = clip.visual.proj.detach().clone()
    projected = clip.visual(images)
    pooled = OpenClip.of_clip(clip, BackboneConfig(**TINY_CLIP, features="pooled"), 64)
    torch.testing.assert_close(pooled(images) @ proj, projected)


def test_real_weights_load_and_see(real_folder: Path) -> None:
    file = real_folder / "weights/vit_tiny_patch16_224.augreg_in21k_ft_in1k.fp16.safetensors"
    model = open_model(f"timm:vit_tiny_patch16_224:{file}", size_px=112, fit="pad")
    stored = load_file(file)
    block = model.embedder.backbone.tower.blocks[3].mlp.fc1.weight
    torch.testing.assert_close(block, stored["blocks.3.mlp.fc1.weight"].float())
    cars = sorted((real_folder / "data/mini-uned/images/cars").iterdir())[:2]
    files = [file for folder in cars for file in sorted(folder.iterdir())[:2]]
    images = [torch.from_numpy(np.array(open_as_host(f))).permute(2, 0, 1)[None] for f in files]
    with torch.no_grad():
        emb = model.embedder(torch.cat([model.preprocess(image) for image in images]))
        assert emb.shape == (4, 192) and (emb @ emb.T).min() > 0  # four cars look alike
        model.embedder.backbone.set_image_size(112, 12)  # overlapping patches
        again = model.embedder(torch.cat([model.preprocess(image) for image in images]))
    assert ((emb @ again.T).argmax(dim=1) == torch.arange(4)).all()


@pytest.mark.parametrize("reset", [[], ["layer4"], None], ids=["none", "last", "all"])
def test_batch_statistics_are_learned_of_what_begins_anew(
    reset: list[str] | None, tmp_path: Path
) -> None:
    """And stay those of the pretraining elsewhere; a head's own learn always."""
    config = {"library": "timm", "name": "resnet10t"}
    if reset is not None:
        stored = timm.create_model("resnet10t").state_dict()
        save_file(stored, tmp_path / "w.safetensors")
        config |= {"pretrained": str(tmp_path / "w.safetensors"), "reset": reset}
        tower = build_backbone(BackboneConfig(**config)).tower
        moved = {n for n, p in tower.named_parameters() if not torch.equal(stored[n], p)}
        assert bool(moved) == bool(reset) and all(n.startswith("layer4") for n in moved)
        with pytest.raises(UserError, match="has no weights in 'layer'"):
            build_backbone(BackboneConfig(**{**config, "reset": ["layer"]}))
    embedder = build_embedder(model_config(config, head={"norm": "bn"})).train()
    tower = embedder.backbone.tower
    norms = {n: m for n, m in tower.named_modules() if isinstance(m, torch.nn.BatchNorm2d)}
    before = {name: norm.running_mean.clone() for name, norm in norms.items()}
    embedder(torch.randn(4, 3, 32, 32))
    moved = {n for n, norm in norms.items() if not torch.equal(norm.running_mean, before[n])}
    new = ("",) if reset is None else tuple(reset)
    assert moved == {name for name in norms if name.startswith(new)} and embedder.head.norm.training
    embedder.eval()
    assert not any(norm.training for norm in norms.values())
