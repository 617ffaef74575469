"""The process of a model: its limits, how it ends, its state, and what is measured."""

import os
import signal
import time
from contextlib import ExitStack

import numpy as np
import pytest
import torch
from scorer_toys import MEAN, MeanColour, for_1_11, toy

from scorer.budget import describe, measured, project
from scorer.errors import Violation
from scorer.process import Limits, ModelProcess


@pytest.fixture
def opened(tmp_path):
    """A function that loads a module in a process of its own."""

    def open_(module, **limits):
        path = tmp_path / "saved_model.pt"
        path.write_bytes(for_1_11(module))
        process = running.enter_context(ModelProcess(path, Limits(**{"threads": 1, **limits})))
        process.call("load")
        return process

    with ExitStack() as running:
        yield open_


def embed(process, height=4):
    return process.embed(np.zeros((height, 4, 3), np.uint8))


def test_an_error_cannot_control_the_terminal(opened):
    class Shouts(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            if images.size(1) == 3:
                raise RuntimeError("\x1b]0;owned\x07\x1b[2J\u202e\x9b1m")
            return images

    with pytest.raises(Violation) as caught:
        embed(opened(Shouts()))
    assert str(caught.value).isprintable()


def test_a_process_that_hangs_is_ended(opened):
    hangs = f"count = 0\nwhile images.size(1) == 3:\n    count += 1\nreturn {MEAN} + count"
    process = opened(toy(hangs), image_seconds=0.2)
    with pytest.raises(Violation, match="no answer within 0 s") as caught:
        embed(process)
    assert caught.value.verdict == "hang" and not process.is_running
    with pytest.raises(ProcessLookupError):
        os.kill(process.process.pid, 0)


def test_a_process_that_is_killed_is_a_verdict(opened):
    process, began = opened(MeanColour()), time.perf_counter()
    _, numbers_D, seconds = embed(process)
    assert numbers_D.shape == (48,) and 0 < seconds < time.perf_counter() - began
    os.kill(process.process.pid, signal.SIGKILL)
    with pytest.raises(Violation, match="its process ended: SIGKILL") as caught:
        embed(process)
    assert caught.value.verdict == "out_of_memory"
    process.end()  # once more does no harm


def test_an_operation_is_counted_and_memory_measured(opened):
    product = "(images.float().mean() + torch.ones([4096, 1024])) @ torch.ones([1024, 3])"
    process = opened(toy(f"({product}).mean(0, keepdim=True)", weights=torch.ones(7)))
    flops, weight_bytes, activation_bytes = process.call("measure", np.zeros((8, 8, 3), np.uint8))
    assert flops == 2 * 4096 * 1024 * 3 and weight_bytes == 4 * 7
    assert 2**24 <= activation_bytes < 2**26
    kind, numbers_D, seconds = embed(process)
    assert (kind, len(numbers_D)) == ("torch.float32", 3)
    assert seconds > 0 and process.peak_bytes > 2**24
    how = "16.0 GiB in addition to PyTorch itself (RLIMIT_AS)"
    assert process.memory == {"held": True, "how": how}


def test_a_model_whose_operations_cannot_be_counted_has_no_budget(opened):
    found = measured(opened(toy(f"assert images.size(2) != 480\nreturn {MEAN}")), None)
    assert found["fits"] == "unknown" and "P100: not measured (" in describe(found)


WRITTEN = torch.zeros(1)
in_a_constant = torch.jit.trace(
    lambda one: WRITTEN.add_(one).clone(), torch.ones(1), check_trace=False
)


class Holds(torch.nn.Module):
    """Attributes of many kinds, of which a call changes one, or none."""

    maybe: torch.Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.maybe = None
        self.calls: int = 0
        self.table = {"a": torch.ones(1)}
        self.pair = (1, torch.ones(2))
        self.numbers: list[float] = [1.0]
        self.inner = torch.nn.ModuleList([torch.nn.Linear(2, 2)])
        self.register_buffer("large", torch.zeros(5000))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        height = images.size(2)
        if height == 1:
            self.maybe = torch.ones(3)
        elif height == 2:
            self.table["a"] += 1
        elif height == 3:
            self.pair[1].add_(1)
        elif height == 4:
            self.numbers.append(2.0)
        elif height == 5:
            for layer in self.inner:
                layer.weight.add_(1)
        elif height == 6:
            self.large[2500] += 1
        elif height == 7:
            self.calls += 1
        elif height == 8:
            return in_a_constant(torch.ones(1))
        return images.float().mean([2, 3])


def test_attributes_and_constants_are_part_of_the_state(opened):
    process = opened(Holds())
    states = [process.call("state")]
    assert process.call("state") == states[0]
    for height in range(1, 10):
        embed(process, height)
        states.append(process.call("state"))
    assert len(set(states)) == 9 and states[9] == states[8]


@pytest.mark.parametrize(
    ("models", "views", "weight_gb", "fits"),
    [(2, 1, 5, "yes"), (2, 2, 5, "perhaps"), (2, 3, 5, "no"), (1, 1, 15, "no")],
)
def test_the_budget_of_vit_h_is_that_by_hand(models, views, weight_gb, fits):
    """One takes 2.0 h at the GPU's full rate; two 4.1 h, at half of it 8.2 h, and 0.3 h of decoding.

    Two of them on the image and its mirror image take 8.2 h if nothing is lost; on three views, 12 h.
    """
    found = project(models * views * 2 * 167e9, int(weight_gb * 10**9), 10**9, 0.005)
    assert found["fits"] == fits and f"fits: {fits}" in describe(found)
    hours = models * views * 334e9 / 9.3e12 * 205_000 / 3600
    assert found["hours"]["least"] - found["hours"]["decode"] == pytest.approx(hours)
    assert f"{weight_gb + 2:.1f} GB of 16 GB" in describe(found)
