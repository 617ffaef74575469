"""Teacher heads that learn beside the student: UDON's loss, and whom it reaches."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from guie.config import RunConfig, config_from, load_config
from guie.config.distillation import OnlineConfig
from guie.data.dataset import Batch, Classes
from guie.losses.distillation import Similarity
from guie.training.tasks import build_task
from guie.training.tasks.online import OnlineTask, OnlineTeacher
from tiny_runs import TINY_CLIP

CLASSES = Classes(["a/0", "a/1", "a/2", "b/0", "b/1"], [4] * 5, ["a", "a", "a", "b", "b"])
LABELS = torch.tensor([0, 3, 1, 4, 0, 2])
RECIPE = Path(__file__).parents[3] / "configs/recipes/udon_clip.yaml"
PARTS = ("backbone", "head", "classes", "teachers")


def online(**task: Any) -> OnlineTask:
    head = {"dim": 8, "norm": "bn"}
    values = {
        "name": "t",
        "data": {"manifest": "m.csv"},
        "model": {"backbone": TINY_CLIP, "image": {"size_px": 32}, "head": head},
        "task": {"name": "online", "teacher_dim": 12, **task},
        "stages": [{"epochs": 1, "lr": dict.fromkeys(PARTS, 1e-3)}],
    }
    torch.manual_seed(0)
    task = build_task(config_from(values, RunConfig), CLASSES)
    task.begin_stage(0, range(5))
    return task


def batch() -> Batch:
    images = torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    return Batch(LABELS, torch.arange(6), torch.ones(6, 3), images)


CODE = {"teacher_norm": "l2", "similarity": 0.25}  # what its code has, as udon_clip.yaml


def scenics_mean_squared_error(predictions: np.ndarray, targets: np.ndarray) -> float:
    """scenic, model_utils.py:600-668: summed over all axes but the first, divided by the first's length."""
    squares = np.square(targets - predictions).sum(axis=1)
    return squares.sum() / (squares.size + 1e-8)


def udons_cosine_term(ours: np.ndarray, theirs: np.ndarray, devices: int) -> float:
    """UDON, loss_utils.py:95-120: of each device's images, times devices / 4; gradients are averaged."""
    pairs = zip(np.split(ours, devices), np.split(theirs, devices), strict=True)
    losses = [scenics_mean_squared_error(own @ own.T, other @ other.T) for own, other in pairs]
    return devices / 4 * np.mean(losses)


@pytest.mark.parametrize("devices", [1, 4, 8])
def test_the_cosine_term_is_the_codes_on_any_number_of_devices(devices: int) -> None:
    """By the recipe's weight, in the mean over which images share a device.

    But for an image's cosine to itself, where both have 1: it is a larger share of a smaller block.
    """
    config = load_config(RECIPE, RunConfig)
    assert isinstance(config.task, OnlineConfig)
    generator = torch.Generator().manual_seed(0)
    ours, theirs = (
        functional.normalize(torch.randn(128, dim, generator=generator) + 1, dim=1)
        for dim in (64, 256)
    )
    term = config.task.similarity * Similarity()(ours, theirs).item()
    random, images = np.random.default_rng(0), 128 // devices
    orders = [random.permutation(128) for _ in range(200)]
    pairs = [(ours.numpy()[order], theirs.numpy()[order]) for order in orders]
    expected = np.mean([udons_cosine_term(*pair, devices) for pair in pairs])
    expected *= (127 / 128) / ((images - 1) / images)
    assert term == pytest.approx(expected, rel=1e-5 if devices == 1 else 0.01)


def udon_slowly(task: OnlineTask, given: Batch) -> dict[str, torch.Tensor]:
    """Domain by domain, in UDON's words, on one device."""
    feat = task.embedder.backbone(given.images_BCHW)
    emb = task.embedder.embed(feat, given.shapes_B3)
    weight = functional.normalize(task.criterion.weight_CD, dim=1)
    terms = dict.fromkeys(("student", "teachers", "logits", "similarity"), 0.0)
    for number, (first, last) in enumerate(((0, 3), (3, 5))):
        own = (first <= LABELS) & (LABELS < last)
        label, share = LABELS[own] - first, own.float().mean()
        ours = emb[own] @ weight[first:last].T
        teacher = task.teachers[number]
        theirs_emb = functional.normalize(
            teacher.head(feat[own] / feat[own].norm(dim=1, keepdim=True)), dim=1
        )
        theirs = theirs_emb @ functional.normalize(teacher.criterion.weight_CD, dim=1).T
        p, q = (theirs / 0.1).softmax(1), (ours / 0.1).softmax(1)
        of_domain = {
            "student": functional.cross_entropy(16 * ours, label),
            "teachers": functional.cross_entropy(16 * theirs, label),
            "logits": (p * (p / q).log()).sum(1).mean(),
            "similarity": udons_cosine_term(
                emb[own].detach().numpy(), theirs_emb.detach().numpy(), 1
            ),
        }
        terms = {name: terms[name] + share * value for name, value in of_domain.items()}
    return terms


def test_the_loss_is_udons() -> None:
    """But for the sum's divisor: there the quarter is part of the term, and the weights sum to 4."""
    task = online(**CODE)
    loss, logs = task(batch())
    expected = {name: value.detach() for name, value in udon_slowly(task, batch()).items()}
    weighted = logs | {"similarity": 0.25 * logs["similarity"]}
    for name, value in expected.items():
        torch.testing.assert_close(weighted[name], value, rtol=1e-4, atol=1e-5, check_dtype=False)
    total = sum(expected.values()) / 4
    torch.testing.assert_close(loss * 3.25 / 4, total, rtol=1e-4, atol=1e-5, check_dtype=False)
    assert task.sampler_loss(logs) is logs["teachers"]


def test_a_teachers_head_starts_as_in_the_code() -> None:
    """flax's Dense: variance 1 / features, a normal that ends at two of its own deviations, bias 0."""
    config = OnlineConfig(name="online", teacher_norm="l2", teacher_dim=256)
    torch.manual_seed(0)
    teacher = OnlineTeacher(config, 768, range(5), CLASSES)
    weight, bias = teacher.head.weight, teacher.head.bias
    assert not bias.any()
    assert weight.std().item() == pytest.approx(768**-0.5, rel=0.01)
    assert weight.abs().max().item() <= 2 * 768**-0.5 / 0.8796256610342398 * (1 + 1e-6)
    feat, label = torch.randn(4, 768), torch.tensor([0, 1, 2, 3])
    torch.testing.assert_close(teacher(feat, label)[0], teacher(7 * feat, label)[0])
    raw = OnlineTeacher(config.model_copy(update={"teacher_norm": "none"}), 768, range(5), CLASSES)
    assert raw.head.bias.any()


@pytest.mark.parametrize("reaches", ["head", "backbone"])
def test_whom_the_lessons_reach(reaches: str) -> None:
    """Never the teacher that gives them; the backbone in the code's variant alone."""
    task = online(backprop_to=reaches, student=0.0)
    (3 * task(batch())[0]).backward()  # the sum of the weights
    alone = online(backprop_to=reaches, student=0.0, logits=1e-12, similarity=0.0)
    alone(batch())[0].backward()  # what the teachers' own classification gives

    def differ(part: str) -> bool:
        pairs = zip(task.parts()[part].values(), alone.parts()[part].values(), strict=True)
        grads = [(p.grad, o.grad) for p, o in pairs if p.grad is not None]
        return any(o is None or not torch.allclose(p, o, atol=1e-6, rtol=1e-4) for p, o in grads)

    assert differ("head") and differ("backbone") == (reaches == "backbone")
    for ours, theirs in zip(task.teachers.parameters(), alone.teachers.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-7)


def test_running_statistics_move_once() -> None:
    task, plain = online().train(), online(backprop_to="backbone").train()
    task(batch())
    plain(batch())
    for ours, theirs in zip(task.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_stage_may_lack_a_teachers_domain() -> None:
    task = online(loss={"name": "arcface", "init": "he_uniform"})
    alone = {"softmax_over": "stage", "classes": "reset"}
    task.config.stages[0] = task.config.stages[0].model_copy(update=alone)
    before = task.teachers[1].criterion.weight_CD.clone()
    task.begin_stage(0, range(3))  # of domain a
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    loss = task(replace(batch(), label_B=labels))[0]
    assert loss.isfinite()
    assert torch.equal(task.teachers[1].criterion.weight_CD, before)


def test_a_teacher_without_images_keeps_its_running_mean() -> None:
    task = online(loss={"name": "curricularface"}).train()
    task(batch())
    mean = task.teachers[1].criterion.rule.t_C.clone()
    assert mean.any()
    images = torch.randn(3, 3, 32, 32)
    loss, _ = task(Batch(torch.tensor([0, 1, 2]), torch.arange(3), torch.ones(3, 3), images))
    loss.backward()
    assert loss.isfinite() and torch.equal(task.teachers[1].criterion.rule.t_C, mean)
    assert all(not p.grad.any() for p in task.teachers[1].parameters())
