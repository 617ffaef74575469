"""Backbones of both libraries behind one surface."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import open_clip
import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from small_models import TINY_CLIP, TINY_VIT, model_config

from guie.base.errors import UserError
from guie.config import RunConfig, load_config
from guie.config.model import BackboneConfig
from guie.data.images import open_as_host
from guie.models import open_model
from guie.models.backbones import build_backbone
from guie.models.backbones.open_clip import OpenClip, create_clip
from guie.models.embedder import build_embedder


def test_statistics_are_the_towers_own() -> None:
    clip = build_backbone(BackboneConfig(**TINY_CLIP))
    assert clip.mean == list(open_clip.OPENAI_DATASET_MEAN) and clip.size_px == 64
    vit = build_backbone(BackboneConfig(**TINY_VIT))
    assert vit.mean == [0.5, 0.5, 0.5] and vit.size_px == 224


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


def test_weights_come_from_a_file_as_from_a_hub(tmp_path: Path) -> None:
    clip = create_clip(BackboneConfig(**TINY_CLIP), None)
    save_file({k: v.contiguous() for k, v in clip.state_dict().items()}, tmp_path / "c.safetensors")
    loaded = build_backbone(
        BackboneConfig(**TINY_CLIP, pretrained=str(tmp_path / "c.safetensors")), 64
    )
    torch.testing.assert_close(loaded.tower.state_dict(), clip.visual.state_dict())

    vit = timm.create_model(TINY_VIT["name"], **TINY_VIT["kwargs"])  # with its classifier
    save_file(vit.state_dict(), tmp_path / "v.safetensors")
    loaded = build_backbone(
        BackboneConfig(**TINY_VIT, pretrained=str(tmp_path / "v.safetensors")), 224
    )
    torch.testing.assert_close(loaded.tower.patch_embed.proj.weight, vit.patch_embed.proj.weight)
    torch.testing.assert_close(loaded.tower.norm.weight, vit.norm.weight)


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


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": "no_such_model"}, "no_such_model"),
        ({"pretrained": "weights/absent.safetensors"}, "no such weights file"),
        ({"pretrained": "no_such_tag"}, "no_such_tag"),
        ({"kwargs": {"no_such_argument": 1}}, "no_such_argument"),
    ],
)
@pytest.mark.parametrize("backbone", [TINY_CLIP, TINY_VIT], ids=["open_clip", "timm"])
def test_a_bad_backbone_is_named(backbone: dict, change: dict, said: str) -> None:
    with pytest.raises(UserError, match=said):
        build_backbone(BackboneConfig(**{**backbone, **change}))


@pytest.mark.parametrize("reset", [[], ["layer4"], None], ids=["none", "last", "all"])
def test_batch_statistics_are_learned_of_what_begins_anew(
    reset: list[str] | None, tmp_path: Path
) -> None:
    """And stay those of the pretraining elsewhere; a head's own learn always."""
    config = {"library": "timm", "name": "resnet10t"}
    if reset is not None:
        file = tmp_path / "w.safetensors"
        save_file(timm.create_model("resnet10t").state_dict(), file)
        config |= {"pretrained": str(file), "reset": reset}
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


@pytest.mark.parametrize("name", ["vit_h14", "vit_l14_336"])
def test_the_ready_configs_name_weights_that_exist(name: str) -> None:
    config = load_config(Path(__file__).parents[2] / f"configs/{name}.yaml", RunConfig)
    backbone = config.model.backbone
    assert (backbone.name, backbone.pretrained) in open_clip.list_pretrained()
    patch_px = open_clip.get_model_config(backbone.name)["vision_cfg"]["patch_size"]
    sizes = {config.model.image.size_px} | {s.size_px for s in config.stages if s.size_px}
    assert all(size % patch_px == 0 for size in sizes)
