"""Embedding in blocks: what leaves the device, what is written meanwhile, in which precision."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Event

import numpy as np
import pandas as pd
import pytest
import torch
from accelerate import Accelerator
from torch.utils.data import TensorDataset

import embed
from guie.base.devices import make_accelerator
from guie.base.errors import UserError
from guie.config.loading import parsed, to_yaml
from guie.evaluation.opened import embedding_precision
from guie.models.opening import trained_precision
from guie.rows import embedding
from guie.rows.embedding import OnDevices, embed_dataset
from guie.rows.filling import fill
from guie.rows.states import keys
from guie.rows.store import Store
from guie.training.process_guard import Cause, Stopped
from tiny_runs import tiny_config, tiny_run

IMAGES = TensorDataset(torch.arange(80.0).reshape(40, 2))


class Identity(torch.nn.Module):
    dim = 2

    def forward(self, rows_BD: torch.Tensor) -> torch.Tensor:
        return rows_BD


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "BLOCK", 16)
    monkeypatch.setattr(embedding, "LEAST", 1)


@pytest.fixture(autouse=True)
def full_precision_afterwards() -> Iterator[None]:
    """An Accelerator of a later test would have the precision of the last one."""
    yield
    make_accelerator()


def test_rows_leave_the_device_once_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each copy waits for the GPU."""
    moved, cpu = [], torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda own: moved.append(len(own)) or cpu(own))
    found = embed_dataset(Accelerator(), Identity(), IMAGES, batch_size=4, workers=0)
    assert np.array_equal(found, IMAGES.tensors[0].numpy())
    assert moved == [16, 16, 8]


STATES = keys([f"{n}.png" for n in range(6)])
ROWS_ND = np.arange(12, dtype=np.float32).reshape(6, 2)


class InTwo:
    """Computes the rows in two blocks, with something between them."""

    process, remote = (0, 1), None

    def __init__(self, between) -> None:
        self.between = between

    def starts(self, count, parts):
        return range(0, count, 3)

    def agreed(self, make):
        return make()

    def __call__(self, blocks, write, title) -> None:
        first, second = blocks
        write(first, ROWS_ND[first])
        self.between()
        write(second, ROWS_ND[second])


def slowly(monkeypatch, waiting) -> None:
    add = Store.add

    def slow(store, states, rows) -> None:
        waiting()
        add(store, states, rows)

    monkeypatch.setattr(Store, "add", slow)


def test_a_block_is_computed_while_the_last_is_written(tmp_path, monkeypatch) -> None:
    computed, waited = Event(), []
    slowly(monkeypatch, lambda: waited.append(computed.wait(60)))
    store = Store(tmp_path, {}, np.float32)
    fill(store, STATES, InTwo(computed.set))
    assert waited == [True, True]
    assert np.array_equal(store.open(STATES, 2)[:], ROWS_ND)


def test_a_stopped_run_has_written_its_last_whole_block(tmp_path, monkeypatch) -> None:
    stopping = Event()
    slowly(monkeypatch, lambda: stopping.wait(60))

    def stop() -> None:
        stopping.set()
        raise Stopped(Cause.TIME, SystemExit(0))

    store = Store(tmp_path, {}, np.float32)
    with pytest.raises(Stopped):
        fill(store, STATES, InTwo(stop))
    assert store.missing(STATES).tolist() == [3, 4, 5]


@pytest.mark.parametrize("full_at", [0, 4])
def test_an_embedding_that_cannot_be_written_ends_at_the_next_batch(
    full_at: int, tmp_path, monkeypatch
) -> None:
    """By the check that all processes share: the fault of one must end the others."""
    tried, checked = [], []

    def full() -> None:
        tried.append(1)
        if len(tried) > full_at:
            raise UserError("disk full")

    def check(fault: UserError | None) -> None:
        checked.append(fault)
        embedding.raise_fault(fault)

    slowly(monkeypatch, full)
    compute = OnDevices(Accelerator(), Identity(), IMAGES, 4, workers=0, check=check)
    monkeypatch.setattr(embedding, "LEAST", 5)
    with pytest.raises(UserError, match="disk full"):
        fill(Store(tmp_path, {}, np.float32), keys([f"{n}" for n in range(40)]), compute)
    assert isinstance(checked[-1], UserError) and not any(checked[:-1])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was trained in bf16."""
    folder = tiny_run(tmp_path_factory.mktemp("runs") / "tiny")
    written = parsed((folder / "config.yaml").read_text()).plain
    (folder / "config.yaml").write_text(to_yaml(written | {"precision": "bf16"}))
    return folder


@pytest.mark.parametrize(
    ("asked", "gpu", "expected"),
    [(None, False, None), (None, True, "bf16"), ("no", True, "no"), ("fp16", False, "fp16")],
)
def test_a_run_is_embedded_on_a_gpu_as_it_was_trained(
    asked: str | None, gpu: bool, expected: str | None, run: Path, monkeypatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    assert embedding_precision(str(run), asked) == expected
    assert embedding_precision("timm:resnet50:a1_in1k", asked) == asked
    assert embedding_precision("a/submission.zip", asked) == asked


@pytest.mark.parametrize(
    ("precisions", "expected"), [(["bf16", "bf16"], "bf16"), (["bf16", "fp16"], "no")]
)
def test_an_ensemble_is_embedded_as_all_its_members_were_trained(
    precisions: list[str], expected: str, tmp_path: Path
) -> None:
    run = tiny_config(tmp_path / "run").model_dump()
    members = [
        {"source": "run", "model": run["model"], "run": run | {"precision": precision}}
        for precision in precisions
    ]
    (tmp_path / "composition.yaml").write_text(to_yaml({"members": members}))
    assert trained_precision(tmp_path) == expected


def test_the_precision_asked_for_is_used_and_known_by(run: Path, toy_manifest, tmp_path) -> None:
    table = pd.read_csv(toy_manifest)
    table[table["split"] == "test"].head(12).to_csv(tmp_path / "few.csv", index=False)
    words = ["--model", str(run), "--manifest", str(tmp_path / "few.csv"), "--split", "test"]
    words += ["--root", str(toy_manifest.parent), "--workers", "0"]
    words += ["--out", str(tmp_path / "E.npz")]
    found = {}
    for precision in ([], ["--precision", "no"], ["--precision", "bf16"]):
        with np.load(embed.main([*words, *precision])) as file:
            found[" ".join(precision)] = file["embedding"]
    plain_ND, full_ND, half_ND = found.values()
    assert np.array_equal(plain_ND, full_ND), "the default on a CPU"
    assert not np.array_equal(half_ND, full_ND)
    assert ((half_ND * full_ND).sum(axis=1) > 0.999).all()
