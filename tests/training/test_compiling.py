"""Compiled and channels-last towers train as plain ones do, and resume."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch._dynamo.utils import counters

import train
from guie.base.errors import UserError
from guie.config import RunConfig, load_config
from guie.config.loading import to_yaml
from guie.models.embedder import build_embedder
from guie.training.stage import set_up_tower
from tiny_runs import assert_same_bits, interrupted_after, logged_losses

needs_compiler = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "g++")) is None, reason="torch.compile needs a C++ compiler"
)
SHORT_VIT = {"depth": 1, "embed_dim": 32, "num_heads": 2, "img_size": 32}


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
        yield


def write_config(folder: Path, manifest: Path, backbone: dict, **changes) -> Path:
    rates = {"head": 1e-3, "classes": 1e-2}
    config = {
        "name": "plain",
        "out": str(folder / "runs"),
        "log_every": "1 step",
        "checkpoint_every": "2 steps",
        "data": {"manifest": str(manifest), "workers": 0},
        "model": {"backbone": backbone, "image": {"size_px": 32}},
        "train": {"batch_size": 24, "lr": {"backbone": 1e-3, **rates}},
        "stages": [{"epochs": 0.5, "lr": {"backbone": 0.0}}, {"epochs": 1, "size_px": 48}],
        **changes,
    }
    path = folder / "c.yaml"
    path.write_text(to_yaml(config))
    return path


@pytest.mark.slow
@needs_compiler
def test_compiled_training_is_plain_training(toy_manifest: Path, tmp_path: Path) -> None:
    vit = {"library": "timm", "name": "test_vit", "kwargs": SHORT_VIT}
    words = ["--config", str(write_config(tmp_path, toy_manifest, vit, stages=[{"epochs": 1.5}]))]
    plain = train.main(words)
    counters.clear()
    compiled = train.main([*words, "--set", "compile=true", "--set", "name=compiled"])
    assert counters["stats"]["unique_graphs"] >= 1
    assert logged_losses(compiled) == pytest.approx(logged_losses(plain), rel=1e-4)
    names = [list(load_file(run / "last.safetensors")) for run in (plain, compiled)]
    assert names[0] == names[1]


@pytest.mark.slow
@needs_compiler
def test_a_compiled_run_resumes_to_the_same_bits(
    toy_manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut in the second stage, whose images are larger: and with features dropped in the tower."""
    vit = {"library": "timm", "name": "test_vit", "kwargs": SHORT_VIT | {"proj_drop_rate": 0.3}}
    words = ["--config", str(write_config(tmp_path, toy_manifest, vit)), "--set", "compile=true"]
    whole = train.main([*words, "--set", "name=whole"])
    with monkeypatch.context() as patched:
        interrupted_after(patched, steps=7)
        with pytest.raises(KeyboardInterrupt):
            train.main([*words, "--set", "name=cut"])
    cut = train.main([*words, "--set", "name=cut", "--resume"])
    assert_same_bits(cut, whole)


def test_without_a_compiler_it_is_refused(
    toy_manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resnet = {"library": "timm", "name": "test_resnet"}
    config = load_config(write_config(tmp_path, toy_manifest, resnet), RunConfig, ["compile=true"])
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UserError, match="no-such-compiler is not on PATH"):
        set_up_tower(torch.nn.Linear(1, 1), config)


@pytest.mark.parametrize("name", ["test_resnet", "mobilenetv3_small_050"])
def test_channels_last(name: str, toy_manifest: Path, tmp_path: Path) -> None:
    """Every convolution's output lies channels last in memory, and the numbers stay."""
    path = write_config(tmp_path, toy_manifest, {"library": "timm", "name": name})
    config = load_config(path, RunConfig, ["channels_last=true"])
    embedder = build_embedder(config.model).eval()
    images_BCHW = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    plain_BD = embedder(images_BCHW)
    set_up_tower(embedder.backbone.tower, config)
    laid_out = []
    for module in embedder.modules():
        if isinstance(module, torch.nn.Conv2d):
            module.register_forward_hook(lambda _, __, out: laid_out.append(_channels_last(out)))
    torch.testing.assert_close(embedder(images_BCHW), plain_BD, rtol=1e-4, atol=1e-5)
    assert laid_out and all(laid_out)


def _channels_last(out_BCHW: torch.Tensor) -> bool:
    return out_BCHW.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.slow
def test_channels_last_trains_alike(toy_manifest: Path, tmp_path: Path) -> None:
    resnet = {"library": "timm", "name": "test_resnet"}
    words = ["--config", str(write_config(tmp_path, toy_manifest, resnet)), "--set"]
    plain = train.main([*words, "name=plain"])
    last = train.main([*words, "name=last", "--set", "channels_last=true"])
    # Rounding errors grow with the steps, most on CPUs without AVX-512
    assert logged_losses(last) == pytest.approx(logged_losses(plain), rel=5e-3)
