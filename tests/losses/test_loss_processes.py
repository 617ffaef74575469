"""Two processes, each with half of a batch, give the loss and gradients of one with all of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor, distributed, multiprocessing, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from guie.config.losses import LossConfig
from guie.losses.base import LossStage
from guie.losses.build import build_loss
from two_processes import leave

CUSTOM = Path(__file__).parents[2] / "configs" / "custom"
DIM, CLASSES, STEPS = 6, 5, 3
LOSSES = [
    {"name": "arcface", "centers": 2},
    {"name": "arcface", "stage": [0, 3, 4]},  # which compete alone, drawn anew
    {"name": "curricularface"},
    {"name": "curricularface", "running_mean": "class", "classifier": "separate"},
    {"name": "custom_rule", "source": f"{CUSTOM}/adaface.py:AdaFace", "settings": {"t_alpha": 0.5}},
    {
        "name": "custom_rule",
        "source": f"{CUSTOM}/magface.py:MagFace",
        "settings": {"l_a": 0.1, "u_a": 9},
    },
    {"name": "linear_softmax"},
    {"name": "batch_all"},
    {"name": "contrastive", "margin": 6.0},
    {"name": "hyperbolic"},
    {"name": "triplet", "memory": 20},
    {"name": "multi_similarity"},
    {"name": "supcon", "memory": 20},
    {"name": "proxy_anchor"},
    {"name": "soft_triple"},
]


class Task(nn.Module):
    """A linear embedder and a loss, as a training task has them."""

    def __init__(self, values: dict, stage: list[int] | None):
        super().__init__()
        config = TypeAdapter(LossConfig).validate_python(values)
        self.head = nn.Linear(4, DIM)
        self.classes = build_loss(config, DIM, [3] * CLASSES, ["a", "a", "b", "b", "b"])
        if stage:
            self.classes.begin_stage(stage, LossStage(alone=True, reset=(0, 1)))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        raw = self.head(x)
        return self.classes(functional.normalize(raw, dim=-1), labels, raw)[0]


def results(values: dict, rank: int, ranks: int) -> dict[str, Tensor]:
    """Mean loss over processes, gradients and buffers after some steps without an optimiser."""
    torch.manual_seed(0)
    stage = values.get("stage")
    task = Task({key: value for key, value in values.items() if key != "stage"}, stage).double()
    labels_L = torch.tensor(stage or range(CLASSES))
    batches = [
        (torch.randn(12, 4).double(), labels_L[torch.randint(len(labels_L), (12,))])
        for _ in range(STEPS)
    ]
    model = DistributedDataParallel(task) if ranks > 1 else task
    for x, labels in batches:
        model.zero_grad()
        loss = model(x.chunk(ranks)[rank], labels.chunk(ranks)[rank])
        loss.backward()
    mean = loss.detach().clone()
    if ranks > 1:
        distributed.all_reduce(mean)
        mean /= ranks
    trained = [(name, p) for name, p in task.named_parameters() if p.requires_grad]
    found = {f"gradient of {name}": p.grad for name, p in trained}
    return {"loss": mean, **found, **dict(task.named_buffers())}


def process(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    file = f"file://{folder}/rendezvous"
    distributed.init_process_group("gloo", init_method=file, rank=rank, world_size=2)
    both = [results(values, rank, 2) for values in LOSSES]
    torch.save(both, f"{folder}/{rank}.pt")
    leave()


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, Tensor]]]:
    folder = tmp_path_factory.mktemp("two")
    multiprocessing.start_processes(
        process, args=(str(folder),), nprocs=2, start_method="forkserver"
    )
    return [torch.load(Path(folder) / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(LOSSES)), ids=lambda n: LOSSES[n]["name"])
def test_two_processes_equal_one(two_processes: list, number: int) -> None:
    single = results(LOSSES[number], 0, 1)
    assert all(value.any() for name, value in single.items() if name.startswith("gradient"))
    for rank in range(2):
        double = two_processes[rank][number]
        assert double.keys() == single.keys()
        for name, value in single.items():
            torch.testing.assert_close(double[name], value, msg=lambda m, n=name: f"{n}: {m}")
