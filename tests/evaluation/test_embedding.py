"""Embedding in blocks: what leaves the device, what is written meanwhile, in which precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from threading import Event
from types import SimpleNamespace

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
from guie.evaluation import embedding
from guie.evaluation.embedding import embed_blocks, embed_dataset
from guie.evaluation.feature_cache import FeatureCache, fill
from guie.evaluation.opened import embedding_precision
from guie.models.loading import trained_precision
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


@pytest.mark.parametrize(("ranks", "expected"), [(1, [16, 16, 8]), (2, [32, 8]), (5, [40])])
def test_a_block_has_as_many_images_of_each_process(ranks: int, expected: list[int]) -> None:
    accelerator = SimpleNamespace(
        num_processes=ranks,
        process_index=0,
        device=torch.device("cpu"),
        is_local_main_process=False,
        autocast=nullcontext,
        gather=lambda own_SD: own_SD.repeat(ranks, 1),
    )
    blocks = embed_blocks(accelerator, Identity(), IMAGES, batch_size=4, workers=0)
    assert [len(block_ND) for block_ND in blocks] == expected


STATES = pd.DataFrame(
    {"file": [f"{n}.png" for n in range(6)], "decoder": "d", "size_bytes": 1, "mtime_ns": 1}
).assign(version="1")
ROWS_ND = np.arange(12, dtype=np.float32).reshape(6, 2)


def filled(cache: FeatureCache, blocks) -> None:
    fill(Accelerator(), cache, STATES, np.arange(6), blocks)


def test_a_block_is_computed_while_the_last_is_written(tmp_path, monkeypatch) -> None:
    computed, add, waited = Event(), FeatureCache.add, []

    def slow(cache, states, rows) -> None:
        waited.append(computed.wait(60))
        add(cache, states, rows)

    def blocks():
        yield ROWS_ND[:3]
        computed.set()
        yield ROWS_ND[3:]

    monkeypatch.setattr(FeatureCache, "add", slow)
    cache = FeatureCache(tmp_path, {}, np.float32)
    filled(cache, blocks())
    assert waited == [True, True]
    assert np.array_equal(cache.open(STATES, 2)[:], ROWS_ND)


def test_a_stopped_run_has_written_its_last_whole_block(tmp_path, monkeypatch) -> None:
    stopping, add = Event(), FeatureCache.add

    def slow(cache, states, rows) -> None:
        assert stopping.wait(60)
        add(cache, states, rows)

    def blocks():
        yield ROWS_ND[:3]
        stopping.set()
        raise Stopped(Cause.TIME, SystemExit(0))

    monkeypatch.setattr(FeatureCache, "add", slow)
    cache = FeatureCache(tmp_path, {}, np.float32)
    with pytest.raises(Stopped):
        filled(cache, blocks())
    assert cache.missing(STATES).tolist() == [3, 4, 5]


@pytest.mark.parametrize("full_at", [0, 1])
def test_a_block_that_cannot_be_written_ends_it(full_at: int, tmp_path, monkeypatch) -> None:
    tried = []

    def full(cache, states, rows) -> None:
        tried.append(len(rows))
        if len(tried) > full_at:
            raise UserError("disk full")

    monkeypatch.setattr(FeatureCache, "add", full)
    with pytest.raises(UserError, match="disk full"):
        filled(FeatureCache(tmp_path, {}), iter([ROWS_ND[:3], ROWS_ND[3:]]))
    assert len(tried) == full_at + 1


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
