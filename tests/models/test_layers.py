"""Features of a tower's own layers: what they are, how they pool, what no longer trains, what is refused."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import embed
import train
from guie.base.errors import UserError
from guie.config import RunConfig, config_from
from guie.config.model import BackboneConfig, LayersConfig
from guie.models import open_model
from guie.models.backbones import build_backbone
from guie.models.backbones.open_clip import create_clip
from guie.models.embedder import build_embedder
from guie.training.tasks.classification import projector
from tiny_runs import TINY_CLIP, bn_config

VIT, RESNET = "test_vit", "test_resnet"


def tower(name: str, library: str = "timm", **more):
    config = BackboneConfig.model_validate({"library": library, "name": name, **more})
    torch.manual_seed(0)
    return build_backbone(config, 64 if library == "timm" else 32).eval()


def images(side: int = 64) -> torch.Tensor:
    return torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(1))


def expected(places_BPC: torch.Tensor, pool: str) -> torch.Tensor:
    if pool == "gem":
        return (places_BPC.clamp(min=1e-6) ** 3).mean(1) ** (1 / 3)
    return {"avg": places_BPC.mean(1), "max": places_BPC.amax(1)}[pool]


@pytest.mark.parametrize("pool", ["avg", "max", "gem"])
def test_blocks_of_a_transformer_as_timm_gives_them(pool: str) -> None:
    backbone = tower(VIT)
    numbers = [0, len(backbone.tower.blocks) - 2]
    maps = backbone.tower.forward_intermediates(images(), indices=numbers, intermediates_only=True)
    wanted = torch.cat([expected(one.flatten(2).mT, pool) for one in maps], dim=1)
    backbone.take_layers(LayersConfig(of=[f"blocks.{n}" for n in numbers], pool=pool))
    torch.testing.assert_close(backbone(images()), wanted)
    assert backbone.dim == wanted.shape[1]


def test_maps_with_channels_last() -> None:
    small = {"depths": (1, 1, 1, 1), "embed_dim": 24}
    backbone = tower("swin_tiny_patch4_window7_224", kwargs=small)
    (wanted,) = backbone.tower.forward_intermediates(images(), indices=[1], intermediates_only=True)
    backbone.take_layers(LayersConfig(of=["layers.1"], pool="avg"))
    torch.testing.assert_close(backbone(images()), wanted.mean((2, 3)))


def test_a_token_behind_the_norm_is_the_one_that_timm_returns() -> None:
    """Of the last block what `forward` returns; of all blocks what timm's own taps return."""
    backbone = tower(VIT)
    torch.nn.init.normal_(backbone.tower.norm.weight)
    last = len(backbone.tower.blocks) - 1
    whole = backbone(images())
    taps = backbone.tower.forward_intermediates(
        images(), indices=[0, last], norm=True, intermediates_only=True
    )
    before = tower(VIT)
    before.take_layers(LayersConfig(of=[f"blocks.{last}"], pool="token"))
    backbone.take_layers(LayersConfig(of=[f"blocks.{last}"], pool="token", norm="after"))
    torch.testing.assert_close(backbone(images()), whole)
    assert not torch.allclose(before(images()), whole)
    backbone.take_layers(LayersConfig(of=["blocks.0", f"blocks.{last}"], norm="after"))
    torch.testing.assert_close(backbone(images()), torch.cat([t.mean((2, 3)) for t in taps], 1))


def test_a_token_behind_the_norm_is_the_one_that_open_clip_returns() -> None:
    backbone = tower("guie-tiny", "open_clip", features="pooled")
    torch.nn.init.normal_(backbone.tower.ln_post.weight)
    whole, blocks = backbone(images(32)), ["transformer.resblocks.0", "transformer.resblocks.3"]
    taps = backbone.tower.forward_intermediates(
        images(32), [0, 3], normalize_intermediates=True, output_extra_tokens=True
    )["image_intermediates_prefix"]
    backbone.take_layers(LayersConfig(of=blocks, pool="token", norm="after"))
    torch.testing.assert_close(backbone(images(32)), torch.cat([t[:, 0] for t in taps], 1))
    torch.testing.assert_close(
        backbone(images(32))[:, -backbone.tower.ln_post.weight.numel() :], whole
    )


def test_the_norm_trains_where_a_block_before_the_last_is_taken() -> None:
    layers = {"of": ["blocks.1"], "pool": "token", "norm": "after"}
    adapters = {"kind": "stochastic", "dim": 4}
    build_embedder(run_config(layers=layers, adapters={**adapters, "blocks": [0, 1]}).model)
    with pytest.raises(UserError, match="adapters or prompts come after the last of these layers"):
        build_embedder(run_config(layers=layers, adapters=adapters).model)
    config = run_config(layers=layers, head={"dim": 8})
    embedder = build_embedder(config.model)
    embedder(images()).sum().backward()
    tower_ = embedder.backbone.tower
    assert tower_.norm.weight.grad is not None and not list(tower_.blocks[-1].parameters())
    assert not embedder.backbone.layers.unused_parameters


@pytest.mark.parametrize(
    ("name", "layers", "message"),
    [
        (VIT, {"of": ["blocks.99"]}, "has no layer 'blocks.99'; it has blocks.0, blocks.1"),
        (RESNET, {"of": ["layer2"], "pool": "token"}, "layer2 has no class token; use avg"),
        (RESNET, {"of": ["layer2"], "norm": "after"}, "ResNet has no norm before its pooling"),
        (VIT, {"of": ["norm"], "norm": "after"}, "norm is no block, such as blocks.5; set it to"),
        (VIT, {"of": ["head_drop"]}, ""),
    ],
)
def test_what_is_no_layer_is_refused(name: str, layers: dict, message: str) -> None:
    backbone = tower(name)
    if message:
        with pytest.raises(UserError, match=message):
            backbone.take_layers(LayersConfig.model_validate(layers))
        return
    backbone.take_layers(LayersConfig.model_validate(layers))
    torch.testing.assert_close(backbone(images()), backbone.tower(images()))  # of rows
    backbone.take_layers(LayersConfig(of=["blocks.5"], pool="token"))
    with pytest.raises(UserError, match="or it was removed after other layers"):
        backbone.take_layers(LayersConfig(of=["blocks.5"], pool="token", norm="after"))


def run_config(**changes) -> RunConfig:
    model = {"backbone": {"library": "timm", "name": VIT}, "image": {"size_px": 64}, **changes}
    rates = {"backbone": 1e-4, "head": 1e-3, "classes": 1e-2}
    rates |= {part: 1e-3 for part in ("adapters", "prompts") if part in changes}
    values = {"name": "t", "data": {"manifest": "m.csv"}, "model": model, "stages": [{}]}
    return config_from(values | {"train": {"epochs": 1, "lr": rates}}, RunConfig)


@pytest.mark.parametrize(
    ("name", "layer", "side"),
    [
        (VIT, "blocks.2", 64),
        (RESNET, "layer2", 64),
        ("test_convnext", "stages.1", 64),
        ("vgg11_bn", "features.10", 32),
        ("test_efficientnet", "blocks.1", 64),
    ],
)
def test_what_lies_above_is_taken_out(name: str, layer: str, side: int) -> None:
    """Not computed, not kept, and the features are those of the whole tower."""
    # Else 100 M weights above the layer
    small = {"mlp_ratio": 0.01} if name.startswith("vgg") else {}
    config = BackboneConfig(library="timm", name=name, kwargs=small)
    backbone = build_backbone(config, side).eval()
    before = sum(p.numel() for p in backbone.tower.parameters())
    seen = {}
    hold = backbone.tower.get_submodule(layer).register_forward_hook(
        lambda module, given, output: seen.update(out=output)
    )
    given = images(side)
    backbone.tower(given)
    hold.remove()
    backbone.take_layers(LayersConfig(of=[layer], pool="max"))
    maps = seen["out"]
    wanted = maps.amax((2, 3)) if maps.dim() == 4 else maps[:, 1:].amax(1)
    torch.testing.assert_close(backbone(given), wanted)
    assert sum(p.numel() for p in backbone.tower.parameters()) < before
    backbone.set_image_size(side if name == VIT else side + 32)
    assert backbone(images(backbone.size_px)).shape == wanted.shape


def test_layers_between_embedding_and_loss_train_and_are_left_out(
    toy_manifest: Path, tmp_path: Path
) -> None:
    rates = {"head": 1e-3, "classes": 1e-2, "projector": 1e-3}
    stages = [{"epochs": 0.5, "lr": rates}]
    task = {"name": "classification", "projector": [24, 12]}
    config = bn_config(tmp_path, toy_manifest, {"batch_size": 24}, stages, task)
    torch.manual_seed(5)
    clip = create_clip(BackboneConfig.model_validate(TINY_CLIP))
    file = tmp_path / "clip.safetensors"
    save_file({k: v.contiguous() for k, v in clip.state_dict().items()}, file)
    words = ["--config", str(config), "--set", f"model.backbone.pretrained={file}"]
    words += ["--set", "model.layers={of: [transformer.resblocks.0], pool: max}"]
    run = train.main(words)
    model = open_model(run)
    kept = model.embedder.backbone.tower
    assert not list(kept.transformer.resblocks[1].parameters())
    assert torch.equal(kept.conv1.weight, clip.visual.conv1.weight)  # frozen
    assert not list(run.glob("frozen-*.safetensors"))  # but a reference
    assert model.embedder.dim == 64
    assert not any("projector" in name for name in model.embedder.state_dict())
    layers = projector(64, [24, 12])
    assert [type(layer).__name__ for layer in layers] == ["Linear", "ReLU", "Linear"]

    out = tmp_path / "E.npz"
    words = ["--manifest", str(toy_manifest), "--split", "test", "--workers", "0"]
    words += ["--layers", "transformer.resblocks.0", "--pool", "max", "--out", str(out)]
    embed.main(["--model", str(run), *words])
    assert np.load(out)["embedding"].shape[1] == model.embedder.backbone.dim
