"""Compiled and channels-last towers train as plain ones do, and resume."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch._dynamo.utils import counters
from toy_configs import sets

import train
from guie.base.errors import UserError
from guie.config import RunConfig, load_config
from guie.models.embedder import build_embedder
from guie.training.stage import set_up_tower
from tiny_runs import assert_same_bits, cut_and_resumed, logged_losses

SHORT = {"depth": 1, "embed_dim": 32, "num_heads": 2, "img_size": 32}
VIT = {"library": "timm", "name": "test_vit", "kwargs": SHORT}
RESNET = {"library": "timm", "name": "test_resnet"}


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
        yield


@pytest.fixture
def words(written: Callable, toy_manifest: Path) -> Callable[[dict], list[str]]:
    """A frozen stage, then one with larger images."""

    def write(backbone: dict) -> list[str]:
        rates = {"backbone": 1e-3, "head": 1e-3, "classes": 1e-2}
        return written(
            manifest=toy_manifest,
            model={"backbone": backbone, "image": {"size_px": 32}},
            train={"batch_size": 24, "lr": rates},
            stages=[{"epochs": 0.5, "lr": {"backbone": 0.0}}, {"epochs": 1, "size_px": 48}],
        )

    return write


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "g++")) is None, reason="torch.compile needs a C++ compiler"
)
def test_a_compiled_tower_trains_as_a_plain_one_and_resumes(words: Callable, monkeypatch) -> None:
    """Stopped in the second stage, to the same bits."""
    plain = train.main(words(VIT))
    counters.clear()
    command = [*words(VIT), *sets("compile=true")]
    compiled = train.main(command)
    assert counters["stats"]["unique_graphs"] >= 1
    assert logged_losses(compiled) == pytest.approx(logged_losses(plain), rel=1e-4)
    names = [list(load_file(run / "last.safetensors")) for run in (plain, compiled)]
    assert names[0] == names[1]
    assert_same_bits(cut_and_resumed(monkeypatch, [*command, *sets("name=cut")], 7), compiled)


def test_without_a_compiler_it_is_refused(words: Callable, monkeypatch) -> None:
    config = load_config(words(RESNET)[1], RunConfig, ["compile=true"])
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UserError, match="no-such-compiler is not on PATH"):
        set_up_tower(torch.nn.Linear(1, 1), config)


@pytest.mark.parametrize("name", ["test_resnet", "mobilenetv3_small_050"])
def test_channels_last(name: str, words: Callable) -> None:
    """Every convolution's output has this memory format, and the numbers stay."""
    config = load_config(words(RESNET | {"name": name})[1], RunConfig, ["channels_last=true"])
    embedder = build_embedder(config.model).eval()
    images_BCHW = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    plain_BD = embedder(images_BCHW)
    set_up_tower(embedder.backbone.tower, config)
    outputs: list[torch.Tensor] = []
    for module in embedder.modules():
        if isinstance(module, torch.nn.Conv2d):
            module.register_forward_hook(lambda _, __, out: outputs.append(out))
    torch.testing.assert_close(embedder(images_BCHW), plain_BD, rtol=1e-4, atol=1e-5)
    last = torch.channels_last
    assert outputs and all(out.is_contiguous(memory_format=last) for out in outputs)
