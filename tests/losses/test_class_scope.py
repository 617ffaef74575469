"""Stages whose classes start anew, or compete among themselves alone."""

import copy

import pytest
import torch
import twins
from torch import Tensor
from torch.nn import functional

from guie.losses.base import LossStage
from guie.losses.margin_softmax import MarginSoftmax
from guie.losses.rules import ArcFace, CurricularFace

CLASSES, DIM = 12, 5
STAGE = [7, 2, 3, 10]  # in no order, and neither end among them
CARRIED = LossStage()
ALONE = LossStage(alone=True)


def softmax(rule=None, **changes) -> MarginSoftmax:
    torch.manual_seed(0)
    rule = rule or ArcFace(torch.linspace(0.1, 0.6, CLASSES))
    return MarginSoftmax(CLASSES, DIM, rule, scale=20.0, **{"block_logits": 10, **changes})


def batch(classes: list[int], images: int = 9) -> tuple[Tensor, Tensor]:
    emb = functional.normalize(torch.randn(images, DIM, dtype=torch.float64), dim=-1)
    labels = torch.tensor(classes)[torch.randint(len(classes), (images,))]
    return emb.requires_grad_(), labels


def rows(classes: list[int], centers: int) -> list[int]:
    """By hand: the rows of these classes in ascending order."""
    return [c * centers + j for c in sorted(classes) for j in range(centers)]


@pytest.mark.parametrize("centers", [1, 3])
@pytest.mark.parametrize("edges", [None, (0, 3, 8, 8, 12)])
def test_over_a_stage_it_equals_the_twin_of_a_subset(centers: int, edges) -> None:
    head = softmax(centers=centers, edges=edges).double()
    head.begin_stage(STAGE, ALONE)
    emb, labels = batch(STAGE)
    loss, logs = head(emb, labels)
    loss.backward()
    got = emb.grad.clone(), head.stage_AD.grad
    emb.grad = None

    place = {2: 0, 3: 1, 7: 2, 10: 3}
    weight = head.weight_CD.detach()[rows(STAGE, centers)].requires_grad_()
    expected, accuracy = twins.margin_softmax(
        emb,
        weight,
        [place[label] for label in labels.tolist()],
        scale=20.0,
        margins=[float(head.rule.margin_C[c]) for c in (2, 3, 7, 10)],  # those of the run's classes
        centers=centers,
        edges=(0, 1, 3, 3, 4) if edges else None,  # 2 | 3, 7 | | 10
    )
    expected.backward()
    torch.testing.assert_close(loss, expected)
    assert logs["accuracy"].item() == pytest.approx(accuracy)
    torch.testing.assert_close(got, (emb.grad, weight.grad))


OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.5),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.5),
}


def train(head: MarginSoftmax, optimizer: torch.optim.Optimizer, classes: list[int]) -> None:
    for _ in range(3):
        optimizer.zero_grad()
        head(*batch(classes))[0].backward()
        optimizer.step()


@pytest.mark.parametrize(("name", "centers"), [("adamw", 2), ("sgd", 1)])
def test_decay_and_momentum_move_the_rows_of_the_stage_alone(name: str, centers: int) -> None:
    head = softmax(centers=centers).double()
    others = [c for c in range(CLASSES) if c not in STAGE]
    stages = [(range(CLASSES), CARRIED), (STAGE, ALONE), (others, CARRIED)]
    moved = []
    for classes, how in stages:
        for parameter in head.parameters():
            parameter.requires_grad_(True)  # as `freeze` does at the start of a stage
        head.begin_stage(classes, how)
        before = head.weight_CD.detach().clone()
        trained = [part for part, p in head.named_parameters() if p.requires_grad]
        assert trained == (["stage_AD"] if how.alone else ["weight_CD"])  # DDP waits for each
        optimizer = OPTIMIZERS[name]([p for p in head.parameters() if p.requires_grad])
        train(head, optimizer, list(classes))
        head.begin_stage(classes, CARRIED)  # brings the rows home
        moved.append((head.weight_CD != before).any(dim=1).view(CLASSES, centers))
    assert moved[0].all() and moved[2].all()
    assert moved[1][STAGE].all() and not moved[1][others].any()
    assert dict(head.named_parameters()).keys() == {"weight_CD"}


def test_a_stage_goes_on_from_its_checkpoint_to_the_same_bits() -> None:
    head = softmax(centers=2)
    head.begin_stage(STAGE, LossStage(alone=True, reset=(4, 1)))
    optimizer = OPTIMIZERS["adamw"]([head.stage_AD])
    train(head, optimizer, STAGE)
    saved = copy.deepcopy((head.state_dict(), optimizer.state_dict()))
    again = softmax(centers=2)
    torch.nn.init.zeros_(again.weight_CD)
    again.begin_stage(STAGE, LossStage(alone=True, reset=(4, 1)))
    optimizer_again = OPTIMIZERS["adamw"]([again.stage_AD])
    again.load_state_dict(saved[0])
    optimizer_again.load_state_dict(saved[1])
    for each, its_optimizer in ((head, optimizer), (again, optimizer_again)):
        torch.manual_seed(1)
        train(each, its_optimizer, STAGE)
        each.begin_stage([0, 1], ALONE)
    assert head.weight_CD.shape == (CLASSES * 2, DIM)
    torch.testing.assert_close(again.state_dict(), head.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("per_class", [False, True])
def test_reset_draws_the_rows_of_the_stage_and_no_others(per_class: bool) -> None:
    rule = CurricularFace(0.3, CLASSES if per_class else None)
    head = softmax(rule, centers=2)
    rule.t_C.fill_(0.7)
    head.begin_stage(STAGE, CARRIED)
    assert (rule.t_C == 0.7).all()
    before = head.weight_CD.detach().clone()
    state = torch.get_rng_state()
    head.begin_stage(STAGE, LossStage(alone=False, reset=(4, 1)))
    assert torch.equal(torch.get_rng_state(), state)  # the global stream is left alone
    drawn = torch.zeros(CLASSES, dtype=torch.bool)
    drawn[STAGE] = True
    moved = (head.weight_CD != before).any(dim=1).view(CLASSES, 2)
    assert moved[drawn].all() and not moved[~drawn].any()
    seeds = ((4, 1), (4, 2), (5, 1))
    others = []
    for seed in seeds:
        other = softmax(centers=2)
        other.begin_stage(STAGE, LossStage(reset=seed))
        others.append(other.weight_CD[rows(STAGE, 2)])
    same = [torch.equal(head.weight_CD[rows(STAGE, 2)], other) for other in others]
    assert same == [True, False, False]  # a function of the seed
    reset = drawn if per_class else torch.tensor([True])  # a single mean starts with the classes
    assert not rule.t_C[reset].any() and (rule.t_C[~reset] == 0.7).all()
    head.begin_stage(STAGE, ALONE)
    emb, labels = batch(STAGE)
    head(emb.float(), labels)
    seen = torch.isin(torch.arange(CLASSES), labels) if per_class else torch.tensor([True])
    assert (rule.t_C[reset & seen] != 0).all() and not rule.t_C[reset & ~seen].any()
