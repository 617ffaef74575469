"""The plain softmax against its slow twin: of Vo and Hays' code, and of DREML's with the identity."""

from __future__ import annotations

import pytest
import torch
import twins
from pydantic import TypeAdapter
from torch.nn import functional

from guie.base.errors import UserError
from guie.config.losses import LossConfig
from guie.losses.base import Criterion
from guie.losses.build import build_loss

CLASSES, DIM = 5, 6
LABELS = [3, 0, 0, 1, 4, 3, 1]


def built(dim: int = DIM, **values) -> Criterion:
    config = TypeAdapter(LossConfig).validate_python({"name": "linear_softmax", **values})
    return build_loss(config, dim, [3] * CLASSES, ["a"] * CLASSES).double()


def batch(dim: int = DIM) -> tuple[torch.Tensor, torch.Tensor]:
    raw = (3 * torch.randn(len(LABELS), dim, dtype=torch.float64)).requires_grad_()
    return raw, functional.normalize(raw, dim=1)


@pytest.mark.parametrize("embedding", ["raw", "unit"])
def test_equals_the_twin(embedding: str) -> None:
    torch.manual_seed(0)
    loss, (raw, emb) = built(embedding=embedding), batch()
    value, logs = loss(emb, torch.tensor(LABELS), raw)
    seen = raw if embedding == "raw" else emb
    twins.assert_equal(
        value, twins.linear_softmax(seen, LABELS, loss.weight_CD), raw, loss.weight_CD
    )
    hits = (seen @ loss.weight_CD.T).argmax(1) == torch.tensor(LABELS)
    assert logs["accuracy"].item() == pytest.approx(hits.float().mean().item())


def test_the_identity_is_dremls_loss_and_has_no_weights() -> None:
    torch.manual_seed(0)
    loss, (raw, emb) = built(CLASSES, weights="identity"), batch(CLASSES)
    value, _ = loss(emb, torch.tensor(LABELS), raw)
    identity = torch.eye(CLASSES, dtype=torch.float64)
    twins.assert_equal(value, twins.linear_softmax(raw, LABELS, identity), raw)
    assert not list(loss.parameters())
    with pytest.raises(UserError, match=r"has 6 for 5 classes; set model.head.dim to 5"):
        built(weights="identity")


def test_weights_start_as_those_of_torchs_linear() -> None:
    """Uniform within 1 / sqrt(D), as in nams.py:512."""
    torch.manual_seed(0)
    config = TypeAdapter(LossConfig).validate_python({"name": "linear_softmax"})
    ours = build_loss(config, 64, [1] * 900, ["a"] * 900).weight_CD
    theirs = torch.nn.Linear(64, 900, bias=False).weight
    assert ours.abs().max().item() == pytest.approx(theirs.abs().max().item(), rel=1e-3)
    assert ours.std().item() == pytest.approx(theirs.std().item(), rel=0.01)


def test_computes_in_fp32_under_autocast() -> None:
    loss, (raw, emb) = built().float(), batch()
    half = raw.detach().bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value, _ = loss(emb.bfloat16(), torch.tensor(LABELS), half)
    assert value.item() == loss(emb.float(), torch.tensor(LABELS), half.float())[0].item()
