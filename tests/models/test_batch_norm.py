"""Batch normalisation of a backbone: which layers train, by the name of a module, and in which mode."""

from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from small_models import TINY_VIT, model_config
from torch import nn

from guie.base.errors import UserError
from guie.models.backbones.base import batch_norms
from guie.models.embedder import Embedder, build_embedder
from guie.models.weights import frozen_names

RESNET18 = {"channels": [64] * 4}  # narrower, with as many layers
OF_LAYER4 = {f"layer4.{name}" for name in ("0.bn1", "0.bn2", "0.downsample.1", "1.bn1", "1.bn2")}


@pytest.fixture(scope="module")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Embedder]:
    """Open a pretrained ResNet-18 with a stage's `batch_norm`."""
    file = tmp_path_factory.mktemp("resnet") / "w.safetensors"
    torch.manual_seed(0)
    save_file(timm.create_model("resnet18", **RESNET18).state_dict(), file)
    known = {"library": "timm", "name": "resnet18", "kwargs": RESNET18, "pretrained": str(file)}

    def opened(setting: Any) -> Embedder:
        embedder = build_embedder(model_config(known, head={"dim": 8}))
        embedder.backbone.set_batch_norm(setting)
        return embedder

    return opened


def moved(embedder: Embedder) -> set[str]:
    """BatchNorm layers whose statistics a forward pass changes."""
    norms = batch_norms(embedder.backbone.tower)
    before = {name: norm.running_mean.clone() for name, norm in norms.items()}
    embedder(torch.randn(4, 3, 32, 32))
    return {
        name for name, norm in norms.items() if not torch.equal(norm.running_mean, before[name])
    }


@pytest.mark.parametrize(
    ("setting", "count"),
    [
        ("frozen", 0),
        ("train", 20),
        ("synced", 20),
        ({"layer4": "train"}, 5),
        ({"layer4": "train", "layer4.0": "frozen"}, 2),
        ({"layer": "train", "layer1": "train"}, None),
    ],
    ids=str,
)
def test_so_many_of_20_layers_train(setting: Any, count: int | None, resnet: Callable) -> None:
    if count is None:  # half of a name names nothing
        with pytest.raises(UserError, match="no batch normalisation in 'layer'; it has bn1, layer"):
            resnet(setting).train()
        vit = build_embedder(model_config(TINY_VIT, 224))
        with pytest.raises(UserError, match="VisionTransformer has no batch normalisation; remove"):
            vit.backbone.set_batch_norm("train")
            vit.train()
        return
    embedder = resnet(setting).train()
    found = moved(embedder)
    assert len(batch_norms(embedder.backbone.tower)) == 20 and len(found) == count
    assert count != 5 or found == OF_LAYER4
    assert not moved(embedder.eval())
    embedder.backbone.requires_grad_(False)
    frozen = {name for name in frozen_names(embedder) if name.endswith("running_var")}
    assert len(frozen) == 20 - count  # those that train are no frozen weights
    embedder.backbone.set_batch_norm("frozen")  # of the next stage
    assert not moved(embedder.train())


def test_synced_layers_of_one_process_compute_as_those_that_train() -> None:
    """Also timm's layers that hold an activation."""
    config = model_config({"library": "timm", "name": "test_efficientnet"}, head=None)
    torch.manual_seed(0)
    one, other = build_embedder(config), build_embedder(config)
    other.load_state_dict(one.state_dict())
    one.backbone.set_batch_norm("train")
    other.backbone.set_batch_norm("synced")
    other.backbone.set_batch_norm("synced")  # in the next stage
    synced = batch_norms(other.backbone.tower).values()
    assert synced and all(isinstance(layer, nn.SyncBatchNorm) for layer in synced)
    images = torch.randn(4, 3, 64, 64)
    for mode in (True, False):
        torch.testing.assert_close(other.train(mode)(images), one.train(mode)(images))
    torch.testing.assert_close(other.state_dict(), one.state_dict())
