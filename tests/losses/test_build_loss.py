"""From config to loss: every name builds, settings arrive, faults are the user's in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from pydantic import TypeAdapter
from torch import nn

from guie.base.errors import UserError
from guie.config.loading import load_config, to_yaml
from guie.config.losses import LossConfig
from guie.config.types import Config
from guie.losses.base import LossStage
from guie.losses.build import build_loss, domain_edges
from guie.losses.margin_softmax import drawn
from guie.losses.rules import CurricularFace

SIZES, DOMAINS = [16, 1, 1, 81], ["a", "a", "b", "b"]


class Run(Config):
    loss: LossConfig


def built(**values) -> nn.Module:
    return build_loss(TypeAdapter(LossConfig).validate_python(values), 8, SIZES, DOMAINS)


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


@pytest.mark.parametrize("name", ["arcface", "proxy_anchor", "proxy_nca", "soft_triple", "margin"])
def test_what_is_learnt_of_classes_is_one_parameter(name: str) -> None:
    extra = {"learn_boundary": True} if name == "margin" else {}
    assert len(list(built(name=name, **extra).parameters())) == 1


def test_domain_edges() -> None:
    assert domain_edges(["a", "a", "b", "c", "c"]) == [0, 2, 3, 5]
    with pytest.raises(UserError, match="domain a are not contiguous.*domain/class"):
        domain_edges(["a", "b", "a"])


@pytest.mark.parametrize(
    "loss,message",
    [
        ({"name": "arcface", "margin_cos": 0.3}, "loss.margin_cos: unknown key"),
        ({"name": "arcface", "margin_rad": -0.1}, "greater than or equal to 0"),
        ({"name": "arcface", "margin_rad": {"min": 0.5, "max": 0.1}}, "min is above max"),
        ({"margin_rad": {"start": 0.1, "limit": 1.0}}, "loss.margin_rad.rise_per_epoch: missing"),
        ({"margin_rad": "wide"}, "loss.margin_rad.*number"),
        ({"name": "proxy_anchor", "memory": 9}, "loss.memory: unknown key"),
        ({"name": "triplet", "margin_distance": 3.0}, "less than or equal to 2"),
        ({"name": "arcfac"}, "'arcfac'.*arcface"),
    ],
)
def test_faults_are_named(tmp_path: Path, loss: dict, message: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(to_yaml({"loss": loss}))
    with pytest.raises(UserError, match=message):
        load_config(path, Run)


def test_a_loss_without_a_name_is_arcface(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("loss: {margin_rad: 0.5}")
    run = load_config(tmp_path / "c.yaml", Run, ["loss.scale=64"])
    assert (run.loss.name, run.loss.margin_rad, run.loss.scale) == ("arcface", 0.5, 64)


def test_weights_of_the_joint_classifier_keep_their_name() -> None:
    """Checkpoints of earlier runs hold `classes.weight_CD` and nothing else of the loss."""
    head = built(name="arcface")
    assert set(head.state_dict()) == {"weight_CD"}
    head.load_state_dict({"weight_CD": torch.zeros(4, 8)})


PROXY_LOSSES = ["proxy_anchor", "proxy_nca", "soft_triple"]


def rows_of(loss: nn.Module) -> torch.Tensor:
    """Class weights or proxies, a row each."""
    (weight,) = loss.parameters()
    return weight if weight.shape[1] == 64 else weight.T


@pytest.mark.parametrize("name", ["softmax", "arcface", "curricularface", *PROXY_LOSSES])
@pytest.mark.parametrize("classes", [50, 3000])
@pytest.mark.parametrize(
    ("start", "length"),
    [
        (None, 1.0),
        ({"length": 0.577, "draw": "uniform"}, 0.577),  # the 4th and 6th place: +-1 / sqrt(D)
        ({"draw": "uniform"}, 1.0),  # UnED: lecun-uniform with fan-in 64
        ("xavier_uniform", None),
        ("xavier_normal", None),
        ("he_uniform", None),
    ],
)
def test_rows_start_with_the_length_that_is_asked_for(
    name: str, classes: int, start: object, length: float | None
) -> None:
    """Adam's step is absolute: where length falls with C, so does the time to turn a row."""
    torch.manual_seed(0)
    values = {"name": name} | ({"init": start} if start else {})
    config = TypeAdapter(LossConfig).validate_python(values)
    rows = rows_of(build_loss(config, 64, [1] * classes, ["a"] * classes))
    wanted = length or (2 * 64 / (len(rows) + (0 if start == "he_uniform" else 64))) ** 0.5
    assert rows.square().sum(1).mean().sqrt().item() == pytest.approx(wanted, rel=0.05)
    if "uniform" in str(start):
        assert rows.abs().max() <= 3**0.5 * wanted / 8 * 1.001


def test_rows_that_start_anew_alone_start_by_their_own_number() -> None:
    """Of a softmax over the stage's classes, as of one that was built for them (winner_1, s3)."""
    config = TypeAdapter(LossConfig).validate_python({"name": "cosface", "init": "xavier_uniform"})
    loss = build_loss(config, 64, [1] * 900, ["a"] * 900)
    before = loss.weight_CD.square().mean().sqrt().item()
    assert before == pytest.approx((2 / (900 + 64)) ** 0.5, rel=0.05)
    loss.begin_stage(range(90), LossStage(alone=True, reset=(0, 1)))
    found = loss.stage_AD.square().mean().sqrt().item()
    assert found == pytest.approx((2 / (90 + 64)) ** 0.5, rel=0.05)  # .114


def test_proxies_start_as_in_pumas_code() -> None:
    """Its eight data sets have 15,952 train classes; `kaiming_uniform_` is torch's own."""
    torch.manual_seed(0)
    ours_CD = drawn(15_952, 128, "he_uniform")
    torch.manual_seed(0)
    theirs_CD = nn.init.kaiming_uniform_(torch.empty(15_952, 128), mode="fan_out")
    assert torch.equal(ours_CD, theirs_CD)
    assert ours_CD.square().sum(1).mean().sqrt().item() == pytest.approx(0.127, abs=5e-4)


def test_rows_that_start_anew_in_a_stage_start_alike() -> None:
    for start in ({"length": 0.5}, "xavier_uniform", "he_uniform"):
        values = {"name": "arcface", "init": start}
        config = TypeAdapter(LossConfig).validate_python(values)
        loss = build_loss(config, 64, [1] * 900, ["a"] * 900)
        first = loss.weight_CD.detach().clone()
        loss.begin_stage(range(300), LossStage(reset=(0, 1)))
        assert not torch.equal(loss.weight_CD[:300], first[:300])
        assert torch.equal(loss.weight_CD[300:], first[300:])
        lengths = [w.detach().square().sum(1).mean().sqrt() for w in (first, loss.weight_CD[:300])]
        assert lengths[1] == pytest.approx(lengths[0].item(), rel=0.05)
