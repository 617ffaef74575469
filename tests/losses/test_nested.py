"""Nested embeddings: each width is the loss on its first numbers alone."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from guie.config.losses import ArcFaceConfig, CurricularFaceConfig, SupConConfig
from guie.losses.base import LossStage
from guie.losses.build import build_loss
from guie.losses.composite import NestedLoss
from guie.losses.margin_softmax import MarginSoftmax

SIZES, DOMAINS = [3, 1, 4, 1, 5], ["a"] * 5
LABEL_B = torch.tensor([0, 1, 2, 3, 4, 0])


def emb_of(seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return functional.normalize(torch.randn(6, 12, generator=generator), dim=1)


@pytest.mark.parametrize(
    "config",
    [
        ArcFaceConfig(centers=2),
        CurricularFaceConfig(name="curricularface"),
        SupConConfig(name="supcon"),
    ],
    ids=lambda config: config.name,
)
def test_it_is_the_mean_of_the_losses_of_each_width(config) -> None:
    torch.manual_seed(0)
    loss = NestedLoss(config, [2, 4, 12], SIZES, DOMAINS)
    emb_BD = emb_of()
    alone = []
    for number, width in enumerate((2, 4, 12)):
        one = build_loss(config, width, SIZES, DOMAINS)
        one.load_state_dict(loss.losses[number].state_dict())
        first = emb_BD[:, :width]
        alone.append(one(first / first.norm(dim=1, keepdim=True), LABEL_B))
    got, logs = loss(emb_BD, LABEL_B)
    torch.testing.assert_close(got, sum(value for value, _ in alone) / 3)
    assert logs.keys() == alone[-1][1].keys()
    for name, value in alone[-1][1].items():
        torch.testing.assert_close(logs[name], value)


def test_a_loss_of_one_width_is_the_plain_loss() -> None:
    loss = NestedLoss(ArcFaceConfig(), [12], SIZES, DOMAINS)
    torch.testing.assert_close(loss(emb_of(), LABEL_B)[0], loss.losses[0](emb_of(), LABEL_B)[0])


def test_a_stage_begins_for_each_width_with_its_own_draw() -> None:
    loss = NestedLoss(ArcFaceConfig(), [12, 12], SIZES, DOMAINS)
    loss.begin_stage([0, 2], LossStage(0.1, alone=True, reset=(7, 1)))
    one, other = (part for part in loss.losses if isinstance(part, MarginSoftmax))
    assert one.stage_AD is not None and other.stage_AD is not None
    assert one.stage_AD.shape == (2, 12) and not torch.equal(one.stage_AD, other.stage_AD)
    assert one.rule.margin_C.tolist() == other.rule.margin_C.tolist() == pytest.approx([0.1])
