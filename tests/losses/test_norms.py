"""Rules that see norms: AdaFace and MagFace against the numbers of the authors' code."""

from pathlib import Path

import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor
from torch.nn import functional

from guie.config.losses import LossConfig
from guie.losses.build import build_loss
from guie.losses.margin_softmax import MarginSoftmax
from guie.training.step import forward_state

CUSTOM = Path(__file__).parents[2] / "configs" / "custom"


def magface(**settings) -> dict:
    source = f"{CUSTOM / 'magface.py'}:MagFace"
    return {"name": "custom_rule", "source": source, "scale": 64.0, "settings": settings}


def adaface(**settings) -> dict:
    return magface(**settings) | {"source": f"{CUSTOM / 'adaface.py'}:AdaFace"}


def built(values: dict, classes: int, dim: int) -> MarginSoftmax:
    config = TypeAdapter(LossConfig).validate_python(values)
    return build_loss(config, dim, [3] * classes, ["a"] * classes).double()


def numbers(rows: int, columns: int, step: float) -> Tensor:
    flat = torch.sin(step * torch.arange(1, rows * columns + 1, dtype=torch.float64))
    return flat.reshape(rows, columns)


LABELS = torch.tensor([0, 1, 2, 3, 0, 2])


def step_of(loss: MarginSoftmax, lengths: list[float]) -> list[float]:
    """Loss, and the sums of the absolute gradients of embeddings and of class weights."""
    unit = functional.normalize(numbers(6, 5, 1.7), dim=1)
    raw = (unit * torch.tensor(lengths)[:, None].double()).requires_grad_()
    loss.zero_grad()
    value, _ = loss(functional.normalize(raw, dim=1), LABELS, raw)
    value.backward()
    return [value.item(), raw.grad.abs().sum().item(), loss.weight_CD.grad.abs().sum().item()]


def test_adaface_is_the_authors() -> None:
    """Numbers of mk-minchul/AdaFace at c60eaa7, head.py, with the arguments of its scripts/."""
    loss = built(adaface(), 4, 5)
    loss.weight_CD.data = numbers(4, 5, 0.9)
    lengths = [15.0, 19.0, 22.0, 25.0, 30.0, 140.0]
    first = step_of(loss, lengths)
    assert first == pytest.approx([50.857179899626, 6.556005469249, 83.209819191835], rel=1e-6)
    assert loss.rule.mean.item() == pytest.approx(20.1516666667)
    assert loss.rule.std.item() == pytest.approx(99.3217089782)
    second = step_of(loss, lengths)
    assert second == pytest.approx([50.856969255930, 6.555843497232, 83.209166010720], rel=1e-6)
    assert loss.rule.std.item() == pytest.approx(98.6502008667)
    # Statistics of the batch alone, so that margins differ widely between images
    loss = built(adaface(t_alpha=1.0), 4, 5)
    loss.weight_CD.data = numbers(4, 5, 0.9)
    found = step_of(loss, lengths)
    assert found == pytest.approx([50.790025285909, 6.498879437590, 82.861862547998], rel=1e-6)


@pytest.mark.parametrize(
    ("easy", "expected"),
    [
        (True, [38.483377246150, 10.172527018755, 80.122802804525]),
        (False, [60.612428024606, 8.956108491858, 70.922341249537]),
    ],
)
def test_magface_is_the_authors(easy: bool, expected: list[float]) -> None:
    """Numbers of IrvingMeng/MagFace at 99bae61, models/magface.py, with the arguments of run.sh."""
    loss = built(magface(easy_margin=easy), 4, 5)
    loss.weight_CD.data = numbers(4, 5, 0.9)
    found = step_of(loss, [5.0, 19.0, 22.0, 60.0, 90.0, 140.0])
    assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("values", [adaface(), magface()], ids=["adaface", "magface"])
def test_gradients_are_finite_at_the_edges(values: dict) -> None:
    """A zero vector, embeddings on and opposite to their class, one image alone, large norms."""
    loss = built(values, 3, 4).float()
    own = functional.normalize(loss.weight_CD.detach(), dim=1)
    raw = torch.stack([own[0] * 20, -own[1] * 20, 0 * own[2], own[2] * 1e4]).bfloat16()
    for rows in ([0], [0, 1, 2, 3]):
        leaf = raw[rows].clone().requires_grad_()
        labels = torch.tensor([0, 1, 2, 2])[rows]
        value, _ = loss(functional.normalize(leaf.float(), dim=1), labels, leaf)
        value.backward()
        assert value.isfinite() and leaf.grad.isfinite().all()
        assert loss.weight_CD.grad.isfinite().all()
    assert all(buffer.isfinite().all() for buffer in loss.buffers())


def test_running_statistics_are_state() -> None:
    """Of checkpoints, and of the retry of a step that ran out of memory."""
    loss = built(adaface(margin={"min": 0.1, "max": 0.5}), 4, 5)
    assert loss.rule.margin_C.tolist() == pytest.approx([0.5] * 4)
    restore = forward_state(loss)
    first = step_of(loss, [15.0, 19.0, 22.0, 25.0, 30.0, 40.0])
    after = {name: value.clone() for name, value in loss.state_dict().items()}
    assert {"rule.mean", "rule.std"} < after.keys() and after["rule.std"] < 100
    restore()
    assert loss.rule.std == 100.0
    assert step_of(loss, [15.0, 19.0, 22.0, 25.0, 30.0, 40.0]) == first
    other = built(adaface(), 4, 5)
    other.load_state_dict(after)
    assert torch.equal(other.rule.mean, loss.rule.mean)
    other.eval()
    step_of(other, [80.0] * 6)
    assert torch.equal(other.rule.mean, loss.rule.mean)
    with pytest.raises(ValueError, match="needs the embeddings before normalisation"):
        other(functional.normalize(numbers(6, 5, 1.7), dim=1), LABELS)
