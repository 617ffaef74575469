"""The Accelerator that scripts make, one after another in a process."""

from __future__ import annotations

import os

import pytest
import torch

from guie.base import devices
from guie.base.devices import deterministic_algorithms, make_accelerator


def test_the_precision_is_that_of_the_last_one_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """curate.py makes one for its features before it trains, and a notebook trains before it embeds."""
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION", raising=False)
    for asked, precision in (({}, "no"), ({"mixed_precision": "bf16"}, "bf16"), ({}, "no")):
        assert make_accelerator(**asked).mixed_precision == precision
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")  # of `accelerate launch`
    assert make_accelerator().mixed_precision == "bf16"
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION")
    assert make_accelerator().mixed_precision == "no"


def test_processes_share_the_cores_that_they_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container of six cores on a machine of many."""
    values = {"ACCELERATE_MIXED_PRECISION": "no", "OMP_NUM_THREADS": "1", "LOCAL_WORLD_SIZE": "2"}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    threads: list[int] = []
    monkeypatch.setattr(devices, "usable_cores", lambda: 6)
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    make_accelerator()
    assert threads == [3]


def test_no_test_sees_a_gpu() -> None:
    """Whatever the machine has: a process that has looked at one could not be forked."""
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "" and not torch.cuda.is_available()
    assert make_accelerator().device.type == "cpu"


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_deterministic_algorithms_end_with_the_run(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_gradients_are_views_of_what_is_exchanged() -> None:
    assert make_accelerator().ddp_handler.gradient_as_bucket_view
