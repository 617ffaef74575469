"""Teacher heads that learn beside the student: UDON's loss, and whom it reaches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, multiprocessing
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import train
import two_processes
from guie.base.errors import UserError
from guie.config import RunConfig, config_from
from guie.data.dataset import Batch, Classes
from guie.losses.base import LossStage
from guie.losses.margin_softmax import MarginSoftmax
from guie.training.tasks import build_task
from guie.training.tasks.online import OnlineTask
from tiny_runs import (
    TINY_CLIP,
    assert_same_bits,
    bn_config,
    cut_and_resumed,
    logged_losses,
)

CLASSES = Classes(["a/0", "a/1", "a/2", "b/0", "b/1"], [4] * 5, ["a", "a", "a", "b", "b"])
LABELS = torch.tensor([0, 3, 1, 4, 0, 2])


def online(**task: Any) -> OnlineTask:
    config = config_from(
        {
            "name": "t",
            "data": {"manifest": "m.csv"},
            "model": {
                "backbone": TINY_CLIP,
                "image": {"size_px": 32},
                "head": {"dim": 8, "norm": "bn"},
            },
            "task": {"name": "online", "teacher_dim": 12, **task},
            "train": {
                "epochs": 1,
                "lr": {"backbone": 1e-4, "head": 1e-3, "classes": 1e-2, "teachers": 1e-3},
            },
            "stages": [{}],
        },
        RunConfig,
    )
    torch.manual_seed(0)
    task = build_task(config, CLASSES)
    task.begin_stage(0, range(5))
    return task


def batch() -> Batch:
    images = torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    return Batch(LABELS, torch.arange(6), torch.ones(6, 3), images)


def udon_slowly(task: OnlineTask, given: Batch) -> dict[str, torch.Tensor]:
    """Domain by domain, in UDON's words."""
    feat = task.embedder.backbone(given.images_BCHW)
    emb = task.embedder.embed(feat, given.shapes_B3)
    weight = functional.normalize(task.criterion.weight_CD, dim=1)
    terms = dict.fromkeys(("student", "teachers", "logits", "similarity"), 0.0)
    for number, (first, last) in enumerate(((0, 3), (3, 5))):
        own = (first <= LABELS) & (LABELS < last)
        label, share = LABELS[own] - first, own.float().mean()
        ours = emb[own] @ weight[first:last].T
        teacher = task.teachers[number]
        theirs_emb = functional.normalize(teacher.head(feat[own]), dim=1)
        theirs = theirs_emb @ functional.normalize(teacher.criterion.weight_CD, dim=1).T
        p, q = (theirs / 0.1).softmax(1), (ours / 0.1).softmax(1)
        apart = (emb[own] @ emb[own].T - theirs_emb @ theirs_emb.T) ** 2
        of_domain = {
            "student": functional.cross_entropy(16 * ours, label),
            "teachers": functional.cross_entropy(16 * theirs, label),
            "logits": (p * (p / q).log()).sum(1).mean(),
            "similarity": apart.sum(1).mean(),
        }
        terms = {name: terms[name] + share * value for name, value in of_domain.items()}
    return terms


def test_the_loss_is_udons() -> None:
    task = online()
    loss, logs = task(batch())
    expected = udon_slowly(task, batch())
    for name, value in expected.items():
        torch.testing.assert_close(logs[name], value.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(loss, sum(expected.values()) / 4, rtol=1e-4, atol=1e-5)
    assert task.sampler_loss(logs) is logs["teachers"]


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


def test_every_term_falls_on_one_batch() -> None:
    task = online(backprop_to="backbone")
    optimizer = torch.optim.AdamW(task.parameters(), 1e-3)
    seen = []
    for _ in range(15):
        loss, logs = task(batch())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(logs)
    assert all(
        seen[-1][name] < 0.5 * seen[0][name] for name in ("student", "teachers", "similarity")
    )


def test_running_statistics_move_once() -> None:
    task, plain = online().train(), online(backprop_to="backbone").train()
    task(batch())
    plain(batch())
    for ours, theirs in zip(task.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_cosines_are_to_the_nearest_centre_also_in_a_stage_of_its_own() -> None:
    task = online(loss={"name": "arcface", "centers": 3})
    criterion = task.criterion
    assert isinstance(criterion, MarginSoftmax)
    emb = functional.normalize(torch.randn(4, 8), dim=1)
    weight = functional.normalize(criterion.weight_CD, dim=1).view(5, 3, 8)
    expected = torch.einsum("nd,ckd->nck", emb, weight).amax(2)[:, [1, 3]]
    torch.testing.assert_close(criterion.cosines(emb, torch.tensor([1, 3])), expected)
    criterion.begin_stage([1, 3], LossStage(alone=True))
    torch.testing.assert_close(criterion.cosines(emb, torch.tensor([1, 3])), expected)
    every = torch.einsum("nd,ckd->nck", emb, weight).amax(2)
    torch.testing.assert_close(criterion.cosines(emb, torch.arange(5)), every)


@pytest.fixture(scope="module")
def config(toy_manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    rates = {"backbone": 1e-4, "head": 1e-3, "classes": 1e-2, "teachers": 1e-3}
    sampler = {"name": "loss_driven", "period": "10 steps"}
    stage = {"epochs": 1.1, "lr": rates, "sampler": sampler}
    return bn_config(
        tmp_path_factory.mktemp("online"),
        toy_manifest,
        {"batch_size": 24},
        [stage],
        {"name": "online"},
    )


@pytest.fixture(scope="module")
def run(config: Path) -> Path:
    return train.main(["--config", str(config)])


@pytest.mark.slow
def test_it_trains_and_resumes_to_the_same_bits(
    run: Path, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = ["--config", str(config), "--set", f"out={tmp_path}"]
    resumed = cut_and_resumed(monkeypatch, there, steps=9)
    assert_same_bits(resumed, run)


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["softmax", "curricularface"])
def test_two_processes_train_as_one(loss: str, config: Path, tmp_path: Path) -> None:
    words = [
        "--config",
        str(config),
        "--set",
        f"task={{name: online, loss: {{name: {loss}, classifier: separate}}}}",
    ]
    one = train.main([*words, "--set", f"out={tmp_path / 'one'}"])
    two_processes.run("train", [*words, "--set", f"out={tmp_path / 'two'}"])
    two = tmp_path / "two" / one.name
    assert logged_losses(two) == pytest.approx(logged_losses(one), rel=1e-3)


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


def test_lessons_that_reach_nobody_are_refused(config: Path, tmp_path: Path) -> None:
    words = ["--config", str(config), "--set", f"out={tmp_path}", "--set"]
    with pytest.raises(UserError, match=r"task\.backprop_to: .*model\.head is null"):
        train.main([*words, "model.head=null", "--set", "stages.0.lr.head=0"])
    with pytest.raises(UserError, match="so nothing is distilled"):
        train.main([*words, "task={name: online, logits: 0, similarity: 0}"])


# CurricularFace's running mean is over all processes, which have different numbers of a domain's images

CURRICULAR = [
    {"name": "curricularface"},
    {"name": "curricularface", "running_mean": "class"},
]
UNEVEN = [  # classes 0 to 2 are of a; each process has half
    torch.tensor([0, 1, 2, 0, 3, 4, 3, 4]),  # each has images of one domain
    torch.tensor([0, 0, 1, 2, 3, 1, 3, 0]),
    torch.tensor([0, 1, 1, 2, 0, 0, 1, 2]),  # none has one of b
]


def curricular(loss: dict[str, Any], rank: int, ranks: int) -> dict[str, torch.Tensor]:
    """Mean loss over processes, gradients and buffers after some steps without an optimiser."""
    task = online(loss=loss).train()
    model = DistributedDataParallel(task) if ranks > 1 else task
    generator = torch.Generator().manual_seed(1)
    for labels in UNEVEN:
        images = torch.randn(8, 3, 32, 32, generator=generator)
        given = (labels, torch.arange(8), torch.ones(8, 3), images)
        model.zero_grad()
        total, logs = model(Batch(*(part.chunk(ranks)[rank] for part in given)))
        total.backward()
    means = {"loss": total.detach().clone(), "teachers": logs["teachers"]}
    if ranks > 1:
        for mean in means.values():
            distributed.all_reduce(mean)
            mean /= ranks
    grads = {f"gradient of {name}": p.grad for name, p in task.named_parameters()}
    return {**means, **grads, **dict(task.named_buffers())}


def process(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    file = f"file://{folder}/rendezvous"
    distributed.init_process_group("gloo", init_method=file, rank=rank, world_size=2)
    torch.save([curricular(loss, rank, 2) for loss in CURRICULAR], f"{folder}/{rank}.pt")
    two_processes.leave()


@pytest.mark.slow
def test_curricularface_in_two_processes_equals_one(tmp_path: Path) -> None:
    multiprocessing.start_processes(
        process, args=(str(tmp_path),), nprocs=2, start_method="forkserver"
    )
    both = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    for number, loss in enumerate(CURRICULAR):
        single = curricular(loss, 0, 1)
        assert single["teachers.0.criterion.rule.t_C"].all()
        for rank in range(2):
            double = both[rank][number]
            assert double.keys() == single.keys()
            for name, value in single.items():
                torch.testing.assert_close(
                    double[name], value, rtol=1e-3, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
                )


def test_a_teacher_without_images_keeps_its_running_mean() -> None:
    task = online(loss=CURRICULAR[0]).train()
    task(batch())
    mean = task.teachers[1].criterion.rule.t_C.clone()
    assert mean.any()
    images = torch.randn(3, 3, 32, 32)
    loss, _ = task(Batch(torch.tensor([0, 1, 2]), torch.arange(3), torch.ones(3, 3), images))
    loss.backward()
    assert loss.isfinite() and torch.equal(task.teachers[1].criterion.rule.t_C, mean)
    assert all(not p.grad.any() for p in task.teachers[1].parameters())
