"""Backbone and head as one; saving, loading, reduction; shapes from the file to the embedding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from small_models import TINY_CLIP, TINY_VIT, model_config
from torch import nn

from guie.base.errors import UserError
from guie.config import RunConfig
from guie.config.loading import to_yaml
from guie.config.model import ModelConfig
from guie.data.dataset import as_batch
from guie.models import open_model
from guie.models.backbones import build_backbone
from guie.models.embedder import build_embedder, build_preprocess
from guie.models.opening import NoRandomNumbers
from guie.models.weights import WeightsMetadata, read_metadata, save_model, save_weights
from guie.rows.embedding import embed_files


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
    assert loaded.preprocess.size_px == loaded.config.image.size_px == size_px
    assert loaded.config.backbone.stride_px == loaded.embedder.backbone.stride_px == stride_px
    images = torch.randn(2, 3, size_px, size_px)
    assert torch.equal(loaded.embedder(images), embedder(images))


def test_metadata_are_read_as_they_were_written(tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    for metadata in (WeightsMetadata(62, 6, "frozen-01.safetensors"), WeightsMetadata(64)):
        save_weights({"a": torch.ones(1)}, file, metadata)
        assert read_metadata(file) == metadata
    with safe_open(file, "pt") as stored:
        assert stored.metadata() == {"guie": '{"size_px": 64, "stride_px": null, "frozen": null}'}


@pytest.mark.parametrize("source", ["run", "library"])
def test_a_model_of_one_member_states_what_it_is_built_from(source: str, tmp_path: Path) -> None:
    save_run(tmp_path, model_config(TINY_CLIP, 64), 48)
    word = "open_clip:guie-tiny" if source == "library" else str(tmp_path)
    model = open_model(word, 48)
    (member,) = model.members
    assert member.source == word and member.model is model.config
    assert (member.run is None) == (source == "library")
    assert member.model.image.size_px == 48 and member.model.image.mean is None
    member = model.self_contained()
    assert member.model.image.mean == list(model.embedder.backbone.mean)


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


def test_embed_is_the_heads_part() -> None:
    head = {"dim": 16, "norm": "bn", "image_shape": True}
    embedder = build_embedder(model_config(TINY_CLIP, head=head)).eval()
    images, shapes = torch.randn(4, 3, 32, 32), torch.rand(4, 3)
    features = embedder.backbone(images)
    expected = F.normalize(embedder.head(features, shapes), dim=-1)
    torch.testing.assert_close(embedder.embed(features, shapes), expected)
    torch.testing.assert_close(embedder(images, shapes), expected)
    assert not torch.allclose(embedder(images, shapes + 1), expected)


def test_a_reduction_comes_behind_unit_length_and_before_it(tmp_path: Path) -> None:
    model = model_config(TINY_CLIP, head={"dim": 16, "reduced_dim": 4})
    embedder = build_embedder(model).eval()
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


def test_what_no_file_holds_is_computed_anew(tmp_path: Path) -> None:
    """Rotary position grids are buffers that are not saved."""
    small = {"embed_dim": 48, "depth": 1, "num_heads": 2}
    model = model_config(
        {"library": "timm", "name": "eva02_tiny_patch14_224", "kwargs": small}, 112
    )
    embedder = save_run(tmp_path, model, 112)
    assert len(embedder.state_dict()) < len([*embedder.parameters(), *embedder.buffers()])
    images = torch.randn(2, 3, 112, 112)
    with torch.no_grad():
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


def test_a_reduction_is_saved_with_the_run(tmp_path: Path) -> None:
    model = model_config(TINY_CLIP, head={"dim": 16, "reduced_dim": 4})
    save_run(tmp_path, model, 32)
    file = tmp_path / "model.safetensors"
    fitted = {"reduction.mean_D": torch.randn(16), "reduction.weight_DR": torch.randn(16, 4)}
    save_weights(load_file(file) | fitted, file, WeightsMetadata(32))
    loaded = open_model(tmp_path).embedder
    assert loaded.dim == 4 and torch.equal(loaded.reduction.mean_D, fitted["reduction.mean_D"])


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


def test_weights_that_training_did_not_write_are_refused(tmp_path: Path) -> None:
    embedder = save_run(tmp_path, model_config(TINY_CLIP), 32)
    save_file(embedder.state_dict(), tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"model.safetensors: states no image size"):
        open_model(tmp_path)
