"""Terms against forgetting: values, gradients, and that the pretrained backbone stays outside."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from torch.nn import functional

from guie.config import RunConfig
from guie.config.model import BackboneConfig
from guie.data.dataset import Batch, Classes
from guie.models.backbones.open_clip import create_clip
from guie.training.optim import MovingAverage, freeze
from guie.training.retention import drift, squared_distance
from guie.training.step import gradients
from guie.training.tasks import build_task
from guie.training.tasks.base import Task

TINY = {"library": "open_clip", "name": "guie-tiny"}
CLASSES = Classes(["a/0", "a/1", "b/0"], [4, 4, 4], ["a", "a", "b"])
BOTH = {"weights": 0.5, "features": 10.0}
GENERIC = {**BOTH, "generic": {"manifest": "g.csv", "batch_size": 6}}
ALL = {"backbone": 1e-4, "head": 1e-3, "classes": 1e-2}
STAGES = [
    {"epochs": 1, "lr": {"head": 1e-3, "classes": 1e-2}},
    {"epochs": 1, "lr": ALL, "size_px": 48},
    {"epochs": 1, "lr": ALL, "size_px": 40, "stride_px": 4},
]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CLIP with weights of its own, as if it were pretrained."""
    torch.manual_seed(1)
    file = tmp_path_factory.mktemp("weights") / "clip.pt"
    torch.save(create_clip(BackboneConfig(**TINY)).state_dict(), file)
    return file


def config(weights: Path, retention: dict | None = BOTH, **changes) -> RunConfig:
    values = {
        "name": "t",
        "data": {"manifest": "m.csv"},
        "model": {"backbone": {**TINY, "pretrained": str(weights)}, "image": {"size_px": 32}},
        "stages": STAGES,
        "retention": retention,
    }
    return RunConfig.model_validate({**values, **changes})


def opened(run: RunConfig, number: int, weights: bool = True) -> Task:
    """A task as the loop has it at the start of a stage."""
    torch.manual_seed(0)
    task = build_task(run, CLASSES, weights)
    for stage in run.stages[: number + 1]:
        task.embedder.backbone.set_image_size(stage.size_px or 32, stage.stride_px)
    freeze(task, run.stages[number].lr)
    task.begin_stage(number, [0, 1, 2])
    return task


def nudge(task: Task, amount: float = 0.02) -> None:
    """As if it had been trained."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in task.embedder.backbone.parameters():
            p += amount * torch.randn(p.shape, generator=generator)


def batch(size_px: int = 48, images: int = 6, generic: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(3)
    images_BCHW = torch.randn(images, 3, size_px, size_px, generator=generator)
    label_B = torch.randint(3, (images,), generator=generator)
    made = Batch(label_B, torch.arange(images), images_BCHW=images_BCHW)
    if not generic:
        return made
    generic_GCHW = torch.randn(generic, 3, size_px, size_px, generator=generator)
    return replace(made, generic_GCHW=generic_GCHW)


def terms(task: Task, images: Batch) -> tuple[float, float]:
    logs = task(images)[1]
    return logs["retention_weights"].item(), logs["retention_features"].item()


@pytest.mark.parametrize("number,size_px", [(1, 48), (2, 40)])
def test_what_was_not_trained_was_not_forgotten(weights: Path, number: int, size_px: int) -> None:
    """Also where position embeddings were resampled, once or more often, and patches overlap."""
    task = opened(config(weights), number)
    assert terms(task, batch(size_px)) == (0.0, pytest.approx(0.0, abs=1e-12))
    nudge(task)
    assert min(terms(task, batch(size_px))) > 1e-3


def test_values_and_gradients_equal_those_of_slow_twins(weights: Path) -> None:
    task, plain = opened(config(weights), 1), opened(config(weights, retention=None), 1)
    theirs = copy.deepcopy(plain.embedder.backbone)  # as pretrained, at the stage's size
    for each in (task, plain):
        nudge(each)
    images = batch()
    loss, logs = task(images)
    loss.backward()

    backbone = plain.embedder.backbone
    apart = [
        (p - p0.detach()).flatten() @ (p - p0.detach()).flatten()
        for p, p0 in zip(backbone.parameters(), theirs.parameters(), strict=True)
    ]
    ours_BF, theirs_BF = backbone(images.images_BCHW), theirs(images.images_BCHW).detach()
    angles = [
        1 - functional.cosine_similarity(*pair, dim=0)
        for pair in zip(ours_BF, theirs_BF, strict=True)
    ]
    distance, forgotten = sum(apart), sum(angles) / len(angles)
    own, own_logs = plain(images)
    expected = own + 0.5 * distance + 10.0 * forgotten
    expected.backward()
    torch.testing.assert_close(loss, expected)
    assert logs["retention_weights"].item() == pytest.approx(distance.item(), rel=1e-5)
    assert logs["retention_features"].item() == pytest.approx(forgotten.item(), rel=1e-4)
    assert logs["loss"] == own_logs["loss"] == own
    for (name, p), twin in zip(task.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.grad, twin.grad, rtol=1e-4, atol=1e-5, msg=name)


def test_drift_keeps_its_digits_where_little_was_forgotten() -> None:
    generator = torch.Generator().manual_seed(0)
    feat = torch.randn(5, 64, generator=generator, dtype=torch.float64)
    near = feat + 1e-5 * torch.randn(5, 64, generator=generator, dtype=torch.float64)
    exact = (1 - functional.cosine_similarity(feat, near)).mean().item()
    assert drift(7.0 * feat.float(), near.float()).item() == pytest.approx(exact, rel=1e-2)


def test_the_distance_counts_what_is_trained_alone() -> None:
    ours, theirs = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    ours.bias.requires_grad_(False)
    (3 * squared_distance(ours, theirs)).backward()
    torch.testing.assert_close(ours.weight.grad, 6 * (ours.weight - theirs.weight).detach())
    expected = (ours.weight - theirs.weight).square().sum()
    torch.testing.assert_close(squared_distance(ours, theirs), expected)
    assert ours.bias.grad is None and theirs.weight.grad is None


def test_a_stage_that_freezes_the_backbone_retains_nothing(weights: Path) -> None:
    task = opened(config(weights, GENERIC), 0)
    assert task.retention.pretrained is None and task.retention.generic is None
    loss, logs = task(batch(32))
    assert loss == logs["loss"] and not any(name.startswith("retention") for name in logs)
    task = opened(config(weights, GENERIC), 1)
    assert task.retention.generic.batch_size == 6


def test_the_pretrained_backbone_is_no_part_of_the_task(weights: Path) -> None:
    task, plain = opened(config(weights), 1), opened(config(weights, retention=None), 1)
    assert task.state_dict().keys() == plain.state_dict().keys()
    assert len(list(task.modules())) == len(list(plain.modules()))
    assert MovingAverage(task, 0.9).module.retention is task.retention  # not one more copy
    pretrained = task.retention.pretrained
    task.train()
    task(batch())[0].backward()
    assert not pretrained.training
    assert not any(p.requires_grad or p.grad is not None for p in pretrained.parameters())


@pytest.mark.parametrize("generic", [0, 5])
@pytest.mark.parametrize("pieces", [2, 4, 7])
def test_micro_batches_give_the_gradients_of_the_whole(
    weights: Path, generic: int, pieces: int
) -> None:
    """However the 7 labels and the 5 generic images are cut; some pieces then have none of these."""
    whole = opened(config(weights, GENERIC if generic else BOTH), 1)
    nudge(whole)
    accelerator, images = Accelerator(cpu=True), batch(images=7, generic=generic)
    cuts = (images, pieces), (replace(images, pieces=pieces), 1)  # for the loss, for the backbone
    tasks = [copy.deepcopy(whole) for _ in cuts]
    logs = gradients(accelerator, whole, images, 1)
    for parts, cut in zip(tasks, cuts, strict=True):
        found = gradients(accelerator, parts, *cut)
        assert found.keys() == logs.keys()
        for name in ("loss", "retention_weights", "retention_features"):
            assert found[name].item() == pytest.approx(logs[name].item(), rel=1e-5)
        for (name, p), twin in zip(parts.named_parameters(), whole.parameters(), strict=True):
            torch.testing.assert_close(p.grad, twin.grad, rtol=1e-3, atol=1e-5, msg=name)


def test_generic_images_take_the_place_of_the_training_images(weights: Path) -> None:
    task = opened(config(weights, GENERIC), 1)
    nudge(task)
    images = batch(generic=4)
    found = terms(task, images)[1]
    student, pretrained = task.embedder.backbone, task.retention.pretrained
    with torch.no_grad():
        pairs = [module(images.generic_GCHW) for module in (student, pretrained)]
    assert found == pytest.approx(
        (1 - functional.cosine_similarity(*pairs)).mean().item(), rel=1e-4
    )
    assert terms(task, replace(images, images_BCHW=torch.zeros(6, 3, 48, 48)))[1] == pytest.approx(
        found
    )
