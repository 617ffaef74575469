"""Random groups of classes: balanced, drawn by number, each member on its part of the embedding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from guie.base.errors import UserError
from guie.config import RunConfig, config_from
from guie.config.losses import ArcFaceConfig, MetaclassesConfig, SoftmaxConfig
from guie.losses.build import build_loss
from guie.losses.composite import MetaclassLoss, partition
from guie.models.embedder import build_embedder
from tiny_runs import TINY_CLIP, tiny_config


@pytest.mark.parametrize(("classes", "groups"), [(98, 12), (12, 12), (3997, 192), (17, 2)])
def test_groups_are_balanced_and_each_members_own(classes: int, groups: int) -> None:
    alike = ["a"] * classes
    ones = [partition(alike, groups, (0, member)) for member in range(3)]
    for group_C in ones:
        sizes = np.bincount(group_C, minlength=groups)
        assert sizes.max() - sizes.min() <= 1 and sizes.sum() == classes and len(sizes) == groups
    assert not np.array_equal(ones[0], ones[1])
    assert np.array_equal(ones[1], partition(alike, groups, (0, 1)))
    assert not np.array_equal(ones[1], partition(alike, groups, (1, 1)))


def test_frozen_groups() -> None:
    """A member must be the same next year."""
    assert partition(["a"] * 7, 3, (0, 2)).tolist() == [2, 1, 1, 0, 2, 0, 0]


def test_groups_within_domains_have_classes_of_one() -> None:
    domains = ["cars"] * 60 + ["art"] * 30 + ["food"]
    group_C = partition(domains, 10, (0, 0))
    of_group: dict[int, set[str]] = {}
    for group, domain in zip(group_C.tolist(), domains, strict=True):
        of_group.setdefault(group, set()).add(domain)
    assert len(of_group) == 10 and all(len(there) == 1 for there in of_group.values())
    assert [[*of_group.values()].count({d}) for d in ("cars", "art", "food")] == [6, 3, 1]
    cars = np.bincount(group_C[:60])
    assert set(cars[cars > 0].tolist()) == {10}


def test_fewer_groups_than_domains_are_refused() -> None:
    within = MetaclassesConfig(count=2, within_domains=True)
    with pytest.raises(UserError, match=r"task\.metaclasses\.count: 2 is below the 3 domains"):
        MetaclassLoss(SoftmaxConfig(name="softmax"), within, 4, 1, [1] * 3, ["a", "b", "c"])


def test_several_members_are_the_mean_of_each_on_its_part() -> None:
    torch.manual_seed(0)
    config, sizes = SoftmaxConfig(name="softmax"), [3, 1, 4, 1, 5]
    loss = MetaclassLoss(config, MetaclassesConfig(count=2, member=4), 12, 3, sizes, ["a"] * 5)
    emb, label = functional.normalize(torch.randn(6, 12), dim=1), torch.tensor([0, 1, 2, 3, 4, 0])
    got, logs = loss(emb, label)
    alone = []
    for number in range(3):
        one = MetaclassLoss(
            config, MetaclassesConfig(count=2, member=4 + number), 4, 1, sizes, ["a"] * 5
        )
        one.members[0].load_state_dict(loss.members[number].state_dict())
        alone.append(one(functional.normalize(emb[:, 4 * number : 4 * number + 4], dim=1), label))
    torch.testing.assert_close(got, sum(value for value, _ in alone) / 3)
    torch.testing.assert_close(logs["accuracy"], sum(said["accuracy"] for _, said in alone) / 3)


def test_a_member_is_the_loss_on_its_groups() -> None:
    torch.manual_seed(0)
    sizes = [3, 1, 4, 1, 5]
    groups = torch.from_numpy(partition(["a"] * 5, 2, (0, 0)))
    loss = MetaclassLoss(ArcFaceConfig(), MetaclassesConfig(count=2), 4, 1, sizes, ["a"] * 5)
    plain = build_loss(ArcFaceConfig(), 4, [7, 7], ["a", "a"])
    plain.load_state_dict(loss.members[0].state_dict())
    emb, label = functional.normalize(torch.randn(6, 4), dim=1), torch.tensor([0, 1, 2, 3, 4, 0])
    torch.testing.assert_close(loss(emb, label)[0], plain(emb, groups[label])[0])


def test_more_groups_than_classes_are_refused() -> None:
    with pytest.raises(UserError, match=r"task\.metaclasses\.count: 6 exceeds the 5 classes"):
        MetaclassLoss(
            SoftmaxConfig(name="softmax"), MetaclassesConfig(count=6), 4, 1, [1] * 5, ["a"] * 5
        )


def test_parts_of_an_embedding_count_alike(tmp_path) -> None:
    config = tiny_config(tmp_path / "t", head={"dim": 12}).model
    assert config.head
    config = config.model_copy(update={"head": config.head.model_copy(update={"parts": 3})})
    torch.manual_seed(0)
    embedder = build_embedder(config).eval()
    images = torch.rand(2, 3, 32, 32)
    emb = embedder(images).unflatten(1, (3, 4))
    torch.testing.assert_close(emb.norm(dim=2), torch.full((2, 3), 3**-0.5))
    raw = embedder.head(embedder.backbone(images)).unflatten(1, (3, 4))
    torch.testing.assert_close(functional.cosine_similarity(emb, raw, dim=2), torch.ones(2, 3))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head": {"dim": 12, "parts": 5}}, "5 does not divide dim 12"),
        ({"head": {"dim": 12, "parts": 3}}, r"model\.head\.parts: .*needs task\.metaclasses"),
        ({"task": {"metaclasses": {"count": 1}}}, "greater than or equal to 2"),
        (
            {"task": {"loss": {"classifier": "separate"}, "metaclasses": {"count": 4}}},
            r"task\.loss\.classifier: metaclasses mix domains",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(changes: dict, message: str) -> None:
    values = {
        "name": "t",
        "data": {"manifest": "m.csv"},
        "model": {"backbone": TINY_CLIP, "image": {"size_px": 32}, "head": changes.get("head")},
        "task": changes.get("task", {}),
        "train": {"epochs": 1, "lr": {"backbone": 1e-4, "classes": 1e-2}},
        "stages": [{}],
    }
    if "head" in changes:
        values["train"]["lr"]["head"] = 1e-3
    with pytest.raises((UserError, ValueError), match=message):
        config_from(values, RunConfig)
