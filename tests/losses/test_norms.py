"""Rules that see norms: AdaFace and MagFace against the authors' code and slow twins, on every path."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import twins
from pydantic import TypeAdapter
from torch import Tensor
from torch.nn import functional

from guie.config.losses import LossConfig, MetaclassesConfig
from guie.losses.build import build_loss
from guie.losses.composite import MetaclassLoss, NestedLoss
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


def adaface_twin(cos: Tensor, norm: Tensor, mean: float, std: float) -> Tensor:
    z = min(1.0, max(-1.0, 0.333 * (min(max(norm.item(), 0.001), 100.0) - mean) / (std + 0.001)))
    return torch.cos(torch.acos(cos) - 0.4 * z) - 0.4 * (1 + z)


def magface_twin(cos: Tensor, norm: Tensor) -> Tensor:
    norm = norm if 10 < norm < 110 else norm.detach().clamp(10, 110)
    margin = 0.45 + 0.0035 * (norm - 10)
    return torch.cos(torch.acos(cos) + margin) if cos > 0 else cos


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["adaface", "magface"])
def test_loss_and_gradients_equal_the_twin(name: str, seed: int) -> None:
    torch.manual_seed(seed)
    loss = built(adaface(t_alpha=0.5) if name == "adaface" else magface(), 7, 6)
    raw = (torch.randn(9, 6) * torch.rand(9, 1) * 50).double().requires_grad_()
    labels = torch.randint(7, (9,))
    norms = [row.square().sum().sqrt() for row in raw]
    lengths = torch.tensor([norm.item() for norm in norms]).double().clamp(0.001, 100)
    mean, std = (lengths.mean() + 20) / 2, (lengths.std() + 100) / 2
    emb = torch.stack([row / norm for row, norm in zip(raw, norms, strict=True)])
    value, logs = loss(emb, labels, raw)

    unit = loss.weight_CD / loss.weight_CD.norm(dim=1, keepdim=True)
    losses = []
    for i, label in enumerate(labels.tolist()):
        cosines = [emb[i] @ row for row in unit]
        if name == "adaface":
            own = adaface_twin(cosines[label], norms[i], mean.item(), std.item())
        else:
            own = magface_twin(cosines[label], norms[i])
        logits = torch.stack([64 * (own if c == label else cos) for c, cos in enumerate(cosines)])
        losses.append(-torch.log_softmax(logits, 0)[label])
        if name == "magface":
            a = norms[i] if 10 < norms[i] < 110 else norms[i].detach().clamp(10, 110)
            losses[-1] = losses[-1] + 35 * (a / 110**2 + 1 / a)
    twins.assert_equal(value, torch.stack(losses).mean(), raw, loss.weight_CD)
    assert logs["norm"].item() == pytest.approx(sum(norms).item() / 9)


@pytest.mark.parametrize("values", [adaface(), magface()], ids=["adaface", "magface"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_finite_at_the_edges(values: dict, dtype: torch.dtype) -> None:
    """A zero vector, embeddings on and opposite to their class, one image alone, large norms."""
    loss = built(values, 3, 4).float()
    own = functional.normalize(loss.weight_CD.detach(), dim=1)
    raw = torch.stack([own[0] * 20, -own[1] * 20, 0 * own[2], own[2] * 1e4]).to(dtype)
    for rows in ([0], [0, 1, 2, 3]):
        leaf = raw[rows].clone().requires_grad_()
        labels = torch.tensor([0, 1, 2, 2])[rows]
        value, _ = loss(functional.normalize(leaf.float(), dim=1), labels, leaf)
        value.backward()
        assert value.isfinite() and leaf.grad.isfinite().all()
        assert loss.weight_CD.grad.isfinite().all()
    assert all(buffer.isfinite().all() for buffer in loss.buffers())


def test_a_margin_by_class_and_a_stages_margin_reach_adaface() -> None:
    by_size = built(adaface(margin={"min": 0.1, "max": 0.5}), 4, 5)
    assert by_size.rule.margin_C.tolist() == pytest.approx([0.5] * 4)
    rule = built(adaface(t_alpha=1.0), 4, 5).rule.eval()
    rule.set_margin(0.0)
    cos = torch.linspace(-0.9, 0.9, 4).double()
    torch.testing.assert_close(rule.own(cos, LABELS[:4], 10 * torch.ones(4)), cos)


@pytest.mark.parametrize("values", [adaface(), magface()], ids=["adaface", "magface"])
def test_nested_widths_and_random_groups_see_the_norms_of_their_part(values: dict) -> None:
    torch.manual_seed(0)
    config = TypeAdapter(LossConfig).validate_python(values)
    raw = (torch.randn(9, 12) * torch.rand(9, 1) * 20).double()
    labels = torch.randint(5, (9,))
    emb = functional.normalize(raw, dim=1)
    nested = NestedLoss(config, [4, 12], [3] * 5, ["a"] * 5).double()
    value, logs = nested(emb, labels, raw)
    alone = [built(values, 5, 4), built(values, 5, 12)]
    for one, loss in zip(alone, nested.losses, strict=True):
        one.weight_CD.data = loss.weight_CD.data
    narrow = alone[0](functional.normalize(raw[:, :4], dim=1), labels, raw[:, :4])
    wide = alone[1](emb, labels, raw)
    torch.testing.assert_close(value, (narrow[0] + wide[0]) / 2)
    torch.testing.assert_close(logs["norm"], raw.norm(dim=1).mean())

    groups = MetaclassLoss(config, MetaclassesConfig(count=3), 12, 2, [3] * 5, ["a"] * 5).double()
    halves = [functional.normalize(half, dim=1) for half in raw.chunk(2, dim=1)]
    value, logs = groups(functional.normalize(torch.cat(halves, 1), dim=1), labels, raw)
    found = []
    for half, one, own in zip(raw.chunk(2, 1), groups.members, groups.group_LC, strict=True):
        member = built(values, 3, 6)
        member.weight_CD.data = one.weight_CD.data
        found.append(member(functional.normalize(half, dim=1), own[labels], half)[0])
    torch.testing.assert_close(value, torch.stack(found).mean())
    torch.testing.assert_close(logs["norm"], torch.cat(raw.chunk(2, 1)).norm(dim=1).mean())


def test_running_statistics_are_state() -> None:
    """Of checkpoints, and of the retry of a step that ran out of memory."""
    loss = built(adaface(), 4, 5)
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


def test_a_rule_that_uses_norms_needs_them() -> None:
    with pytest.raises(ValueError, match="needs the embeddings before normalisation"):
        built(adaface(), 4, 5)(functional.normalize(numbers(6, 5, 1.7), dim=1), LABELS)
    assert math.isfinite(step_of(built({"name": "arcface"}, 4, 5), [1.0] * 6)[0])
