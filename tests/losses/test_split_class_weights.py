"""Class weights split over two processes train as they do in one process that has all of them."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.nn import functional

from guie.losses.base import LossStage
from guie.losses.margin_softmax import MarginSoftmax
from guie.losses.rules import ArcFace, CosFace, CurricularFace
from two_processes import leave

pytestmark = pytest.mark.slow

CLASSES, DIM, IMAGES = 11, 6, 10
CUSTOM = Path(__file__).parents[2] / "configs" / "custom"
AdaFace = runpy.run_path(str(CUSTOM / "adaface.py"))["AdaFace"]
MagFace = runpy.run_path(str(CUSTOM / "magface.py"))["MagFace"]
EDGES = (0, 4, CLASSES)


def losses() -> dict[str, MarginSoftmax]:
    torch.manual_seed(0)
    built = {
        "arcface": MarginSoftmax(CLASSES, DIM, ArcFace(0.3), scale=16.0),
        "a margin per class": MarginSoftmax(
            CLASSES, DIM, CosFace(torch.linspace(0.1, 0.5, CLASSES)), scale=16.0
        ),
        "curricularface": MarginSoftmax(CLASSES, DIM, CurricularFace(0.3), scale=16.0),
        "a t per class": MarginSoftmax(CLASSES, DIM, CurricularFace(0.3, CLASSES), scale=16.0),
        "adaface": MarginSoftmax(CLASSES, DIM, AdaFace(t_alpha=0.5), scale=16.0),
        "magface": MarginSoftmax(CLASSES, DIM, MagFace(l_a=0.1, u_a=9.0), scale=16.0),
        "two centres": MarginSoftmax(CLASSES - 1, DIM, ArcFace(0.3), scale=16.0, centers=2),
        "a softmax per domain": MarginSoftmax(CLASSES, DIM, ArcFace(0.3), scale=16.0, edges=EDGES),
        "blocks of a few classes": MarginSoftmax(
            CLASSES, DIM, ArcFace(0.3), scale=16.0, block_logits=2 * IMAGES
        ),
        "a stage's own classes": MarginSoftmax(CLASSES, DIM, ArcFace(0.3), scale=16.0),
    }
    built["a stage's own classes"].begin_stage(range(2, 9), LossStage(alone=True))
    return built


def trained(loss: MarginSoftmax, own: slice) -> dict[str, Tensor]:
    """Loss, accuracy and gradients of two steps on these images of each batch; processes average theirs."""
    torch.manual_seed(1)
    layer, found = nn.Linear(4, DIM), {}
    processes = distributed.get_world_size() if distributed.is_initialized() else 1
    for step in range(2):
        feat_BF, label_B = torch.randn(IMAGES, 4), torch.randint(2, 9, (IMAGES,))
        raw_BD = layer(feat_BF[own])
        value, logs = loss(functional.normalize(raw_BD, dim=1), label_B[own], raw_BD)
        value.backward()
        found |= {f"loss {step}": value.detach(), f"accuracy {step}": logs["accuracy"]}
        for name, weight in (*layer.named_parameters(), *loss.named_parameters()):
            if weight.grad is None:
                continue
            grad = weight.grad
            if isinstance(grad, DTensor):
                grad = grad.full_tensor()
            elif processes > 1:
                distributed.all_reduce(grad)
                grad /= processes
            found[f"{name} {step}"] = grad.clone()
    found |= {name: value.clone() for name, value in loss.named_buffers()}
    return found


def _one_of_two(rank: int, folder: Path, expected: dict[str, dict[str, Tensor]]) -> None:
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2
    )
    mesh = init_device_mesh("cpu", (2,))
    half = slice(rank * IMAGES // 2, (rank + 1) * IMAGES // 2)
    for name, loss in losses().items():
        rows = {key: len(value) for key, value in loss.named_parameters()}
        split = loss.split(mesh)
        assert split == set(loss.parameters()), name
        for key, parameter in loss.named_parameters():
            held = len(parameter.to_local())
            assert held == (rows[key] // 2 if rank else -(-rows[key] // 2)), name
        torch.testing.assert_close(
            trained(loss, half),
            expected[name],
            rtol=1e-5,  # sums of halves round otherwise, by more on a CPU with AVX-512
            atol=1e-6,
            msg=lambda text, name=name: f"{name}: {text}",
        )
    # Three classes of two centres: the second of them would be at both processes
    odd = MarginSoftmax(3, DIM, ArcFace(0.3), scale=16.0, centers=2)
    single = MarginSoftmax(1, DIM, ArcFace(0.3), scale=16.0)
    assert not odd.split(mesh) and not single.split(mesh)
    assert not isinstance(odd.weight_CD, DTensor) and odd.part is None
    leave()


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    expected = {name: trained(loss, slice(None)) for name, loss in losses().items()}
    assert expected["arcface"]["loss 0"] != expected["curricularface"]["loss 0"]
    torch.multiprocessing.start_processes(
        _one_of_two, args=(tmp_path, expected), nprocs=2, start_method="forkserver"
    )
