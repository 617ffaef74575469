"""Two processes, each with half of a batch, give the loss and gradients of one with all of it.

Class weights are at both, or each process has half of them.
"""

from pathlib import Path

import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.nn import functional

import two_processes
from guie.config.losses import LossConfig
from guie.losses.base import LossStage
from guie.losses.build import build_loss
from guie.losses.margin_softmax import MarginSoftmax
from guie.losses.rules import ArcFace

CUSTOM = Path(__file__).parents[2] / "configs" / "custom"
DIM, IMAGES, STEPS = 6, 12, 3
SOFTMAXES = {
    "arcface": {},
    "two centres": {"centers": 2, "classes": 10},
    "a stage's own classes, drawn anew": {"stage": range(2, 9)},
    "a softmax per domain": {"classifier": "separate"},
    "a margin per class": {"name": "cosface", "margin_cos": {"min": 0.1, "max": 0.5}},
    "curricularface": {"name": "curricularface"},
    "a t per class": {"name": "curricularface", "running_mean": "class"},
    "adaface": {
        "name": "custom_rule",
        "source": f"{CUSTOM}/adaface.py:AdaFace",
        "settings": {"t_alpha": 0.5},
    },
    "magface": {
        "name": "custom_rule",
        "source": f"{CUSTOM}/magface.py:MagFace",
        "settings": {"l_a": 0.1, "u_a": 9},
    },
}
OTHERS = {
    "linear_softmax": {"name": "linear_softmax"},
    "contrastive": {"name": "contrastive", "margin": 6.0},
    "triplet": {"name": "triplet", "memory": 40},
    "supcon": {"name": "supcon", "memory": 40},
    "soft_triple": {"name": "soft_triple"},
}
CASES = {name: (values, False) for name, values in (SOFTMAXES | OTHERS).items()}
CASES |= {f"{name}, split": (values, True) for name, values in SOFTMAXES.items()}


def results(values: dict, split: bool, rank: int = 0, ranks: int = 1) -> dict[str, Tensor]:
    """Mean loss over processes, gradients and buffers after some steps without an optimiser."""
    torch.manual_seed(0)
    stage, classes = values.get("stage"), values.get("classes", 11)
    values = {key: value for key, value in values.items() if key not in ("stage", "classes")}
    config = TypeAdapter(LossConfig).validate_python(values)
    domains = ["a"] * 4 + ["b"] * (classes - 4)
    layer = nn.Linear(4, DIM).double()
    loss = build_loss(config, DIM, range(3, 3 + classes), domains).double()
    loss.block_logits = 2 * IMAGES  # a few classes
    if stage:
        loss.begin_stage(stage, LossStage(alone=True, reset=(0, 1)))
    if split and ranks > 1:
        rows = {name: len(value) for name, value in loss.named_parameters()}
        assert loss.split(init_device_mesh("cpu", (ranks,))) == set(loss.parameters())
        for name, value in loss.named_parameters():
            assert len(value.to_local()) == (rows[name] // 2 if rank else -(-rows[name] // 2))
    for _ in range(STEPS):
        x = torch.randn(IMAGES, 4).double()
        labels = torch.tensor(stage or range(classes))[
            torch.randint(len(stage or domains), (IMAGES,))
        ]
        layer.zero_grad()
        loss.zero_grad()
        raw = layer(x.chunk(ranks)[rank])
        value, _ = loss(functional.normalize(raw, dim=-1), labels.chunk(ranks)[rank], raw)
        value.backward()
    found = {"loss": value.detach()}
    for name, weight in (*layer.named_parameters(), *loss.named_parameters()):
        if weight.requires_grad:
            grad = weight.grad
            found[f"gradient of {name}"] = grad.full_tensor() if isinstance(grad, DTensor) else grad
    for name, mean in found.items() if ranks > 1 else ():
        if not (split and "_" in name):  # the whole already
            distributed.all_reduce(mean)
            mean /= ranks
    return {name: mean.clone() for name, mean in (found | dict(loss.named_buffers())).items()}


def process(rank: int, folder: str) -> None:
    two_processes.join(rank, folder)
    torch.save(
        {name: results(*case, rank, 2) for name, case in CASES.items()}, f"{folder}/{rank}.pt"
    )
    # Three classes of two centres: the second of them would be at both processes
    odd = MarginSoftmax(3, DIM, ArcFace(0.3), scale=16.0, centers=2)
    single = MarginSoftmax(1, DIM, ArcFace(0.3), scale=16.0)
    assert not any(loss.split(init_device_mesh("cpu", (2,))) for loss in (odd, single))
    assert not isinstance(odd.weight_CD, DTensor) and odd.part is None
    two_processes.leave()


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, Tensor]]]:
    return two_processes.saved_by(process, tmp_path_factory.mktemp("two"))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_two_processes_equal_one(both: list, name: str) -> None:
    single = results(*CASES[name])
    assert all(value.any() for key, value in single.items() if key.startswith("gradient"))
    for found in both:
        assert found[name].keys() == single.keys()
        for key, value in single.items():
            torch.testing.assert_close(found[name][key], value, msg=lambda m, k=key: f"{k}: {m}")
