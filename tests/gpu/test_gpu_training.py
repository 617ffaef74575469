"""Every task trains on the GPU as on the CPU, and its steps wait for nothing; precisions, compilation."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState
from torch.nn import functional

import train
from guie.base.devices import deterministic_algorithms
from guie.models import open_model
from guie.training.checkpoint import Checkpoints
from guie.training.run_folder import read_summary
from runs_of_every_task import RUNS, Material, within_steps, written
from tiny_runs import assert_same_bits, cut_and_resumed, logged_losses

# Those of pytorch-metric-learning, which picks pairs by their values
WAITING = {"triplet with memory"}
EACH_STEP = ["--set", "log_every=1 step", "--set", "checkpoint_every=1 step"]


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[list[str]], Path]]:
    """Train on the CPU of this machine."""

    def trained(words: list[str]) -> Path:
        monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
        AcceleratorState._reset_state(reset_partial_state=True)
        return train.main(words)

    yield trained
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture
def strict_waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Waits for the GPU between a stage's first step and its last raise RuntimeError."""
    within_steps(
        monkeypatch,
        begin=lambda: torch.cuda.set_sync_debug_mode("error"),
        end=lambda: torch.cuda.set_sync_debug_mode("default"),
    )
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", [name for name in RUNS if name not in WAITING])
def test_training_is_the_cpus_and_its_steps_wait_for_nothing(
    name: str,
    material: Material,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    strict_waits: None,
    on_cpu: Callable[[list[str]], Path],
) -> None:
    """Without `deterministic`, as most runs train: its operators may wait."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    words = ["--config", str(written(RUNS[name], material, tmp_path))]
    on_gpu = train.main(words)
    assert read_summary(on_gpu)["device"] == torch.cuda.get_device_name()
    assert read_summary(on_gpu)["peak_gpu_memory_mb"] > 0
    plain = on_cpu([*words, "--set", "name=cpu"])
    assert read_summary(plain)["device"] == "cpu"
    # A GPU draws other adapters and teachers to drop, and rounds bf16 otherwise
    near = 0.2 if any(word in name for word in ("adapters", "distillation", "bf16")) else 1e-2
    assert logged_losses(on_gpu) == pytest.approx(logged_losses(plain), rel=near)


def test_pairs_of_a_library_train(material: Material, tmp_path: Path) -> None:
    (name,) = WAITING
    run = train.main(["--config", str(written(RUNS[name], material, tmp_path))])
    assert all(map(math.isfinite, logged_losses(run)))


@pytest.mark.parametrize("precision", ["no", "bf16", "fp16"])
@pytest.mark.parametrize("name", ["classification", "distillation", "online"])
def test_a_resumed_run_ends_at_the_same_bits(
    name: str, precision: str, material: Material, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With fp16 the scaler's state too."""
    words = ["--config", str(written(RUNS[name], material, tmp_path)), *EACH_STEP]
    words += ["--set", "deterministic=true", "--set", f"precision={precision}", "--set"]
    whole = train.main([*words, "name=whole"])
    assert all(map(math.isfinite, logged_losses(whole)))
    scaler = Checkpoints(whole, keep=2).load()["scaler"]
    assert bool(scaler) == (precision == "fp16")
    assert_same_bits(cut_and_resumed(monkeypatch, [*words, "name=cut"], steps=2), whole)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_is_near_the_whole(
    precision: str, material: Material, tmp_path: Path
) -> None:
    words = ["--config", str(written(RUNS["classification"], material, tmp_path)), *EACH_STEP]
    whole, half = (
        logged_losses(train.main([*words, "--set", f"name=in_{one}", "--set", f"precision={one}"]))
        for one in ("no", precision)
    )
    assert all(map(math.isfinite, half)) and half != whole
    # Later ones differ more: at first, fp16's scaler skips steps
    assert half[0] == pytest.approx(whole[0], rel=0.05)


def test_without_autocast_products_are_of_single_precision() -> None:
    """TensorFloat-32 keeps ten bits; the second half shows that this would be seen."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(4, 64, 32, 32, generator=generator, dtype=torch.float64)
    weight = torch.randn(64, 64, 3, 3, generator=generator, dtype=torch.float64)
    exact = functional.conv2d(images, weight), images[0, 0] @ weight[:32, :, 0, 0].reshape(32, -1)

    def error() -> float:
        x, w = images.float().cuda(), weight.float().cuda()
        made = functional.conv2d(x, w), x[0, 0] @ w[:32, :, 0, 0].reshape(32, -1)
        pairs = zip(made, exact, strict=True)
        return max(((a.double().cpu() - b).abs().max() / b.abs().max()).item() for a, b in pairs)

    with deterministic_algorithms("no"):
        assert error() < 1e-5
        torch.backends.cudnn.allow_tf32 = True
        assert torch.cuda.get_device_capability() < (8, 0) or error() > 1e-5


@pytest.mark.parametrize("name", ["classification", "timm, bf16"])
def test_compiled_training_is_plain_training(
    name: str, material: Material, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    words = ["--config", str(written(RUNS[name], material, tmp_path)), *EACH_STEP]
    plain = train.main(words)
    compiled = train.main([*words, "--set", "compile=true", "--set", "name=compiled"])
    assert logged_losses(compiled) == pytest.approx(logged_losses(plain), rel=2e-2)
    open_model(compiled)
