"""The streamed margin softmax against a twin that builds every logit on its own, and its margins."""

import pytest
import torch
import twins
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from guie.config.losses import ClassSizeMargin, MarginSchedule
from guie.losses.margin_softmax import MarginSoftmax
from guie.losses.rules import (
    ArcFace,
    CosFace,
    CurricularFace,
    class_size_margins,
    scheduled_margin,
)

# images, dimensions, classes, logits a block: blocks that do not divide, that hold one class, or all
SIZES = [(9, 5, 7, 20), (1, 3, 2, 1), (16, 4, 33, 1000), (6, 8, 12, 24), (3, 2, 40, 3)]


def batch(images: int, dim: int, classes: int, dtype=torch.float64) -> tuple[Tensor, Tensor]:
    """Unit-length embeddings, some of them alike, and labels in no order, some of them alike."""
    emb = functional.normalize(torch.randn(images, dim, dtype=dtype), dim=-1)
    return emb.requires_grad_(), torch.randint(classes, (images,))


def assert_equals_twin(head: MarginSoftmax, emb: Tensor, labels: Tensor, **twin) -> None:
    """Loss, accuracy and both gradients."""
    margins = head.rule.margin_C.tolist()  # as float32 holds them
    twin["margins"] = margins if len(margins) > 1 else margins * len(head.weight_CD)
    head.zero_grad()
    loss, logs = head(emb, labels)
    loss.backward()
    got = [emb.grad.clone(), head.weight_CD.grad.clone()]
    emb.grad = head.weight_CD.grad = None
    expected, accuracy = twins.margin_softmax(
        emb, head.weight_CD, labels.tolist(), scale=head.scale, **twin
    )
    expected.backward()
    torch.testing.assert_close(loss, expected)
    assert logs["accuracy"].item() == pytest.approx(accuracy)
    torch.testing.assert_close(got, [emb.grad, head.weight_CD.grad])


@pytest.mark.parametrize("images,dim,classes,block", SIZES)
@pytest.mark.parametrize("rule,margin", [(ArcFace, 0.5), (ArcFace, 1.2), (CosFace, 0.35)])
@pytest.mark.parametrize("centers", [1, 3])
def test_loss_and_gradients_equal_the_twin(
    images: int, dim: int, classes: int, block: int, rule: type, margin: float, centers: int
) -> None:
    torch.manual_seed(images + classes)
    head = MarginSoftmax(
        classes, dim, rule(margin), scale=16.0, centers=centers, block_logits=block
    ).double()
    emb, labels = batch(images, dim, classes)
    twin = twins.angular if rule is ArcFace else twins.additive
    assert_equals_twin(head, emb, labels, rule=twin, centers=centers)


@pytest.mark.parametrize("edges", [(0, 1, 5, 12, 12, 20), (0, 20)])
@pytest.mark.parametrize("block", [7, 10_000])
def test_separate_classifiers_equal_the_twin(edges: tuple[int, ...], block: int) -> None:
    torch.manual_seed(0)
    by_class = ArcFace(torch.rand(20, dtype=torch.float64))
    head = MarginSoftmax(20, 6, by_class, scale=20.0, edges=edges, block_logits=block)
    emb, labels = batch(15, 6, 20)
    labels[:3] = torch.tensor([0, 0, 13])  # class 0 is alone in its domain: no rival, no loss
    assert_equals_twin(head.double(), emb, labels, edges=edges)


@pytest.mark.parametrize("per_class", [False, True])
@pytest.mark.parametrize("centers", [1, 2])
def test_curricularface_equals_the_twin_over_steps(per_class: bool, centers: int) -> None:
    torch.manual_seed(2)
    classes, momentum = 9, 0.6
    rule = CurricularFace(0.3, classes if per_class else None, momentum=momentum)
    head = MarginSoftmax(classes, 3, rule, scale=32.0, centers=centers, block_logits=40).double()
    t = [0.0] * classes
    for _ in range(4):
        emb, labels = batch(14, 3, classes)
        unit = functional.normalize(head.weight_CD.detach(), dim=-1).view(classes, centers, 3)
        own = [
            float((unit[c] @ x).max()) for x, c in zip(emb.detach(), labels.tolist(), strict=True)
        ]
        fresh = list(t)
        for c in range(classes):
            seen = [v for v, label in zip(own, labels.tolist(), strict=True) if label == c]
            if not per_class:
                fresh[c] = momentum * t[c] + (1 - momentum) * sum(own) / len(own)
            elif seen:
                fresh[c] = momentum * t[c] + (1 - momentum) * sum(seen) / len(seen)
        used = t if per_class else fresh  # PUMA's code updates after use, the published one before
        t_of_image = [used[c] for c in labels.tolist()]
        assert_equals_twin(head, emb, labels, centers=centers, t=t_of_image)
        t = fresh
        torch.testing.assert_close(rule.t_C, torch.tensor(t[: len(rule.t_C)]).double())
    assert max(map(abs, t)) > 0.05  # else the test would have shown nothing

    head.eval()
    head(emb, labels)
    torch.testing.assert_close(rule.t_C, torch.tensor(t[: len(rule.t_C)]).double())


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("rule", [ArcFace(0.5), CosFace(0.3), CurricularFace(0.3)])
def test_finite_where_an_embedding_lies_on_its_class_or_opposite(sign: float, rule) -> None:
    head = MarginSoftmax(3, 4, rule, scale=64.0)
    emb = (sign * functional.normalize(head.weight_CD.detach(), dim=-1)).requires_grad_()
    loss, _ = head(emb, torch.tensor([0, 1, 2]))
    loss.backward()
    assert loss.isfinite() and emb.grad.isfinite().all() and head.weight_CD.grad.isfinite().all()
    with pytest.raises(ValueError, match="labels 1 to 3 are not among 3 classes"):
        head(emb, torch.tensor([1, 2, 3]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_computes_in_fp32_whatever_comes_in(dtype: torch.dtype) -> None:
    torch.manual_seed(5)
    head = MarginSoftmax(50, 8, ArcFace(0.3), scale=30.0)
    emb, labels = batch(6, 8, 50, torch.float32)
    half = emb.detach().to(dtype).requires_grad_()
    expected, _ = head(half.detach().float(), labels)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, _ = head(half, labels)
    loss.backward()
    assert loss.dtype == head.weight_CD.grad.dtype == torch.float32 and half.grad.dtype == dtype
    assert loss.item() == expected.item()


class Largest(TorchDispatchMode):
    """Sees how many elements the largest result of any operator has."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        tensors = [x for x in tree_flatten(result)[0] if isinstance(x, Tensor)]
        self.numel = max([self.numel, *(x.numel() for x in tensors)])
        return result


@pytest.mark.parametrize("rule", [ArcFace(0.3), CurricularFace(0.3)])
def test_nothing_is_larger_than_the_class_weights(rule) -> None:
    head = MarginSoftmax(5000, 4, rule, scale=30.0, block_logits=4000)
    emb, labels = batch(64, 4, 5000, torch.float32)
    with Largest() as largest:
        head(emb, labels)[0].backward()
    assert largest.numel == head.weight_CD.numel() < 64 * 5000 / 10


@pytest.mark.parametrize("rule", [ArcFace, CosFace])
def test_a_schedule_sets_the_margin_and_is_no_state(rule: type) -> None:
    torch.manual_seed(0)
    stairs = MarginSchedule(start=0.3, rise_per_epoch=0.1, limit=0.8, every="epoch")  # 2nd place
    steps = [scheduled_margin(stairs, epoch) for epoch in (0, 0.99, 1, 4.5, 5, 9)]
    assert steps == pytest.approx([0.3, 0.3, 0.4, 0.7, 0.8, 0.8])
    schedule = MarginSchedule(start=0.1, rise_per_epoch=0.2, limit=0.5)
    head = MarginSoftmax(6, 4, rule(schedule), scale=20.0)
    fixed = MarginSoftmax(6, 4, rule(0.4), scale=20.0)
    fixed.load_state_dict(head.state_dict())
    emb = functional.normalize(torch.randn(8, 4), dim=-1)
    labels = torch.randint(6, (8,))
    before = head(emb, labels)[0].item()
    head.rule.set_epoch(1.5)
    assert head(emb, labels)[0].item() == pytest.approx(fixed(emb, labels)[0].item(), rel=1e-6)
    head.rule.set_epoch(0.0)
    assert head(emb, labels)[0].item() == before
    fixed.rule.set_epoch(3.0)  # a fixed margin stays
    assert fixed.rule.margin_C.item() == pytest.approx(0.4)
    assert set(head.state_dict()) == {"weight_CD"}
    head.rule.set_margin(0.45)  # of a stage, in which the schedule rests
    head.rule.set_epoch(1.0)
    assert head.rule.margin(labels).tolist() == pytest.approx([0.45])
    head.rule.set_margin(None)
    head.rule.set_epoch(1.0)
    assert head.rule.margin(labels).tolist() == pytest.approx([0.3])


def test_class_size_margins() -> None:
    sizes = [1, 16, 81, 256, 0]
    margins = class_size_margins(sizes, ClassSizeMargin(min=0.05, max=0.5))
    rarity = [1, 1 / 2, 1 / 3, 1 / 4, 1]  # n ** -1/4
    expected = [0.05 + (r - 1 / 4) / (3 / 4) * 0.45 for r in rarity]
    assert margins.tolist() == pytest.approx(expected)
    # the fourth place's own formula, sqrt(1 / sqrt(n)) stretched
    assert margins.dtype == torch.float32
    alike = class_size_margins([7, 7], ClassSizeMargin(min=0.05, max=0.5))
    assert alike.tolist() == pytest.approx([0.5, 0.5])
