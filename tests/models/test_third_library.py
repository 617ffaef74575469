"""A third library's backbone is one subclass: it trains, takes adapters, and becomes a submission."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torchvision.models.vision_transformer import VisionTransformer

import train
from exported import check_exported
from guie.base.errors import UserError
from guie.config.loading import to_yaml
from guie.config.model import LIBRARIES, BackboneConfig
from guie.export.hub import write_hub_folder
from guie.models import open_model
from guie.models.backbones import Backbone, build_backbone, register
from guie.models.backbones.base import BACKBONES, Block, Branch, VitStructure, grid_side


class TorchvisionVit(Backbone):
    """torchvision's vision transformers, by the arguments of their class."""

    library = "torchvision"
    blocks = r"layers\.encoder_layer_(\d+)"
    top = frozenset({"ln"})

    @classmethod
    def build(cls, config: BackboneConfig, size_px: int | None, weights: Path | None) -> Backbone:
        from torchvision.models import vision_transformer

        tower = getattr(vision_transformer, config.name)(**config.kwargs)
        if weights:
            tower.load_state_dict(torch.load(weights, weights_only=True))
        tower.heads = nn.Identity()
        native = {"size": tower.image_size, "mean": [0.485, 0.456, 0.406], "std": [0.25] * 3}
        return cls(tower, native, size_px, config.stride_px)

    @property
    def patch_px(self) -> int:
        return self.tower.patch_size

    def resize(self, size_px: int, stride_px: int | None) -> None:
        from timm.layers import resample_abs_pos_embed

        tower, encoder = self.tower, self.tower.encoder
        if stride_px != tower.patch_size:
            raise UserError("stride_px: torchvision's patches do not overlap; remove it")
        side, old = grid_side(size_px, tower.patch_size, stride_px), encoder.pos_embedding
        resampled = resample_abs_pos_embed(old.detach(), [side, side])
        encoder.pos_embedding = nn.Parameter(resampled, requires_grad=old.requires_grad)
        tower.image_size, tower.seq_length = size_px, 1 + side**2

    @property
    def prefix_tokens(self) -> int:
        return 1

    def structure(self) -> VitStructure:
        encoder = self.tower.encoder
        blocks = [
            Block(
                module,
                Branch(module.ln_1, module.self_attention, module.dropout),
                Branch(module.ln_2, module.mlp, module.mlp),
            )
            for module in encoder.layers
        ]
        return VitStructure(
            width=self.tower.hidden_dim,
            blocks=blocks,
            patches=self.tower.conv_proj,
            entry=encoder.dropout,
            prefix=1,
            norm=encoder.ln,
            pooling="token",
            takes_tokens=True,
            class_position_D=self.class_position_D,
        )

    def class_position_D(self) -> Tensor:
        return self.tower.encoder.pos_embedding[0, 0]


SIZES = {"image_size": 32, "patch_size": 8, "num_layers": 2, "num_heads": 2}
VIT = {
    "library": "torchvision",
    "name": "VisionTransformer",
    "kwargs": {**SIZES, "hidden_dim": 32, "mlp_dim": 64},
}
LORA = {"kind": "lora", "rank": 2, "targets": ["q", "v", "out", "mlp"]}


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    register(TorchvisionVit)
    yield
    del BACKBONES["torchvision"]
    LIBRARIES.remove("torchvision")


def trained(folder: Path, manifest: Path, lr: dict[str, Any], model: dict[str, Any]) -> Path:
    """A run of two stages, the second at another size; its folder."""
    stage = {"epochs": 0.2, "lr": {"head": 1e-3, "classes": 1e-2, **lr}}
    config = {
        "name": "third",
        "out": str(folder),
        "data": {"manifest": str(manifest), "workers": 0},
        "model": {"backbone": VIT, "image": {"size_px": 32}, "head": {"dim": 16}, **model},
        "train": {"batch_size": 24},
        "stages": [{"name": "small", **stage}, {"name": "large", "size_px": 40, **stage}],
    }
    (folder / "c.yaml").write_text(to_yaml(config))
    return train.main(["--config", str(folder / "c.yaml")])


@pytest.mark.parametrize(
    ("lr", "model"),
    [
        (
            {"adapters": 1e-2, "prompts": 1e-2},
            {
                "adapters": [{"kind": "stochastic", "dim": 4}, LORA],
                "prompts": {"kind": "pool", "size": 4, "length": 2},
            },
        ),
        ({"blocks": {0: 0.0, 1: 1e-2}}, {}),
        ({"backbone": 1e-3}, {"layers": {"of": ["encoder.layers.encoder_layer_0"], "pool": "gem"}}),
    ],
    ids=["adapters and prompts", "a block alone", "fine-tuned, layers"],
)
def test_it_trains_and_becomes_a_submission(
    lr: dict, model: dict, toy_manifest: Path, tmp_path: Path
) -> None:
    run = trained(tmp_path, toy_manifest, lr, model)
    if "blocks" in lr:
        own = load_file(run / "model.safetensors")  # without what is frozen
        names = {name for name in own if name.startswith("backbone.")}
        assert names and all(".encoder_layer_1." in name for name in names)
    opened = open_model(run)
    assert opened.members[0].model.backbone.library == "torchvision"
    assert opened.preprocess.size_px == 40
    random = build_backbone(BackboneConfig.model_validate(VIT), 40).tower.state_dict()
    assert set(opened.embedder.backbone.tower.state_dict()) <= set(random)
    check_exported(opened.embedder, opened.preprocess, tmp_path)
    with pytest.raises(UserError, match="torchvision loads no folder from the hub"):
        write_hub_folder(opened, tmp_path / "hub", {})


def test_its_weights_come_from_a_file_alone(tmp_path: Path) -> None:
    config = BackboneConfig.model_validate(VIT)
    whole = VisionTransformer(**config.kwargs)
    torch.save(whole.state_dict(), tmp_path / "w.pth")
    found = build_backbone(config.model_copy(update={"pretrained": str(tmp_path / "w.pth")}))
    torch.testing.assert_close(found.tower.encoder.ln.weight, whole.encoder.ln.weight)
    assert torch.equal(found.tower.conv_proj.weight, whole.conv_proj.weight)
    with pytest.raises(UserError, match="torchvision has no tags; give a weights file"):
        build_backbone(config.model_copy(update={"pretrained": "imagenet"}))
