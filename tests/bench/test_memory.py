"""Memory of a step: counted without content as it is held with content."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from counting import Tracker, largest_batch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from guie.config.loading import to_yaml

SCRIPT = Path(__file__).with_name("memory.py")


def test_storages_are_counted_while_they_live() -> None:
    with FakeTensorMode():
        weight = torch.empty(250, 250)
        with Tracker() as tracker:
            product = weight @ weight
            view = product.T[3]  # the same storage
            product.add_(1)
            assert tracker.live == tracker.peak == 250_000
            del product
            assert tracker.live == 250_000
            del view
            assert (tracker.live, tracker.peak) == (0, 250_000)


def test_what_the_backward_pass_keeps_is_counted() -> None:
    with FakeTensorMode(), Tracker(granule=512) as tracker:
        layers = nn.Sequential(nn.Linear(100, 100, bias=False), nn.Sigmoid())
        held = tracker.live
        assert held == 40_448  # 40,000 bytes in blocks of 512
        out = layers(torch.empty(64, 100))
        tracker.peak = tracker.live
        # the sigmoid keeps its output and the layer its input; what lies between goes
        assert tracker.live == held + 2 * 25_600
        out.sum().backward()
        assert tracker.live >= held + 40_448


@pytest.mark.parametrize(("states", "each", "limit"), [(10, 3, 100), (10, 3, 15), (0, 7, 7e4)])
def test_the_largest_batch_that_fits(states: float, each: float, limit: float) -> None:
    """Small batches peak elsewhere, in the optimiser: no line leads through all."""
    tried = []

    def peak(batch: int) -> float:
        tried.append(batch)
        return max(states + 6, states + each * batch)

    found = largest_batch(peak, limit)
    assert len(set(tried)) < 20
    assert found == 0 or peak(found) <= limit
    assert peak(max(found, 1) + 1) > limit


@pytest.mark.slow
def test_counted_is_held(tmp_path: Path) -> None:
    """Against this CPU, a ViT-Ti/16."""
    config = {
        "name": "memory",
        "precision": "bf16",
        "data": {"manifest": "none.csv"},
        "model": {
            "backbone": {"library": "timm", "name": "vit_tiny_patch16_224"},
            "image": {"size_px": 112},
        },
        "train": {"epochs": 1, "lr": {"backbone": 1e-4, "head": 1e-4, "classes": 1e-4}},
    }
    (tmp_path / "c.yaml").write_text(to_yaml(config))
    command = [sys.executable, str(SCRIPT), "--config", str(tmp_path / "c.yaml")]
    command += ["--check", "64", "--classes", "1000"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    _, _, _, held_mb, ratio, _ = (cell.strip() for cell in done.stdout.splitlines()[-1].split("|"))
    assert float(held_mb) > 100
    assert 0.85 < float(ratio) < 1.15, done.stdout
