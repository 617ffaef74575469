"""Backbone and head as one; saving, loading, reduction; shapes from the file to the embedding."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from small_models import TINY_CLIP, model_config
from torch import nn

from guie.base.errors import UserError
from guie.config import RunConfig
from guie.config.loading import to_yaml
from guie.config.model import ModelConfig
from guie.data.dataset import as_batch
from guie.models import open_model
from guie.models.embedder import build_embedder
from guie.models.opening import NoRandomNumbers
from guie.models.weights import WeightsMetadata, read_metadata, save_model, save_weights
from guie.rows.embedding import embed_files


def save_run(
    folder: Path, model: ModelConfig, size_px: int, stride_px: int | None = None
) -> nn.Module:
    """A run whose last stage was at this size and stride; its embedder, as it was trained."""
    run = {"name": "t", "data": {"manifest": "m.csv"}, "model": model.model_dump()}
    run["stages"] = [{"epochs": 1.0, "lr": {"head": 1e-3, "classes": 0.0}}]
    config = RunConfig.model_validate(run)
    (folder / "config.yaml").write_text(to_yaml(config.model_dump()))
    embedder = build_embedder(config.model)
    embedder.backbone.set_image_size(size_px, stride_px)
    save_model(embedder, folder / "model.safetensors")
    return embedder.eval()


@pytest.mark.parametrize(
    ("configured_px", "size_px", "stride_px"),
    [(None, 96, None), (None, 62, 6), (6, 44, 4), (6, 64, None)],
    ids=["plain", "overlapping", "another stride", "plain again"],
)
def test_a_saved_run_loads_at_its_last_size_and_stride(
    configured_px: int | None, size_px: int, stride_px: int | None, tmp_path: Path
) -> None:
    model = model_config({**TINY_CLIP, "stride_px": configured_px}, 62 if configured_px else 64)
    embedder = save_run(tmp_path, model, size_px, stride_px)
    loaded = open_model(tmp_path)
    assert loaded.config.image.mean is None  # until it is a member of an ensemble
    assert loaded.self_contained().model.image.mean == list(loaded.embedder.backbone.mean)
    assert loaded.preprocess.size_px == loaded.config.image.size_px == size_px
    assert loaded.config.backbone.stride_px == loaded.embedder.backbone.stride_px == stride_px
    images = torch.randn(2, 3, size_px, size_px)
    assert torch.equal(loaded.embedder(images), embedder(images))


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such run folder"):
        open_model(str(tmp_path / "absent"))
    with pytest.raises(UserError, match="not a run folder"):
        open_model(str(tmp_path))
    embedder = save_run(tmp_path, model_config(TINY_CLIP), 32)
    save_file(embedder.state_dict(), tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"model.safetensors: states no image size"):
        open_model(tmp_path)


def test_metadata_are_read_as_they_were_written(tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    for metadata in (WeightsMetadata(62, 6, "frozen-01.safetensors"), WeightsMetadata(64)):
        save_weights({"a": torch.ones(1)}, file, metadata)
        assert read_metadata(file) == metadata
    with safe_open(file, "pt") as stored:
        assert stored.metadata() == {"guie": '{"size_px": 64, "stride_px": null, "frozen": null}'}


def test_frozen_weights_lie_beside_once(tmp_path: Path) -> None:
    backbone = {"library": "timm", "name": "resnet10t"}  # with batch statistics
    model = model_config(backbone, head={"dim": 16, "norm": "bn"})
    embedder = save_run(tmp_path, model, 32)
    embedder.backbone.requires_grad_(False)
    images = torch.randn(2, 3, 32, 32)
    expected = embedder(images)
    for name in ("model", "last"):
        save_model(embedder, tmp_path / f"{name}.safetensors")
        with torch.no_grad():
            embedder.head.linear.weight.add_(1)
    (frozen,) = tmp_path.glob("frozen-*.safetensors")
    assert set(load_file(frozen)) == {f"backbone.{name}" for name in embedder.backbone.state_dict()}
    assert torch.equal(open_model(tmp_path).embedder(images), expected)
    content = bytearray(frozen.read_bytes())
    content[-1] ^= 1
    frozen.write_bytes(content)
    with pytest.raises(UserError, match="damaged"):
        open_model(tmp_path)
    frozen.unlink()
    with pytest.raises(UserError, match="copy or move both"):
        open_model(tmp_path)


@pytest.mark.parametrize("linear", ["shared", "separate"])
def test_a_run_with_branches_loads_as_one_linear(linear: str, tmp_path: Path) -> None:
    head = {"dim": 16, "norm": "bn", "branches": {"linear": linear, "dropouts": [0.1, 0.2, 0.4]}}
    embedder = save_run(tmp_path, model_config(TINY_CLIP, head=head), 32)
    loaded = open_model(tmp_path)
    assert type(loaded.embedder.head.linear) is nn.Linear and loaded.config.head.branches is None
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(loaded.embedder(images), embedder(images), atol=1e-6, rtol=0)
    again = build_embedder(loaded.config, weights=False)
    again.load_state_dict(loaded.embedder.state_dict())  # the config tells what the weights are


def test_a_reduction_comes_behind_unit_length_and_before_it(tmp_path: Path) -> None:
    model = model_config(TINY_CLIP, head={"dim": 16, "reduced_dim": 4})
    embedder = save_run(tmp_path, model, 32)
    assert embedder.dim == 4
    assert not [name for name, _ in embedder.named_parameters() if "reduction" in name]
    images = torch.randn(5, 3, 32, 32)
    unit_BD = F.normalize(embedder.head(embedder.backbone(images)), dim=-1)
    first_B4 = F.normalize(unit_BD[:, :4], dim=-1)
    torch.testing.assert_close(embedder(images), first_B4)  # before one is fitted

    mean_D, weight_DR = unit_BD.mean(dim=0), torch.randn(16, 4)
    fitted = {"reduction.mean_D": mean_D, "reduction.weight_DR": weight_DR}
    embedder.load_state_dict({**embedder.state_dict(), **fitted})
    expected = torch.stack([(unit - mean_D) @ weight_DR for unit in unit_BD])
    expected = expected / expected.square().sum(1, keepdim=True).sqrt()
    torch.testing.assert_close(embedder(images), expected, atol=1e-5, rtol=0)
    save_model(embedder, tmp_path / "model.safetensors")
    assert torch.equal(open_model(tmp_path).embedder(images), embedder(images))


def test_a_model_that_is_loaded_over_draws_no_random_numbers() -> None:
    before = torch.get_rng_state()
    with NoRandomNumbers():
        layers = [
            *(nn.Linear(9, 9), nn.Conv2d(3, 9, 3), nn.Embedding(9, 9)),
            *(nn.MultiheadAttention(9, 3), nn.init.trunc_normal_(torch.full((9,), 5.0))),
        ]
    assert len(layers) == 5 and torch.equal(torch.get_rng_state(), before)
    nn.Linear(9, 9)
    assert not torch.equal(torch.get_rng_state(), before)


def test_shapes_reach_the_head_from_the_file(tmp_path: Path) -> None:
    """The loader of validation and embedding gives what the exported module makes of the image."""
    head = {"dim": 16, "norm": "bn_plain", "image_shape": True}
    save_run(tmp_path, model_config(TINY_CLIP, head=head), 32)
    model = open_model(tmp_path)
    model.embedder.head.linear.weight.data[:, -3:] *= 50  # so that shapes are seen
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    files = []
    for width, height in [(300, 200), (200, 300), (40, 40), (400, 40)]:
        files.append(tmp_path / f"{width}.{height}.png")
        Image.fromarray(noise).resize((width, height)).save(files[-1])
    found = embed_files(Accelerator(), model.embedder, model.preprocess, files, workers=0)
    images = [as_batch(np.asarray(Image.open(file))) for file in files]
    with torch.no_grad():
        expected = torch.cat([model.scored(image) for image in images])
    torch.testing.assert_close(torch.from_numpy(found), expected, atol=1e-5, rtol=0)
    assert (expected @ expected.T).fill_diagonal_(0).max() < 0.99
