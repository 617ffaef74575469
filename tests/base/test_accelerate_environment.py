"""What another job left in accelerate's environment changes no gradient."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from guie.base.devices import OTHER_ENGINES, make_accelerator
from guie.base.errors import UserError

LEFT = {
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
def test_the_environment_changes_no_gradient(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for one in LEFT:
        monkeypatch.delenv(one, raising=False)
    expected = gradient()
    assert capsys.readouterr().err == ""
    monkeypatch.setenv(name, LEFT[name])
    torch.testing.assert_close(gradient(), expected, rtol=0, atol=0)
    assert capsys.readouterr().err == f"{name}={LEFT[name]} is not obeyed: the config decides\n"


def test_values_of_the_launcher_that_ask_for_nothing_are_no_news(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in zip(LEFT, ("1", "NO", "no"), strict=True):
        monkeypatch.setenv(name, value)
    gradient()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", [f"ACCELERATE_USE_{one}" for one in OTHER_ENGINES])
def test_other_engines_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "true")
    with pytest.raises(UserError, match=f"{name} is set, and only DDP and FSDP are supported"):
        make_accelerator(mixed_precision="no")
