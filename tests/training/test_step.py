"""Micro-batches, memory, SAM, and the watch over the loss."""

from dataclasses import replace

import pandas as pd
import pytest
import torch
from accelerate import Accelerator
from torch import nn

from guie.base.errors import UserError
from guie.config import RunConfig
from guie.config.losses import MultiSimilarityConfig
from guie.data.dataset import Batch
from guie.losses.metric_learning import MetricLearningLoss
from guie.training.checkpoint import TrainState
from guie.training.step import (
    LossWatch,
    gradients,
    gradients_within_memory,
    sam_step,
)

Output = tuple[torch.Tensor, dict[str, torch.Tensor]]


class Toy(nn.Module):
    """Mean squared error; with `limit`, memory for so many images at once."""

    def __init__(self, limit: float | None = None):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.limit = nn.Linear(3, 1), limit

    def forward(self, batch: Batch) -> Output:
        if self.limit and len(batch) > self.limit:
            raise torch.OutOfMemoryError("CUDA out of memory")
        loss = (self.linear(batch.images_BCHW)[:, 0] - batch.label_B).square().mean()
        return loss, {"loss": loss.detach()}


def batch() -> Batch:
    """Vectors in place of images, numbers in place of classes."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(10, 3, generator=generator)
    return Batch(torch.randn(10, generator=generator), torch.arange(10), images_BCHW=images)


def config(**changes) -> RunConfig:
    model = {"backbone": {"library": "timm", "name": "x"}, "image": {"size_px": 8}}
    stages = [{"epochs": 1, "lr": {"head": 1, "classes": 1}}]
    values = {"name": "t", "data": {"manifest": "m.csv"}, "model": model, "stages": stages}
    return RunConfig.model_validate(values | changes)


HALVE = config(on_out_of_memory="halve")


@pytest.fixture(scope="module")
def accelerator() -> Accelerator:
    return Accelerator(cpu=True)


def test_out_of_memory_halves_the_micro_batches_or_names_what_to_lower(
    accelerator: Accelerator, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, model, state = Toy(), Toy(limit=4), TrainState()
    gradients(accelerator, whole, batch(), 1)
    args = (accelerator, model, batch())
    gradients_within_memory(*args, HALVE, state, draw=(0,))
    assert state.halvings == 2 and "4 micro-batches a step" in capsys.readouterr().err
    torch.testing.assert_close(model.linear.weight.grad, whole.linear.weight.grad)
    with pytest.raises(UserError, match="step 1 of stage train.*train.accumulate to 2.*--resume"):
        gradients_within_memory(*args, config(), TrainState(), draw=(0,))
    model.limit = 0.5  # not even one image
    with pytest.raises(UserError, match="lower the image size"):
        gradients_within_memory(*args, HALVE, state, draw=(0,))
    bad = replace(batch(), images_BCHW=torch.zeros(10, 4))
    with pytest.raises(RuntimeError, match="shapes"):  # any other error stays as it is
        gradients_within_memory(accelerator, Toy(), bad, HALVE, TrainState(), draw=(0,))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_is_named_with_its_images(
    accelerator: Accelerator, value: float
) -> None:
    watch, paths = LossWatch(), pd.Series(["a.jpg", "b.jpg", "c.jpg"])
    stage = config().stages[0]
    for loss, row in ((1.0, 0), (value, 2), (float("nan"), 1)):
        watch.add(torch.tensor(loss), torch.tensor([row]), {"head": 0.5})
    message = f"loss is {value} at step 6 of stage train, .*'head': 0.5.*intact.* c.jpg"
    with pytest.raises(UserError, match=message):
        watch.check(accelerator, paths, stage, step=7)
    watch.check(accelerator, paths, stage, step=7)  # reported once
    watch.add(torch.tensor(1.0), torch.tensor([0]), {})
    watch.check(accelerator, paths, stage, step=8)


def test_sam_takes_the_gradient_rho_up_the_slope_and_steps_back(accelerator: Accelerator) -> None:
    model, above, rho = Toy(), Toy(), 0.1
    before = [p.detach().clone() for p in model.parameters()]
    gradients(accelerator, above, batch(), 1)
    slope = [p.grad.clone() for p in above.parameters()]
    length = torch.cat([grad.flatten() for grad in slope]).norm()
    above.zero_grad()
    with torch.no_grad():
        for parameter, grad in zip(above.parameters(), slope, strict=True):
            parameter.add_(rho * grad / length)
    gradients(accelerator, above, batch(), 1)
    logs = sam_step(model, lambda: gradients(accelerator, model, batch(), 1), rho)
    assert logs["loss"] == gradients(accelerator, Toy(), batch(), 1)["loss"]
    for parameter, old, wanted in zip(model.parameters(), before, above.parameters(), strict=True):
        assert torch.equal(parameter, old)
        torch.testing.assert_close(parameter.grad, wanted.grad)


def test_sam_leaves_an_overflow_to_the_scaler() -> None:
    """fp16's first steps overflow on purpose: infinite gradients must not reach the weights."""
    model = Toy()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = [p.detach().clone() for p in model.parameters()]

    def step(factor: float) -> None:
        def overflowing() -> dict[str, torch.Tensor]:
            loss, logs = model(batch())
            scaler.scale(loss * factor).backward()
            return logs

        sam_step(model, overflowing, rho=0.05)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    step(1e38)
    for parameter, old in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, old)
    assert scaler.get_scale() == 2.0**15
    step(1.0)
    assert not torch.equal(model.linear.weight, before[0])


class Remembering(Toy):
    """A running mean, and a loss with a memory: state in buffers and outside of them."""

    def __init__(self) -> None:
        super().__init__()
        config = MultiSimilarityConfig(name="multi_similarity", memory=32)
        self.loss, self.norm = MetricLearningLoss(config, 4, 3), nn.BatchNorm1d(3)

    def forward(self, batch: Batch) -> Output:
        emb_BD = nn.functional.normalize(self.norm(batch.images_BCHW) + self.linear.weight)
        loss = self.loss(emb_BD, torch.arange(len(emb_BD)) % 4)[0]
        return loss, {"loss": loss.detach()}


def test_state_moves_once_a_step_of_sam(accelerator: Accelerator) -> None:
    """Its second pass is at other weights."""
    ours, once = Remembering(), Remembering()
    for _ in range(2):
        sam_step(ours, lambda: gradients(accelerator, ours, batch(), 1), rho=0.5)
        gradients(accelerator, once, batch(), 1)
    assert once.loss.get_extra_state()["next"] == 20
    assert ours.loss.get_extra_state() == once.loss.get_extra_state()
    for name, value in once.state_dict().items():
        if torch.is_tensor(value):
            assert torch.equal(ours.state_dict()[name], value), name


class Dropping(Toy):
    """Logs the sum of what dropout keeps of a batch."""

    def forward(self, batch: Batch) -> Output:
        kept = nn.functional.dropout(batch.images_BCHW, 0.5)
        return self.linear(kept).mean(), {"kept": kept.sum()}


def test_each_process_and_each_step_draws_its_own_dropout(accelerator: Accelerator) -> None:
    """And the same step of the same process the same, whatever ran before."""

    def kept(step: int, rank: int) -> float:
        torch.rand(step + 3 * rank)
        args = (accelerator, Dropping(), batch(), config(), TrainState())
        return gradients_within_memory(*args, draw=(0, 0, step, rank))["kept"].item()

    places = [(step, rank) for step in range(3) for rank in range(2)]
    first = [kept(*place) for place in places]
    assert len(set(first)) == len(places)
    assert [kept(*place) for place in reversed(places)] == first[::-1]
