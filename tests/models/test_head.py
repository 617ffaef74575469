"""Heads: norms, branches that fold into one Linear, shapes of images."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, distributed, nn

from guie.config.model import HeadConfig
from guie.models.head import GlobalBatchNorm1d, Head

DROPOUTS = [0.1, 0.3, 0.5, 0.0]
BRANCHES = [{"linear": kind, "dropouts": DROPOUTS} for kind in ("shared", "separate")]


def build(seed: int = 0, features: int = 12, **config) -> Head:
    torch.manual_seed(seed)
    return Head(HeadConfig.model_validate({"dim": 5, "norm": "none", **config}), features)


def branches_by_hand(head: Head, kind: str, feat_BF: Tensor, dropouts: list[float]) -> Tensor:
    """Every branch computed by itself, one after another, then the mean."""
    weights = head.linear.weight.chunk(len(dropouts) if kind == "separate" else 1)
    biases = head.linear.bias.chunk(len(dropouts) if kind == "separate" else 1)
    branches = []
    for number, p in enumerate(dropouts):
        if kind == "shared":
            branches.append(F.linear(F.dropout(feat_BF, p), weights[0], biases[0]))
        else:
            branches.append(F.dropout(F.linear(feat_BF, weights[number], biases[number]), p))
    return sum(branches) / len(branches)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_hidden_layers_are_an_mlp(activation: str) -> None:
    """GELU is the exact one, by the error function: the only one that torch 1.11 has."""
    head = build(features=24, hidden=[32, 16], activation=activation)
    feat_BF = torch.randn(5, 24)
    first, _, second, _ = head.hidden

    def active(x: Tensor) -> Tensor:
        return x.relu() if activation == "relu" else x * (1 + torch.erf(x / 2**0.5)) / 2

    expected = head.linear(active(second(active(first(feat_BF)))))
    torch.testing.assert_close(head(feat_BF), expected, atol=1e-6, rtol=1e-5)


def test_a_plain_batch_norm_has_nothing_to_train() -> None:
    head = build(norm="bn_plain")
    assert (head.norm.eps, build(norm="bn_plain", norm_eps=1e-6).norm.eps) == (1e-5, 1e-6)
    feat_BF = torch.randn(50, 12) * 3 + 7
    assert not list(head.norm.parameters())
    normal_BF = (feat_BF - feat_BF.mean(0)) / (feat_BF.var(0, unbiased=False) + 1e-5).sqrt()
    torch.testing.assert_close(head.norm(feat_BF), normal_BF, atol=1e-5, rtol=0)
    for _ in range(200):
        head.norm(feat_BF)
    torch.testing.assert_close(head.eval().norm(feat_BF), normal_BF, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_over_processes_is_that_of_the_whole_batch(
    affine: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes with equal batches: the statistics of both are those of one."""
    feat_BF = torch.randn(8, 12) * 2 + 3
    expected = GlobalBatchNorm1d(12, affine=affine)(feat_BF)
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(distributed, "all_reduce", lambda total: total.mul_(2))
    norm = GlobalBatchNorm1d(12, affine=affine)
    torch.testing.assert_close(norm(feat_BF), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(norm.running_mean, 0.1 * feat_BF.mean(0))
    twice_BF = feat_BF.repeat(2, 1)
    torch.testing.assert_close(norm.running_var, 0.9 + 0.1 * twice_BF.var(0))


@pytest.mark.parametrize("branches", BRANCHES, ids=["shared", "separate"])
def test_branches_in_training_are_each_dropout_averaged(branches: dict) -> None:
    head, feat_BF = build(branches=branches), torch.randn(7, 12)
    torch.manual_seed(3)
    expected = branches_by_hand(head, branches["linear"], feat_BF, DROPOUTS)
    torch.manual_seed(3)
    found = head(feat_BF)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
    assert not torch.allclose(head(feat_BF), found)  # drawn anew


@pytest.mark.parametrize("branches", BRANCHES, ids=["shared", "separate"])
def test_branches_fold_into_one_linear(branches: dict) -> None:
    plain = build(bias=False, branches=branches).eval()
    plain.fold()
    assert plain.linear.bias is None and not plain(torch.zeros(1, 12)).any()
    head, feat_BF = build(branches=branches, dropout=0.2).eval(), torch.randn(7, 12)
    expected = branches_by_hand(head, branches["linear"], feat_BF, [0.0] * len(DROPOUTS))
    torch.testing.assert_close(head(feat_BF), expected, atol=1e-6, rtol=0)
    head.fold()
    assert type(head.linear) is nn.Linear and head.linear.weight.shape == (5, 12)
    torch.testing.assert_close(head(feat_BF), expected, atol=1e-6, rtol=0)
    head.fold()  # again: nothing to do
    torch.testing.assert_close(head(feat_BF), expected, atol=1e-6, rtol=0)


def test_a_head_takes_shapes_beside_the_features() -> None:
    head = build(norm="bn_plain", image_shape=True).eval()
    head.norm.running_mean.copy_(torch.randn(15))
    head.norm.running_var.copy_(torch.rand(15) + 0.5)
    feat_BF, shapes_B3 = torch.randn(4, 12), torch.rand(4, 3)
    rows_BR = torch.cat([feat_BF, shapes_B3], dim=1)
    scale = (head.norm.running_var + 1e-5).sqrt()
    expected = head.linear((rows_BR - head.norm.running_mean) / scale)
    torch.testing.assert_close(head(feat_BF, shapes_B3), expected, atol=1e-5, rtol=0)
    with pytest.raises(ValueError, match="needs the shapes"):
        head(feat_BF)
    torch.testing.assert_close(build()(feat_BF, shapes_B3), build()(feat_BF))  # not looked at


@pytest.mark.parametrize("branches", [None, {"linear": "separate", "dropouts": [0.1, 0.2]}])
def test_after_l2_unrelated_inputs_begin_apart(branches: dict | None) -> None:
    """With PyTorch's own bias, as long as the signal, they begin at a cosine of .5."""
    torch.manual_seed(0)
    head = Head(HeadConfig(norm="l2", branches=branches), 192).eval()
    feat_BF = torch.randn(200, 192)
    emb_BD = torch.nn.functional.normalize(head(feat_BF), dim=-1)
    cosines = (emb_BD @ emb_BD.T)[~torch.eye(200, dtype=bool)]
    assert cosines.mean().abs() < 0.02


@pytest.mark.parametrize("branches", [None, *BRANCHES])
@pytest.mark.parametrize(
    ("init", "std", "furthest"),
    [
        # UnED's vit_with_embedding.py, nn.Dense: Flax's lecun_normal is cut off at two deviations before
        # it is scaled to F ** -0.5
        ("lecun_normal", 1280**-0.5, 2 / 0.87962566 * 1280**-0.5),
        # The 3rd place's stage1.ipynb, twenty times Dense(64): Keras' glorot_uniform
        ("xavier_uniform", (2 / (1280 + 64)) ** 0.5, (6 / (1280 + 64)) ** 0.5),
        ("torch", (3 * 1280) ** -0.5, 1280**-0.5),
    ],
)
def test_a_head_starts_by_its_authors_rule(
    init: str, std: float, furthest: float, branches: dict | None
) -> None:
    """PyTorch's start is 1.73 times smaller than UnED's, and 2.40 times smaller than the 3rd place's."""
    torch.manual_seed(0)
    linear = Head(HeadConfig(norm="none", init=init, branches=branches), 1280).linear
    assert linear.weight.std().item() == pytest.approx(std, rel=0.01)
    assert linear.weight.abs().max().item() == pytest.approx(furthest, rel=0.01)
    assert bool(linear.bias.any()) == (init == "torch")
