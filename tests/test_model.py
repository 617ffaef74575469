"""Backbones of both libraries behind one surface; heads; saving and loading."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import open_clip
import pytest
import timm
import torch
import yaml
from safetensors.torch import load_file, save_file
from torch import nn

from guie.config import RunConfig, load_config
from guie.config.model import BackboneConfig, HeadConfig, ModelConfig
from guie.errors import UserError
from guie.images import open_as_host
from guie.model import build_embedder, build_preprocess, load_model, open_model, save_model
from guie.model.backbone import backbone_of_clip, build_backbone, create_clip

TINY_CLIP = {"library": "open_clip", "name": "guie-tiny"}
TINY_VIT = {
    "library": "timm",
    "name": "vit_tiny_patch16_224",
    "kwargs": {"embed_dim": 48, "depth": 2, "num_heads": 3},
}


def model_config(backbone: dict, size_px: int = 32, **more) -> ModelConfig:
    return ModelConfig.model_validate({"backbone": backbone, "image": {"size_px": size_px}, **more})


@pytest.mark.parametrize("backbone", [TINY_CLIP, TINY_VIT], ids=["open_clip", "timm"])
def test_embeddings_are_unit_vectors_of_the_heads_dimension(backbone: dict) -> None:
    torch.manual_seed(0)
    embedder = build_embedder(model_config(backbone)).eval()
    emb = embedder(torch.randn(2, 3, 32, 32))
    assert emb.shape == (2, 64) and emb.dtype == torch.float32
    torch.testing.assert_close(emb.norm(dim=1), torch.ones(2))


def test_without_a_head_the_dimension_is_the_backbones() -> None:
    assert build_embedder(model_config(TINY_CLIP, head=None)).dim == 128
    assert build_embedder(model_config(TINY_VIT, head=None)).dim == 48


def test_statistics_are_the_towers_own() -> None:
    clip = build_backbone(BackboneConfig(**TINY_CLIP))
    assert clip.mean == list(open_clip.OPENAI_DATASET_MEAN) and clip.size_px == 64
    vit = build_backbone(BackboneConfig(**TINY_VIT))
    assert vit.mean == [0.5, 0.5, 0.5] and vit.size_px == 224


def test_pooled_features_leave_out_clips_projection() -> None:
    clip = create_clip(BackboneConfig(**TINY_CLIP), None)
    images = torch.randn(2, 3, 64, 64)
    proj = clip.visual.proj.detach().clone()
    projected = clip.visual(images)
    pooled = backbone_of_clip(clip, BackboneConfig(**TINY_CLIP, features="pooled"), 64)
    torch.testing.assert_close(pooled(images) @ proj, projected)


@pytest.mark.parametrize("backbone", [TINY_CLIP, TINY_VIT], ids=["open_clip", "timm"])
def test_image_size_can_change_and_change_back(backbone: dict) -> None:
    tower = build_backbone(BackboneConfig(**backbone), 64).eval()
    images = torch.randn(1, 3, 64, 64)
    before = tower(images)
    tower.set_image_size(64)
    torch.testing.assert_close(tower(images), before)  # the same size changes nothing
    tower.set_image_size(96)
    assert tower(torch.randn(1, 3, 96, 96)).shape == before.shape


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


def test_a_size_that_no_patch_fits_is_refused() -> None:
    with pytest.raises(UserError, match="multiple of the patch size 8"):
        build_backbone(BackboneConfig(**TINY_CLIP), 60)


def test_batch_statistics_of_the_backbone_stay() -> None:
    config = {"library": "timm", "name": "resnet10t", "kwargs": {}}
    embedder = build_embedder(model_config(config, head={"norm": "bn"})).train()
    bn = embedder.backbone.tower.bn1
    before = bn.running_mean.clone()
    embedder(torch.randn(4, 3, 32, 32))
    torch.testing.assert_close(bn.running_mean, before)
    assert embedder.head.norm.training  # the head's own learns


@pytest.mark.parametrize(("norm", "kind"), [("l2", None), ("bn", nn.BatchNorm1d)])
def test_heads(norm: str, kind: type | None) -> None:
    embedder = build_embedder(model_config(TINY_VIT, head=HeadConfig(norm=norm, dim=16)))
    assert embedder.dim == 16
    assert kind is None or isinstance(embedder.head.norm, kind)


def test_a_saved_run_loads_at_its_last_size(tmp_path: Path) -> None:
    run = {
        "name": "t",
        "data": {"manifest": "m.csv"},
        "model": model_config(TINY_CLIP, 64).model_dump(),
        "stages": [{"epochs": 1.0, "lr": {"head": 1e-3}}],
    }
    config = RunConfig.model_validate(run)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config.model_dump()))
    embedder = build_embedder(config.model).eval()
    embedder.backbone.set_image_size(96)
    save_model(embedder, tmp_path / "model.safetensors", 96)
    loaded = load_model(tmp_path)
    assert loaded.preprocess.size_px == loaded.config.image.size_px == 96
    images = torch.randn(2, 3, 96, 96)
    torch.testing.assert_close(loaded.embedder(images), embedder(images))


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such run folder"):
        open_model(str(tmp_path / "absent"))
    with pytest.raises(UserError, match="not a run folder"):
        open_model(str(tmp_path))


def test_the_config_may_state_other_statistics() -> None:
    config = model_config(TINY_CLIP).model_copy(
        update={"image": model_config(TINY_CLIP).image.model_copy(update={"mean": [0.0] * 3})}
    )
    preprocess = build_preprocess(config, build_backbone(config.backbone, 32), 32)
    assert preprocess.mean.abs().max() == 0


@pytest.mark.parametrize("name", ["vit_h14", "vit_l14_336"])
def test_the_ready_configs_name_weights_that_exist(name: str) -> None:
    config = load_config(Path(__file__).parents[1] / f"configs/{name}.yaml", RunConfig)
    backbone = config.model.backbone
    assert (backbone.name, backbone.pretrained) in open_clip.list_pretrained()
    patch_px = open_clip.get_model_config(backbone.name)["vision_cfg"]["patch_size"]
    sizes = {config.model.image.size_px} | {s.size_px for s in config.stages if s.size_px}
    assert all(size % patch_px == 0 for size in sizes)
