"""Micro-batches give the loss and the gradients of the whole batch, whatever the loss compares."""

from __future__ import annotations

import os
import shutil
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import two_processes
from class_weights import with_class_weights
from guie.base.devices import make_accelerator
from guie.base.errors import UserError
from guie.config import RunConfig, config_from
from guie.config.losses import PER_IMAGE, LossConfig
from guie.data.dataset import Batch, Classes
from guie.training.checkpoint import TrainState
from guie.training.micro_batches import in_micro_batches
from guie.training.sharding import Shards
from guie.training.stage import set_model
from guie.training.step import gradients_within_memory, sam_step
from guie.training.tasks import build_task
from guie.training.tasks.base import Task
from tiny_runs import TINY_CLIP, tiny_run

LABELS = [f"{domain}/{number}" for domain in "ab" for number in range(4)]
CLASSES = Classes(LABELS, [4] * 8, [label[0] for label in LABELS])
IMAGES = 32  # four of each class, class after class: the last cut leaves one class a micro-batch
NAMES = [kind.model_fields["name"] for kind in get_args(get_args(LossConfig)[0])]
NAMES = [get_args(field.annotation)[0] for field in NAMES]
# Losses of a user's own see the whole batch
NAMES = [name for name in NAMES if not name.startswith("custom")]
# Settings that change what a loss looks at
MORE: list[dict[str, Any]] = [
    {"name": "arcface", "centers": 2, "classifier": "separate"},
    {"name": "arcface", "margin_rad": {"min": 0.1, "max": 0.4}},
    {"name": "curricularface", "running_mean": "class"},
    {"name": "linear_softmax", "embedding": "unit"},
    {"name": "triplet", "miner": "batch_hard", "distance": "cosine"},
    {"name": "triplet", "memory": 80},
    {"name": "margin", "learn_boundary": True},
    {"name": "margin", "miner": "multi_similarity"},
    {"name": "multi_similarity", "miner": "distance_weighted"},
    {"name": "supcon", "memory": 40},
]
CUTS = [2, 4, 8]


def configured(**changes: Any) -> RunConfig:
    """A tiny CLIP with all of it trained; a head without batch statistics unless changed."""
    head = {"dim": 16, "norm": "none"}
    rates = {"backbone": 1e-3, "head": 1e-3, "classes": 1e-2}
    common = {
        "name": "t",
        "data": {"manifest": "m.csv"},
        "train": {"epochs": 1, "batch_size": IMAGES, "lr": rates, **changes.pop("train", {})},
        "stages": [{}],
    }
    model = {"backbone": TINY_CLIP, "image": {"size_px": 32}, "head": head}
    return config_from(
        {**common, "model": {**model, **changes.pop("model", {})}, **changes}, RunConfig
    )


def batch(**more: Any) -> Batch:
    generator = torch.Generator().manual_seed(3)
    label_B = torch.arange(len(CLASSES)).repeat_interleave(IMAGES // len(CLASSES))
    pattern_C = torch.randn(len(CLASSES), 3, 32, 32, generator=generator)
    noise = torch.randn(IMAGES, 3, 32, 32, generator=generator)
    images_BCHW = pattern_C[label_B] + 2.0 * noise  # hard enough for all miners
    return Batch(label_B, torch.arange(IMAGES), torch.ones(IMAGES, 3), images_BCHW, **more)


def opened(config: RunConfig) -> Task:
    torch.manual_seed(0)
    task = build_task(config, CLASSES)
    set_model(task, config, 0, range(len(CLASSES)))
    return task.train()


def stepped(
    config: RunConfig,
    pieces: int,
    accelerator: Accelerator,
    given: Batch,
    model: nn.Module | None = None,
    steps: int = 2,
) -> dict[str, Tensor]:
    """Loss, gradients and buffers of a step after others, by which running state has moved."""
    [stage] = config.stages
    config = config.model_copy(update={"stages": [stage.model_copy(update={"accumulate": pieces})]})
    model = model or opened(config)
    for step in range(steps):
        model.zero_grad()
        draw = (0, 0, step, 0)
        common = (accelerator, model, given, config, TrainState())

        def once(common=common, draw=draw) -> dict[str, Tensor]:
            return gradients_within_memory(*common, draw)

        logs = sam_step(model, once, stage.sam_rho) if stage.sam_rho else once()
    found = {f"gradient of {n}": p.grad for n, p in model.named_parameters() if p.requires_grad}
    return {**found, **dict(model.named_buffers()), "loss": logs["loss"]}


def assert_equal(found: dict[str, Tensor], whole: dict[str, Tensor], share: float = 1e-5) -> None:
    """To a share of the largest number of each tensor; a loss that is 0 shows nothing."""
    assert found.keys() == whole.keys() and whole["loss"] > 1e-3
    moved = [name for name in whole if name.startswith("gradient of embedder.backbone")]
    assert not moved or any(whole[name].abs().max() > 1e-6 for name in moved)
    for name, value in whole.items():
        if value is None:
            assert found[name] is None
            continue
        # Some gradients are 0 but for rounding: of a bias under batch normalisation
        close = max(share * float(value.abs().max()), 2e-6)
        torch.testing.assert_close(
            found[name], value, rtol=0, atol=close, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.fixture(scope="module")
def accelerator() -> Accelerator:
    return make_accelerator(mixed_precision="no")


LOSSES = [*({"name": name} for name in NAMES), *MORE]


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_every_loss_sees_the_whole_batch(loss: dict[str, Any], accelerator: Accelerator) -> None:
    """With batch statistics in the head too, but for means over images, which keep their one pass."""
    config = configured(task={"loss": loss})
    if config.task.compares_images:
        head = {"dim": 16, "norm": "bn", "dropout": 0.2}
        config = configured(task={"loss": loss}, model={"head": head})
    whole = stepped(config, 1, accelerator, batch())
    for pieces in CUTS:
        assert_equal(stepped(config, pieces, accelerator, batch()), whole)


def test_means_over_images_keep_their_one_pass() -> None:
    names = {get_args(kind.model_fields["name"].annotation)[0] for kind in PER_IMAGE}
    softmaxes = {"softmax", "arcface", "cosface", "linear_softmax"}
    assert names == softmaxes | {"proxy_nca", "soft_triple"}
    for name in NAMES:
        assert configured(task={"loss": {"name": name}}).task.compares_images == (name not in names)


MODELS: dict[str, dict[str, Any]] = {
    "nested widths": {"task": {"loss": {"name": "supcon"}, "nested": [4, 8]}},
    "nested margins": {"task": {"loss": {"name": "arcface"}, "nested": [4, 8]}},
    "random groups": {
        "task": {"loss": {"name": "triplet"}, "metaclasses": {"count": 4}},
        "model": {"head": {"dim": 16, "norm": "none", "parts": 2}},
    },
    "projector": {
        "task": {"loss": {"name": "hyperbolic"}, "projector": [12, 8]},
        "train": {"lr": {"backbone": 1e-3, "head": 1e-3, "projector": 1e-3, "classes": 0.0}},
    },
    "gradient checkpointing": {
        "task": {"loss": {"name": "supcon"}},
        "gradient_checkpointing": True,
    },
    "adapters and prompts": {
        "task": {"loss": {"name": "supcon"}},
        "model": {
            "adapters": [{"kind": "lora", "rank": 2, "targets": ["q", "v", "mlp"]}],
            "prompts": {"kind": "pool", "size": 4, "length": 2, "orthogonality": 1e-2},
        },
        "train": {"lr": {"adapters": 1e-2, "prompts": 1e-2, "head": 1e-2, "classes": 0.0}},
    },
    "layers": {
        "task": {"loss": {"name": "supcon"}},
        "model": {"layers": {"of": ["transformer.resblocks.1"], "pool": "avg"}},
    },
    "SAM": {
        "task": {"loss": {"name": "supcon"}},
        "train": {"sam_rho": 0.05, "lr": {"backbone": 1e-3, "head": 1e-3, "classes": 0.0}},
    },
    "contrastive": {
        "task": {"name": "contrastive"},
        "model": {"head": None},
        "train": {"lr": {"backbone": 1e-3}},
    },
    "online": {
        "task": {"name": "online", "teacher_dim": 12},
        "model": {"head": {"dim": 16, "norm": "bn"}},
        "train": {"lr": {"backbone": 1e-3, "head": 1e-3, "classes": 1e-2, "teachers": 1e-3}},
    },
    "online, no cosines": {
        "task": {"name": "online", "teacher_dim": 12, "similarity": 0.0},
        "train": {"lr": {"backbone": 1e-3, "head": 1e-3, "classes": 1e-2, "teachers": 1e-3}},
    },
}


@pytest.mark.parametrize("name", MODELS)
def test_every_task_and_model_sees_the_whole_batch(name: str, accelerator: Accelerator) -> None:
    config = configured(**MODELS[name])
    captions = [f"a photo of {LABELS[label]}, number {label}" for label in batch().label_B]
    given = batch(captions=captions)
    whole = stepped(config, 1, accelerator, given)
    for pieces in CUTS:
        # SAM's second pass stands elsewhere by the rounding of the first
        share = 1e-4 if name == "SAM" else 1e-5
        assert_equal(stepped(config, pieces, accelerator, given), whole, share)


RELATIONS: list[dict[str, Any]] = [
    {"name": "rkd", "angle": 2.0},
    {"name": "snd"},
    {"name": "snd", "sigma": {"perplexity": 12}, "queue": 40},
    {"name": "similarity", "balanced": True},
    {"name": "matching", "hidden": [12], "standardise": "phi_s", "steps": 1},
    {"name": "matching", "standardise": "dimension", "steps": 1},
    {"name": "matching", "standardise": None},
    {"name": "logits"},
]


@pytest.fixture(scope="module")
def teachers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """One of one domain, one of both."""
    folder = tmp_path_factory.mktemp("teachers")
    found = [tiny_run(folder / name, start=n + 1) for n, name in enumerate(("some", "every"))]
    for run in found:
        with_class_weights(run, LABELS)
    return [{"model": str(found[0]), "domains": ["a"]}, {"model": str(found[1])}]


@pytest.mark.parametrize("relation", RELATIONS, ids=str)
def test_every_relation_to_teachers_sees_the_whole_batch(
    relation: dict[str, Any], teachers: list, accelerator: Accelerator
) -> None:
    values = dict(relation)
    if "steps" in values:
        values["standardise"] = {"name": values["standardise"], "steps": values.pop("steps")}
    criteria = [{"relation": values}, {"loss": {"name": "arcface"}, "weight": 0.1}]
    rates = {"backbone": 1e-3, "head": 1e-3, "classes": 1e-2}
    rates |= {"matching": 1e-3} if relation["name"] == "matching" else {}
    config = configured(
        task={"name": "distillation", "teachers": teachers, "criteria": criteria},
        train={"lr": rates},
    )
    whole = stepped(config, 1, accelerator, batch())
    share = 1e-3 if "phi_s" in str(relation) else 1e-5  # eigenvectors
    for pieces in CUTS:
        assert_equal(stepped(config, pieces, accelerator, batch()), whole, share)


def test_retention_on_generic_images_sees_all_of_them(
    tmp_path: Path, accelerator: Accelerator
) -> None:
    from guie.config.model import BackboneConfig
    from guie.models.backbones.open_clip import create_clip

    torch.manual_seed(9)
    torch.save(create_clip(BackboneConfig(**TINY_CLIP)).state_dict(), tmp_path / "clip.pt")
    config = configured(
        task={"loss": {"name": "supcon"}},
        model={"backbone": {**TINY_CLIP, "pretrained": str(tmp_path / "clip.pt")}},
        retention={"weights": 0.5, "features": 3.0, "generic": {"manifest": "g.csv"}},
    )
    generic_GCHW = torch.randn(5, 3, 32, 32, generator=torch.Generator().manual_seed(4))
    found = {}
    for pieces in (1, *CUTS):
        model = opened(config)
        with torch.no_grad():
            for parameter in model.embedder.backbone.parameters():
                parameter.add_(0.01)
        given = batch(generic_GCHW=generic_GCHW)
        found[pieces] = stepped(config, pieces, accelerator, given, model, steps=1)
    for pieces in CUTS:
        assert_equal(found[pieces], found[1])


def test_dropout_of_the_backbone_is_the_same_in_both_passes(accelerator: Accelerator) -> None:
    """The gradient is that of the loss that was computed, at the same draw: by finite differences."""
    adapters = [{"kind": "stochastic", "dim": 8, "draw": "image", "scale": 0.5}]
    config = configured(
        task={"loss": {"name": "supcon"}},
        model={"adapters": adapters},
        train={"lr": {"adapters": 1e-2, "head": 1e-2, "classes": 0.0}},
    )
    model = opened(config).double()
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in model.embedder.backbone.adapters.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    given = batch()
    given = given._each(lambda t: t.double() if t.is_floating_point() else t)
    [first, *_] = [p for p in model.embedder.backbone.adapters.parameters() if p.ndim == 2]

    def loss_at(by: float) -> tuple[float, Tensor]:
        with torch.no_grad():
            first.add_(by)
        found = stepped(config, 4, accelerator, given, model, steps=1)
        with torch.no_grad():
            first.sub_(by)
        return found["loss"].item(), first.grad.sum()

    slope = loss_at(0.0)[1].item()
    step = 1e-5
    risen = (loss_at(step)[0] - loss_at(-step)[0]) / (2 * step)
    assert slope != 0 and risen == pytest.approx(slope, rel=1e-3)
    assert loss_at(0.0)[0] == loss_at(0.0)[0]


def test_activations_of_one_micro_batch_are_held_at_a_time() -> None:
    """After the forward pass of none, in the backward pass of one."""
    held: list[weakref.ref[Tensor]] = []
    most: list[int] = []
    weight = torch.randn(3, 3, requires_grad=True)

    def network(rows_B3: Tensor) -> Tensor:
        inner = (rows_B3 @ weight).exp()  # kept for the backward pass
        held.append(weakref.ref(inner))
        most.append(sum(one() is not None for one in held))
        return inner.sin().sum(1)

    out = in_micro_batches(network, 4, torch.randn(8, 3))
    assert len(held) == 4 and not any(one() is not None for one in held)
    out.square().mean().backward()
    assert len(held) == 8 and max(most) <= 2  # the one at work, and what autograd just lets go


def test_bf16_and_a_scaled_loss_give_the_gradients_of_the_whole() -> None:
    """To bf16's precision; the scale of the loss is that of the gradients of both passes."""
    config = configured(task={"loss": {"name": "supcon"}})
    bf16 = make_accelerator(mixed_precision="bf16")
    whole, cut = (stepped(config, pieces, bf16, batch(), steps=1) for pieces in (1, 4))
    names = [n for n in whole if n.startswith("gradient") and whole[n] is not None]
    ours, theirs = (torch.cat([of[n].flatten() for n in names]) for of in (cut, whole))
    assert (ours - theirs).norm() < 0.02 * theirs.norm() and cut["loss"] > 1e-3
    fp32 = make_accelerator(mixed_precision="no")
    plain = stepped(config, 4, fp32, batch(), steps=1)
    fp32.scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    scaled = stepped(config, 4, fp32, batch(), steps=1)
    for name, value in plain.items():
        if name.startswith("gradient") and value is not None:
            torch.testing.assert_close(scaled[name], 64 * value, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "g++")) is None, reason="torch.compile needs a C++ compiler"
)
def test_a_compiled_backbone_sees_micro_batches(
    accelerator: Accelerator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    vit = {"library": "timm", "name": "test_vit", "kwargs": {"img_size": 32}}
    settings = {"task": {"loss": {"name": "supcon"}}, "model": {"backbone": vit}}
    whole = stepped(configured(**settings), 1, accelerator, batch())
    cut = stepped(configured(**settings, compile=True), 4, accelerator, batch())
    assert_equal(cut, whole, 1e-4)


def test_memory_that_runs_out_halves_what_the_backbone_sees(
    monkeypatch: pytest.MonkeyPatch, accelerator: Accelerator, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the backward pass: gradients, the running mean and the memory begin the step again."""
    loss = {"name": "supcon", "memory": 80}
    config = configured(task={"loss": loss}, on_out_of_memory="halve")
    whole = stepped(config, 1, accelerator, batch(), steps=1)
    model, state = opened(config), TrainState()
    forward, calls = model.embedder.backbone.forward, []

    def limited(images_BCHW: Tensor) -> Tensor:
        calls.append(len(images_BCHW))
        if len(images_BCHW) > 8 or (len(images_BCHW) == 8 and len(calls) == 12):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(images_BCHW)

    monkeypatch.setattr(model.embedder.backbone, "forward", limited)
    logs = gradients_within_memory(accelerator, model, batch(), config, state, (0, 0, 0, 0))
    assert state.halvings in (2, 3) and "micro-batches a step" in capsys.readouterr().err
    found = {f"gradient of {n}": p.grad for n, p in model.named_parameters() if p.requires_grad}
    assert_equal({**found, **dict(model.named_buffers()), "loss": logs["loss"]}, whole)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"accumulate": 4, "batch_norm": "train"}, "train.batch_norm: .*set accumulate to 1"),
        (
            {"accumulate": 2, "batch_norm": {"layer4": "synced"}},
            "train.batch_norm: .*set accumulate to 1",
        ),
    ],
)
def test_batch_statistics_of_the_backbone_are_refused(setting: dict, said: str) -> None:
    configured(task={"loss": {"name": "arcface"}}, train={**setting})
    with pytest.raises(UserError, match=said):
        configured(task={"loss": {"name": "supcon"}}, train={**setting})
    halve = {"on_out_of_memory": "halve", "train": {"batch_norm": "train"}}
    with pytest.raises(UserError, match="on_out_of_memory to stop"):
        configured(task={"loss": {"name": "supcon"}}, **halve)


# --------------------------------------------------------------------- two processes
TWO = [
    {"task": {"loss": {"name": "triplet"}}, "model": {"head": {"dim": 16, "norm": "bn"}}},
    {"task": {"loss": {"name": "curricularface"}}},
    {"task": {"loss": {"name": "margin", "learn_boundary": True}}},
    MODELS["online"],
    MODELS["contrastive"],
]
SHARDED = TWO[:2]  # FSDP cannot shard contrastive's scalar


def halves(given: Batch, rank: int) -> Batch:
    [first, second] = given.split(2)
    return second if rank else first


def given_with_captions() -> Batch:
    return batch(captions=[f"{LABELS[label]} {label}" for label in batch().label_B])


def _two(rank: int, folder: str, sharded: bool) -> None:
    torch.set_num_threads(1)
    common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}
    os.environ.update(common, RANK=str(rank), LOCAL_RANK=str(rank), OMP_NUM_THREADS="1")
    os.environ.update(two_processes.SHARDED if sharded else {})
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2
    )
    accelerator = make_accelerator(cpu=True, mixed_precision="no")
    both: list[dict[str, Tensor | None]] = []
    for values in SHARDED if sharded else TWO:
        config = configured(**values)
        task = opened(config)
        model: nn.Module = DistributedDataParallel(task, gradient_as_bucket_view=True)
        if sharded:
            task = opened(config)
            optimizer = torch.optim.SGD(task.parameters(), lr=0.1)
            model, _ = Shards(accelerator, task).prepare(task, optimizer)
            model.train()
        given = halves(given_with_captions(), rank)
        found = stepped(config, 4, accelerator, given, model)
        found["loss"] = accelerator.reduce(found["loss"], "mean")
        both.append({name.replace("module.", ""): whole_of(value) for name, value in found.items()})
    torch.save(both, f"{folder}/{rank}.pt")
    two_processes.leave()


def whole_of(value: Tensor | None) -> Tensor | None:
    full = getattr(value, "full_tensor", None)
    return full() if full else value


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True], ids=["DDP", "FSDP"])
def test_two_processes_with_micro_batches_equal_one_with_the_batch(
    sharded: bool, tmp_path: Path, accelerator: Accelerator
) -> None:
    torch.multiprocessing.start_processes(
        _two, args=(str(tmp_path), sharded), nprocs=2, start_method="forkserver"
    )
    kept: Sequence[str] = ("gradient", "loss", "criterion.rule.t_C")
    for number, values in enumerate(SHARDED if sharded else TWO):
        whole = stepped(configured(**values), 1, accelerator, given_with_captions())
        whole = {name: value for name, value in whole.items() if name.startswith(tuple(kept))}
        for rank in range(2):
            found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)[number]
            assert_equal({name: found[name] for name in whole}, whole, 2e-5)
