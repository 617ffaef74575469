"""From config to loss: settings arrive, and class weights start with the configured length."""

import pytest
import torch
from pydantic import TypeAdapter
from torch import nn

from guie.base.errors import UserError
from guie.config.losses import LossConfig
from guie.losses.base import LossStage
from guie.losses.build import build_loss, domain_edges
from guie.losses.margin_softmax import drawn
from guie.losses.rules import CurricularFace

SIZES, DOMAINS = [16, 1, 1, 81], ["a", "a", "b", "b"]


def built(dim: int = 8, classes: int = 4, **values) -> nn.Module:
    config = TypeAdapter(LossConfig).validate_python(values)
    many = classes != len(SIZES)
    sizes, domains = ([1] * classes, ["a"] * classes) if many else (SIZES, DOMAINS)
    return build_loss(config, dim, sizes, domains)


@pytest.mark.parametrize("name", ["softmax", "arcface", "cosface", "curricularface"])
def test_margin_softmax_settings_arrive(name: str) -> None:
    head = built(name=name, scale=16.0, centers=3, classifier="separate")
    assert (head.scale, head.centers, head.edges) == (16.0, 3, [0, 2, 4])
    assert head.weight_CD.shape == (12, 8)
    assert built(name=name).edges is None


def test_margins_arrive() -> None:
    by_size = {"min": 0.1, "max": 0.5}
    margins = built(name="cosface", margin_cos=by_size).rule.margin_C
    assert margins.argmin() == 3 and margins[1] == margins[2] == 0.5
    schedule = {"start": 0.3, "rise_per_epoch": 0.1, "limit": 0.8, "every": "epoch"}
    head = built(name="arcface", margin_rad=schedule)
    head.rule.set_epoch(2.9)
    assert head.rule.margin_C.item() == pytest.approx(0.5)
    assert built(name="softmax").rule.margin_C.item() == 0.0
    rules = [built(name="curricularface", running_mean=m).rule for m in ("scalar", "class")]
    assert all(isinstance(rule, CurricularFace) for rule in rules)
    assert [len(rule.t_C) for rule in rules] == [1, 4]


def test_domain_edges() -> None:
    assert domain_edges(["a", "a", "b", "c", "c"]) == [0, 2, 3, 5]
    with pytest.raises(UserError, match="domain a are not contiguous.*domain/class"):
        domain_edges(["a", "b", "a"])


def test_proxies_start_as_in_pumas_code() -> None:
    """Its eight data sets have 15,952 train classes; `kaiming_uniform_` is torch's own."""
    torch.manual_seed(0)
    ours_CD = drawn(15_952, 128, "he_uniform")
    torch.manual_seed(0)
    theirs_CD = nn.init.kaiming_uniform_(torch.empty(15_952, 128), mode="fan_out")
    assert torch.equal(ours_CD, theirs_CD)
    assert ours_CD.square().sum(1).mean().sqrt().item() == pytest.approx(0.127, abs=5e-4)


def length(rows: torch.Tensor) -> float:
    return rows.detach().square().sum(1).mean().sqrt().item()


@pytest.mark.parametrize("name", ["arcface", "proxy_anchor", "proxy_nca", "soft_triple"])
@pytest.mark.parametrize("classes", [50, 3000])
@pytest.mark.parametrize(
    ("init", "wanted"),
    [
        (None, lambda rows: 1.0),
        # The 4th and 6th place: +-1 / sqrt(D)
        ({"length": 0.577, "draw": "uniform"}, lambda rows: 0.577),
        ("xavier_uniform", lambda rows: (2 * 64 / (rows + 64)) ** 0.5),
        ("xavier_normal", lambda rows: (2 * 64 / (rows + 64)) ** 0.5),
        ("he_uniform", lambda rows: (2 * 64 / rows) ** 0.5),
        ("torch_uniform", lambda rows: (64 / (3 * rows)) ** 0.5),
    ],
)
def test_rows_start_with_the_length_that_is_asked_for(name, classes, init, wanted) -> None:
    """Adam's step is absolute: where length falls with C, so does the time to turn a row."""
    torch.manual_seed(0)
    (weight,) = built(64, classes, name=name, **({"init": init} if init else {})).parameters()
    rows = weight if weight.shape[1] == 64 else weight.T
    assert length(rows) == pytest.approx(wanted(len(rows)), rel=0.05)
    if "uniform" in str(init):
        assert rows.abs().max() <= 3**0.5 * wanted(len(rows)) / 8 * 1.001


@pytest.mark.parametrize("alone", [True, False])
def test_rows_that_start_anew_alone_start_by_their_own_number(alone: bool) -> None:
    """Of a softmax over the stage's classes, as of one that was built for them (winner_1, s3)."""
    loss = built(64, 900, name="cosface", init="xavier_uniform")
    first = loss.weight_CD.detach().clone()
    loss.begin_stage(range(90), LossStage(alone=alone, reset=(0, 1)))
    found = loss.stage_AD if alone else loss.weight_CD[:90]
    assert length(found) == pytest.approx((2 * 64 / ((90 if alone else 900) + 64)) ** 0.5, rel=0.05)
    assert torch.equal(loss.weight_CD[90:], first[90:])
