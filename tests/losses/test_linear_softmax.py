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
    assert loss.weight_CD.abs().max().item() == pytest.approx(
        DIM**-0.5, rel=0.2
    )  # as torch's Linear
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
