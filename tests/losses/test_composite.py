"""Losses of several parts: nested widths, and random groups of classes that each member has its own of."""

from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter
from torch.nn import functional

from guie.base.errors import UserError
from guie.config.losses import ArcFaceConfig, LossConfig, MetaclassesConfig
from guie.losses.base import LossStage
from guie.losses.build import build_loss
from guie.losses.composite import MetaclassLoss, NestedLoss, partition
from guie.losses.margin_softmax import MarginSoftmax
from guie.models.embedder import build_embedder
from tiny_runs import tiny_config

SIZES, DOMAINS = [3, 1, 4, 1, 5], ["a"] * 5
LABEL_B = torch.tensor([0, 1, 2, 3, 4, 0])
ADAFACE = f"{Path(__file__).parents[2]}/configs/custom/adaface.py:AdaFace"
LOSSES = [
    *({"name": "arcface", "centers": 2}, {"name": "curricularface"}, {"name": "supcon"}),
    {"name": "custom_rule", "source": ADAFACE, "settings": {"t_alpha": 0.5}},  # sees norms
]


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Raw vectors and their unit-length embeddings."""
    torch.manual_seed(1)
    raw_BD = torch.randn(6, 12)
    return raw_BD, functional.normalize(raw_BD, dim=1)


def mean_of_parts(losses, configs, columns, labels) -> tuple[torch.Tensor, list[dict]]:
    """By hand: the plain loss, with the same weights, on each part of the embedding."""
    found = []
    for loss, (config, classes), own, label_B in zip(losses, configs, columns, labels, strict=True):
        raw = batch()[0][:, own]
        one = build_loss(config, raw.shape[1], [1] * classes, ["a"] * classes)
        one.load_state_dict(loss.state_dict())
        found.append(one(functional.normalize(raw, dim=1), label_B, raw))
    return sum(value for value, _ in found) / len(found), [logs for _, logs in found]


@pytest.mark.parametrize("values", LOSSES, ids=lambda values: values["name"])
def test_nested_is_the_mean_of_the_losses_of_each_width(values: dict) -> None:
    torch.manual_seed(0)
    config, widths = TypeAdapter(LossConfig).validate_python(values), [2, 4, 12]
    loss, (raw_BD, emb_BD) = NestedLoss(config, widths, SIZES, DOMAINS), batch()
    columns = [slice(width) for width in widths]
    wanted, logs = mean_of_parts(loss.losses, [(config, 5)] * 3, columns, [LABEL_B] * 3)
    found, own_logs = loss(emb_BD, LABEL_B, raw_BD)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(own_logs, logs[-1])  # of the whole embedding


@pytest.mark.parametrize("values", LOSSES, ids=lambda values: values["name"])
def test_members_are_the_mean_of_each_on_its_part_and_groups(values: dict) -> None:
    torch.manual_seed(0)
    config, groups = TypeAdapter(LossConfig).validate_python(values), MetaclassesConfig(count=2)
    groups = groups.model_copy(update={"member": 4})
    loss, (raw_BD, emb_BD) = MetaclassLoss(config, groups, 12, 3, SIZES, DOMAINS), batch()
    columns = [slice(4 * n, 4 * n + 4) for n in range(3)]
    own = [torch.from_numpy(partition(DOMAINS, 2, (0, 4 + n)))[LABEL_B] for n in range(3)]
    wanted, logs = mean_of_parts(loss.members, [(config, 2)] * 3, columns, own)
    found, own_logs = loss(emb_BD, LABEL_B, raw_BD)
    torch.testing.assert_close(found, wanted)
    for name, value in own_logs.items():
        torch.testing.assert_close(value, sum(one[name] for one in logs) / 3)


def test_a_stage_begins_for_each_part_with_its_own_draw() -> None:
    loss = NestedLoss(ArcFaceConfig(), [12, 12], SIZES, DOMAINS)
    loss.begin_stage([0, 2], LossStage(0.1, alone=True, reset=(7, 1)))
    one, other = (part for part in loss.losses if isinstance(part, MarginSoftmax))
    assert one.stage_AD is not None and other.stage_AD is not None
    assert one.stage_AD.shape == (2, 12) and not torch.equal(one.stage_AD, other.stage_AD)
    assert one.rule.margin_C.tolist() == other.rule.margin_C.tolist() == pytest.approx([0.1])
    groups = MetaclassLoss(ArcFaceConfig(), MetaclassesConfig(count=2), 12, 2, SIZES, DOMAINS)
    groups.begin_stage(range(5), LossStage(reset=(7, 1)))
    assert not torch.equal(groups.members[0].weight_CD, groups.members[1].weight_CD)


@pytest.mark.parametrize(("classes", "groups"), [(98, 12), (12, 12), (3997, 192), (17, 2)])
def test_groups_are_balanced_and_each_members_own(classes: int, groups: int) -> None:
    alike = ["a"] * classes
    ones = [partition(alike, groups, (0, member)) for member in range(3)]
    for group_C in ones:
        sizes = np.bincount(group_C, minlength=groups)
        assert sizes.max() - sizes.min() <= 1 and sizes.sum() == classes and len(sizes) == groups
    assert not np.array_equal(ones[0], ones[1])
    assert not np.array_equal(ones[1], partition(alike, groups, (1, 1)))
    # The same next year
    assert partition(["a"] * 7, 3, (0, 2)).tolist() == [2, 1, 1, 0, 2, 0, 0]


def test_groups_within_domains_have_classes_of_one() -> None:
    domains = np.array(["cars"] * 60 + ["art"] * 30 + ["food"])
    group_C = partition(domains, 10, (0, 0))
    groups = [set(domains[group_C == group]) for group in range(10)]
    assert [groups.count({d}) for d in ("cars", "art", "food")] == [6, 3, 1]
    cars = np.bincount(group_C[:60])
    assert set(cars[cars > 0].tolist()) == {10}


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"count": 2, "within_domains": True}, "2 is below the 3 domains"),
        ({"count": 4}, "4 exceeds the 3 classes"),
    ],
)
def test_too_few_or_too_many_groups_are_refused(groups: dict, message: str) -> None:
    with pytest.raises(UserError, match=rf"task\.metaclasses\.count: {message}"):
        MetaclassLoss(ArcFaceConfig(), MetaclassesConfig(**groups), 4, 1, [1] * 3, ["a", "b", "c"])


def test_parts_of_an_embedding_count_alike(tmp_path) -> None:
    config = tiny_config(tmp_path / "t", head={"dim": 12}).model
    config = config.model_copy(update={"head": config.head.model_copy(update={"parts": 3})})
    torch.manual_seed(0)
    embedder = build_embedder(config).eval()
    images = torch.rand(2, 3, 32, 32)
    emb = embedder(images).unflatten(1, (3, 4))
    torch.testing.assert_close(emb.norm(dim=2), torch.full((2, 3), 3**-0.5))
    raw = embedder.head(embedder.backbone(images)).unflatten(1, (3, 4))
    torch.testing.assert_close(functional.cosine_similarity(emb, raw, dim=2), torch.ones(2, 3))
