"""Micro-batches give the loss and the gradients of the whole batch, whatever the loss compares."""

import weakref
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from class_weights import with_class_weights
from guie.base.devices import make_accelerator
from guie.config import RunConfig, config_from
from guie.config.losses import LossConfig
from guie.data.dataset import Batch, Classes
from guie.training.checkpoint import TrainState
from guie.training.micro_batches import in_micro_batches
from guie.training.stage import set_model
from guie.training.step import gradients_within_memory, sam_step
from guie.training.tasks import build_task
from guie.training.tasks.base import Task
from tiny_runs import TINY_CLIP, tiny_run

LABELS = [f"{domain}/{number}" for domain in "ab" for number in range(4)]
CLASSES = Classes(LABELS, [4] * 8, [label[0] for label in LABELS])
IMAGES = 32  # four of each class, class after class: the last cut leaves one class a micro-batch
CUTS = [3, 8]  # one uneven
KINDS = [kind.model_fields["name"].annotation for kind in get_args(get_args(LossConfig)[0])]
# A user's own losses see the whole batch
NAMES = [name for kind in KINDS for name in get_args(kind) if not name.startswith("custom")]
# Losses that are means over images keep their one pass
PER_IMAGE = {"softmax", "arcface", "cosface", "linear_softmax", "proxy_nca", "soft_triple"}

BN = {"head": {"dim": 16, "norm": "bn"}}
NO_CLASSES = {"backbone": 1e-3, "head": 1e-3, "classes": 0.0}
ONLINE = {"lr": {"backbone": 1e-3, "head": 1e-3, "classes": 1e-2, "teachers": 1e-3}}
SUPCON = {"loss": {"name": "supcon"}}
LOSSES: list[dict[str, Any]] = [
    *({"name": name} for name in NAMES),
    # Settings that change what a loss looks at
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
RELATIONS: list[dict[str, Any]] = [
    {"name": "rkd", "angle": 2.0},
    {"name": "snd"},
    {"name": "snd", "sigma": {"perplexity": 12}, "queue": 40},
    {"name": "similarity", "balanced": True},
    {"name": "matching", "hidden": [12], "standardise": {"name": "phi_s", "steps": 1}},
    {"name": "matching", "standardise": {"name": "dimension", "steps": 1}},
    {"name": "matching", "standardise": None},
    {"name": "logits"},
]
# Sees the lengths of embeddings, and keeps the batch's mean
ADAFACE = {"name": "custom_rule", "settings": {"t_alpha": 1.0}}
ADAFACE["source"] = f"{Path(__file__).parents[2]}/configs/custom/adaface.py:AdaFace"
CASES: dict[str, dict[str, Any]] = {
    **{
        # With batch statistics in the head too, but for the means over images
        str(loss): {"task": {"loss": loss}}
        | ({} if loss["name"] in PER_IMAGE else {"model": {"head": {**BN["head"], "dropout": 0.2}}})
        for loss in LOSSES
    },
    **{
        str(relation): {
            "task": {
                "name": "distillation",
                "criteria": [{"relation": relation}, {"loss": {"name": "arcface"}, "weight": 0.1}],
            },
            "train": {
                "lr": {"backbone": 1e-3, "head": 1e-3, "classes": 1e-2}
                | ({"matching": 1e-3} if relation["name"] == "matching" else {})
            },
        }
        for relation in RELATIONS
    },
    "nested widths": {"task": {**SUPCON, "nested": [4, 8]}},
    "nested margins": {"task": {"loss": {"name": "arcface"}, "nested": [4, 8]}},
    "random groups": {
        "task": {"loss": {"name": "triplet"}, "metaclasses": {"count": 4}},
        "model": {"head": {"dim": 16, "norm": "none", "parts": 2}},
    },
    "projector": {
        "task": {"loss": {"name": "hyperbolic"}, "projector": [12, 8]},
        "train": {"lr": {**NO_CLASSES, "projector": 1e-3}},
    },
    "gradient checkpointing": {"task": SUPCON, "gradient_checkpointing": True},
    "adapters and prompts": {
        "task": SUPCON,
        "model": {
            "adapters": [{"kind": "lora", "rank": 2, "targets": ["q", "v", "mlp"]}],
            "prompts": {"kind": "pool", "size": 4, "length": 2, "orthogonality": 1e-2},
        },
        "train": {"lr": {"adapters": 1e-2, "prompts": 1e-2, "head": 1e-2, "classes": 0.0}},
    },
    "layers": {
        "task": SUPCON,
        "model": {"layers": {"of": ["transformer.resblocks.1"], "pool": "avg"}},
    },
    "SAM": {"task": SUPCON, "train": {"sam_rho": 0.05, "lr": NO_CLASSES}},
    "contrastive": {
        "task": {"name": "contrastive"},
        "model": {"head": None},
        "train": {"lr": {"backbone": 1e-3}},
    },
    "online": {"task": {"name": "online", "teacher_dim": 12}, "model": BN, "train": ONLINE},
    "online, no cosines": {
        "task": {"name": "online", "teacher_dim": 12, "similarity": 0.0},
        "train": ONLINE,
    },
    "norms": {"task": {"loss": ADAFACE}},
    "norms, nested": {"task": {"loss": ADAFACE, "nested": [4]}},
    "norms, projector": {
        "task": {"loss": ADAFACE, "projector": [12]},
        "train": {"lr": {**NO_CLASSES, "classes": 1e-2, "projector": 1e-3}},
    },
    "norms, online": {"task": {"name": "online", "loss": ADAFACE}, "train": ONLINE},
    "norms, distillation": {
        "task": {
            "name": "distillation",
            "criteria": [{"relation": {"name": "rkd"}}, {"loss": ADAFACE}],
        },
    },
}
# Of the largest number of a tensor; SAM's second pass is at the rounding of the first
SHARES = {"SAM": 1e-4, str(RELATIONS[4]): 1e-3}  # and phi_s has eigenvectors


def configured(**changes: Any) -> RunConfig:
    """A tiny CLIP with all of it trained; a head without batch statistics unless changed."""
    model = {"backbone": TINY_CLIP, "image": {"size_px": 32}, "head": {"dim": 16, "norm": "none"}}
    rates = {"backbone": 1e-3, "head": 1e-3, "classes": 1e-2}
    train = {"epochs": 1, "batch_size": IMAGES, "lr": rates, **changes.pop("train", {})}
    values = {"name": "t", "data": {"manifest": "m.csv"}, "train": train, "stages": [{}]}
    values["model"] = {**model, **changes.pop("model", {})}
    return config_from({**values, **changes}, RunConfig)


def batch(**more: Any) -> Batch:
    generator = torch.Generator().manual_seed(3)
    label_B = torch.arange(len(CLASSES)).repeat_interleave(IMAGES // len(CLASSES))
    pattern_C = torch.randn(len(CLASSES), 3, 32, 32, generator=generator)
    noise = torch.randn(IMAGES, 3, 32, 32, generator=generator)
    images_BCHW = pattern_C[label_B] + 2.0 * noise  # hard enough for all miners
    captions = [f"a photo of {LABELS[label]}, number {label}" for label in label_B]
    shapes_B3 = torch.ones(IMAGES, 3)
    return Batch(label_B, torch.arange(IMAGES), shapes_B3, images_BCHW, captions=captions, **more)


def opened(config: RunConfig) -> Task:
    torch.manual_seed(0)
    task = build_task(config, CLASSES)
    set_model(task, config, 0, range(len(CLASSES)))
    return task.train()


def stepped(
    config: RunConfig,
    pieces: int,
    accelerator: Accelerator,
    given: Batch | None = None,
    model: nn.Module | None = None,
    steps: int = 2,
) -> dict[str, Tensor]:
    """Loss, gradients and buffers of a step after others, by which running state has moved."""
    [stage] = config.stages
    config = config.model_copy(update={"stages": [stage.model_copy(update={"accumulate": pieces})]})
    model = model or opened(config)
    for step in range(steps):
        model.zero_grad()

        def once(step: int = step) -> dict[str, Tensor]:
            args = (accelerator, model, given or batch(), config, TrainState())
            return gradients_within_memory(*args, (0, 0, step, 0))

        logs = sam_step(model, once, stage.sam_rho) if stage.sam_rho else once()
    return state_of(model, logs)


def state_of(model: nn.Module, logs: dict[str, Tensor]) -> dict[str, Tensor]:
    grads = {f"gradient of {n}": p.grad for n, p in model.named_parameters() if p.requires_grad}
    return {**grads, **dict(model.named_buffers()), "loss": logs["loss"]}


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


@pytest.fixture(scope="module")
def teachers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """One of one domain, one of both."""
    folder = tmp_path_factory.mktemp("teachers")
    found = [tiny_run(folder / name, start=n + 1) for n, name in enumerate(("some", "every"))]
    for run in found:
        with_class_weights(run, LABELS)
    return [{"model": str(found[0]), "domains": ["a"]}, {"model": str(found[1])}]


@pytest.mark.parametrize("case", CASES)
def test_the_loss_sees_the_whole_batch(case: str, teachers: list, accelerator: Accelerator) -> None:
    changes = {**CASES[case]}
    if changes["task"].get("name") == "distillation":
        changes["task"] = {**changes["task"], "teachers": teachers}
    config = configured(**changes)
    whole = stepped(config, 1, accelerator)
    norms = [value.item() for name, value in whole.items() if name.endswith("rule.mean")]
    assert bool(norms) == ("norms" in case) and all(abs(norm - 1) > 0.02 for norm in norms)
    for pieces in CUTS:
        assert_equal(stepped(config, pieces, accelerator), whole, SHARES.get(case, 1e-5))


def test_means_over_images_keep_their_one_pass() -> None:
    for name in NAMES:
        config = configured(task={"loss": {"name": name}})
        assert config.task.compares_images == (name not in PER_IMAGE)


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


def test_out_of_memory_halves_what_the_backbone_sees(
    monkeypatch: pytest.MonkeyPatch, accelerator: Accelerator, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the backward pass: gradients, the running mean and the memory begin the step again."""
    loss = {"name": "supcon", "memory": 80}
    config = configured(task={"loss": loss}, on_out_of_memory="halve")
    whole = stepped(config, 1, accelerator, steps=1)
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
    assert_equal(state_of(model, logs), whole)
