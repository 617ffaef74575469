"""Memory of a step: counted without content as it is held with content."""

import gc

import memory
import pytest
import torch
from common import forget_peak, in_own_process, peak_gb, timm_model
from torch._subclasses.fake_tensor import FakeTensorMode

from guie.config import RunConfig, config_from

IMAGES, CLASSES = 64, 1000


def test_storages_are_counted_while_they_live() -> None:
    with FakeTensorMode():
        weight = torch.empty(250, 250)
        with memory.Tracker() as tracker:
            product = weight @ weight
            view = product.T[3]  # the same storage
            product.add_(1)
            assert tracker.live == tracker.peak == 250_000
            del product
            assert tracker.live == 250_000
            del view
            assert (tracker.live, tracker.peak) == (0, 250_000)


@pytest.mark.parametrize(("states", "each", "limit"), [(10, 3, 100), (10, 3, 15), (0, 7, 7e4)])
def test_the_largest_batch_that_fits(states: float, each: float, limit: float) -> None:
    """Small batches have their peak elsewhere, in the optimizer: no line leads through all."""
    tried = []

    def peak(batch: int) -> float:
        tried.append(batch)
        return max(states + 6, states + each * batch)

    found = memory.largest_batch(peak, limit)
    assert len(set(tried)) < 20
    assert found == 0 or peak(found) <= limit
    assert peak(max(found, 1) + 1) > limit


def config() -> RunConfig:
    train = {"epochs": 1, "lr": {"backbone": 1e-4, "head": 1e-4, "classes": 1e-4}}
    model = timm_model("vit_tiny_patch16_224", 112)
    values = {"name": "memory", "precision": "bf16", "data": {"manifest": "none.csv"}}
    return config_from(values | {"model": model, "train": train}, RunConfig)


def held_mb() -> float:
    """This process's peak memory in a real second step, beyond its imports."""
    run = config()

    def steps(images: int) -> float:
        forget_peak()
        before_gb, task = peak_gb(), memory.build(run, CLASSES)
        optimizer = memory.set_up(task, run, run.stages[0], False)
        memory.step(task, optimizer, (images, 3, 112, 112), run.precision)
        forget_peak()
        memory.step(task, optimizer, (images, 3, 112, 112), run.precision)
        return 1e3 * (peak_gb() - before_gb)

    steps(2)  # code is read into memory when it first runs
    gc.collect()
    return steps(IMAGES)


@pytest.mark.slow
def test_counted_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """On this CPU, a ViT-Ti/16."""
    run = config()
    frame = memory.Frame(memory.build(run, CLASSES), run, cuda=False)
    counted_mb = frame.usage(run.stages[0], IMAGES, False).peak / 1e6
    # glibc then gives memory back at once: what is held is what is used
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "0")
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "65536")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    held = in_own_process(held_mb)
    assert held > 100
    assert 0.85 < counted_mb / held < 1.15
