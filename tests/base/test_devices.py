"""The Accelerator that scripts make, and how many processes and threads use the cores."""

import os

import pytest
import torch
from torch import nn

from guie.base import devices, processes
from guie.base.devices import OTHER_ENGINES, deterministic_algorithms, make_accelerator
from guie.base.errors import UserError
from guie.base.processes import loader_count, usable_cores

LEFT = {  # what another job left in accelerate's environment
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4",
    "ACCELERATE_DYNAMO_BACKEND": "eager",
    "ACCELERATE_MIXED_PRECISION": "bf16",
}


def gradient() -> torch.Tensor:
    accelerator = make_accelerator(mixed_precision="no")
    torch.manual_seed(0)
    model = accelerator.prepare(nn.Linear(4, 1))
    assert isinstance(model, nn.Linear)  # not compiled
    with accelerator.autocast():
        loss = model(torch.ones(3, 4)).mean()
    accelerator.backward(loss)
    assert model.weight.grad is not None and loss.dtype == torch.float32
    return model.weight.grad


@pytest.mark.parametrize("name", LEFT)
def test_the_environment_changes_no_gradient(name, monkeypatch, capsys):
    for other, plain in zip(LEFT, ("1", "NO", "no"), strict=True):
        monkeypatch.setenv(other, plain)  # as the launcher sets them
    expected = gradient()
    assert capsys.readouterr().err == ""
    monkeypatch.setenv(name, LEFT[name])
    torch.testing.assert_close(gradient(), expected, rtol=0, atol=0)
    assert capsys.readouterr().err == f"{name}={LEFT[name]} is not obeyed: the config decides\n"


@pytest.mark.parametrize("name", [f"ACCELERATE_USE_{one}" for one in OTHER_ENGINES])
def test_other_engines_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "true")
    with pytest.raises(UserError, match=f"{name} is set, and only DDP and FSDP are supported"):
        make_accelerator(mixed_precision="no")


def test_each_accelerator_has_its_own_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """curate.py makes one for its features before it trains, and a notebook trains before it embeds."""
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION", raising=False)
    for settings, precision in (({}, "no"), ({"mixed_precision": "bf16"}, "bf16"), ({}, "no")):
        assert make_accelerator(**settings).mixed_precision == precision
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")  # by `accelerate launch`
    assert make_accelerator().mixed_precision == "bf16"
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION")
    assert make_accelerator().mixed_precision == "no"


def test_processes_share_the_cores_of_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"ACCELERATE_MIXED_PRECISION": "no", "OMP_NUM_THREADS": "1", "LOCAL_WORLD_SIZE": "2"}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    threads: list[int] = []
    monkeypatch.setattr(devices, "usable_cores", lambda: 6)
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    make_accelerator()
    assert threads == [3]


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_deterministic_algorithms_end_with_the_run(precision, monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul

    def settings() -> tuple[bool, ...]:
        return (
            *(cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32),
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        )

    before = settings()
    with pytest.raises(ValueError, match="ends"), deterministic_algorithms(precision):
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        fp32 = (False, False) if precision == "no" else (before[2], before[3])
        assert settings() == (True, False, *fp32, True, True)
        raise ValueError("ends")
    assert settings() == before


@pytest.mark.parametrize(
    ("cores", "quota", "ranks", "usable", "loaders"),
    [
        (2, "", None, 2, 2),
        (64, "", 8, 64, 8),
        (96, "", 1, 96, 16),
        (4, "", 8, 4, 1),
        (64, "400000 100000\n", None, 4, 4),
        (64, "50000 100000\n", None, 1, 1),
    ],
)
def test_loaders_share_the_cores_that_a_machine_allows(
    cores: int, quota: str, ranks: int | None, usable: int, loaders: int, monkeypatch, tmp_path
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)))
    monkeypatch.setattr(processes, "QUOTA", tmp_path / "cpu.max")
    (tmp_path / "cpu.max").write_text(quota)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if ranks:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    assert (usable_cores(), loader_count(None)) == (usable, loaders)
    assert [loader_count(number) for number in (0, 1, 50)] == [0, 1, 50]
    assert [loader_count(None, batches) for batches in (0, 1, 100)] == [1, 1, loaders]
