"""Two CPU processes train and embed as one does at the same global batch."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import distributed

import embed
import kills
import train
import two_processes
from guie.config.loading import parsed, to_yaml
from guie.models.head import GlobalBatchNorm1d
from guie.training.checkpoint import Checkpoints
from guie.training.run_folder import read_metrics
from tiny_runs import bn_config

SRC = Path(__file__).parents[2] / "src"


TORCHRUN = [
    *(sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"),
    *("--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0"),
]


def environment() -> dict[str, str]:
    """A user's without a GPU."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("ACCELERATE_")}
    return env | {"OMP_NUM_THREADS": "1"}


def launched(log: Path, lines: int, words: list[str]) -> int:
    """`two_processes.begin` as a user starts it."""
    process = subprocess.Popen([*TORCHRUN, str(SRC / "train.py"), *words], env=environment())
    while process.poll() is None and kills.count_lines(log) < lines:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)  # torchrun passes it on to both
    assert process.wait(120) != 0
    return kills.count_lines(log)


def losses(folder: Path) -> dict[int, float]:
    return {line["step"]: line["loss"] for line in read_metrics(folder / "metrics.jsonl")}


@pytest.fixture(scope="module")
def config(toy_manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two stages with batch statistics in the head, and nothing random in the model."""
    folder = tmp_path_factory.mktemp("processes")
    rates = {"head": 1e-3, "classes": 1e-3}
    train = {"batch_size": 24, "augment": {"flip": 0.5}}
    stages = [
        {"epochs": 0.5, "lr": rates},
        {"epochs": 1, "lr": {"backbone": 1e-4, **rates}},
    ]
    return bn_config(folder, toy_manifest, train, stages)


@pytest.fixture(scope="module")
def one(config: Path) -> Path:
    """The run of a single process."""
    return train.main(["--config", str(config)])


@pytest.mark.slow
def test_two_processes_equal_one_also_resumed_by_one(config: Path, one: Path) -> None:
    """Two processes begin and are told to end; one goes on: as if one had done it all."""
    words = ["--config", str(config), "--set", "name=launched"]
    begun = launched(one.with_name("launched") / "metrics.jsonl", 4, words)
    assert 4 <= begun < len(losses(one))
    saved = Checkpoints(one.with_name("launched"), keep=1).load()
    assert saved and saved["state"].global_step >= 4  # else the run below begins anew, and is right
    two = train.main([*words, "--resume"])
    assert losses(two) == pytest.approx(losses(one), rel=1e-4)


@pytest.mark.slow
def test_two_processes_resume_to_the_same_bits_with_dropout(config: Path, one: Path) -> None:
    words = ["--config", str(config), "--set", "model.head.dropout=0.5", "--set"]
    two_processes.run("train", [*words, "name=whole"])
    whole, cut = one.with_name("whole"), one.with_name("cut")
    begun = two_processes.begin(cut / "metrics.jsonl", 7, [*words, "name=cut"])
    assert 7 <= begun < len(losses(whole))
    two_processes.run("train", [*words, "name=cut", "--resume"])
    assert kills.differences(whole, cut) == []


@pytest.mark.slow
def test_machines_that_see_other_run_folders_do_not_resume(one: Path, tmp_path: Path) -> None:
    """The first machine has a checkpoint, the second has not: they would train apart without a word."""
    (config := parsed((one / "config.yaml").read_text()).plain).update(out="runs", name="apart")
    (tmp_path / "c.yaml").write_text(to_yaml(config))
    machines = [tmp_path / "0", tmp_path / "1"]
    shutil.copytree(one / "checkpoints", machines[0] / "runs/apart/checkpoints")
    machines[1].mkdir()
    shutil.copy(one / "record.json", machines[0] / "runs/apart")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    words = [sys.executable, str(SRC / "train.py"), "--config", "../c.yaml", "--resume"]
    common = {**environment(), "MASTER_ADDR": "localhost", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    common |= {"LOCAL_RANK": "0", "ACCELERATE_USE_CPU": "true"}
    processes = [
        subprocess.Popen(
            words, cwd=folder, env=common | {"RANK": str(rank)}, stderr=subprocess.PIPE
        )
        for rank, folder in enumerate(machines)
    ]
    said = [process.communicate(timeout=120)[1].decode() for process in processes]
    assert [process.returncode for process in processes] == [2, 2]
    last = said[0].splitlines()[-1]
    assert last.startswith("error: runs/apart: the processes find checkpoints of steps [0, ")
    assert last.endswith("`out` must be on a disk that all machines share")


@pytest.mark.slow
def test_no_image_is_lost_or_doubled(one: Path, toy_manifest: Path, tmp_path: Path) -> None:
    toys = tmp_path / "toys"
    shutil.copytree(toy_manifest.parent, toys)
    table = pd.read_csv(toy_manifest).iloc[:200]
    (toys / table["image_path"][150]).write_bytes(b"no image")  # a share of the second process
    table.to_csv(toys / "odd.csv", index=False)
    common = ["--model", str(one), "--manifest", str(toys / "odd.csv"), "--batch-size", "32"]
    common += ["--drop-bad"]
    embed.main([*common, "--out", str(tmp_path / "one.npz"), "--workers", "0"])
    two_processes.run("embed", [*common, "--out", str(tmp_path / "two.npz")])
    single, double = np.load(tmp_path / "one.npz"), np.load(tmp_path / "two.npz")
    assert len(single["image_path"]) == 199
    assert (single["image_path"] == double["image_path"]).all()
    np.testing.assert_allclose(single["embedding"], double["embedding"], atol=1e-5)


def _normalised_by_two(rank: int, folder: str) -> None:
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2
    )
    norm, feat_BF, weight_BF = batch_norm_case()
    own = slice(0, 3) if rank == 0 else slice(3, None)  # uneven shares
    part_BF = feat_BF[own].clone().requires_grad_()
    out_BF = norm(part_BF)
    (out_BF * weight_BF[own]).sum().backward()
    grads = [norm.weight.grad, norm.bias.grad]
    for grad in grads:
        distributed.all_reduce(grad)
    result = {"out": out_BF.detach(), "grad": part_BF.grad, "params": torch.stack(grads)}
    torch.save(result | {"norm": norm.state_dict()}, f"{folder}/{rank}.pt")
    two_processes.leave()


def batch_norm_case() -> tuple[GlobalBatchNorm1d, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    feat_BF = 100 + torch.randn(8, 5, generator=generator)  # far from zero
    norm = GlobalBatchNorm1d(5)
    torch.nn.init.uniform_(norm.weight, 0.5, 1.5, generator=generator)
    return norm, feat_BF, torch.randn(8, 5, generator=generator)


@pytest.mark.slow
def test_batch_norm_of_two_processes_is_torchs_over_the_global_batch(tmp_path: Path) -> None:
    torch.multiprocessing.start_processes(
        _normalised_by_two, args=(str(tmp_path),), nprocs=2, start_method="forkserver"
    )
    norm, feat_BF, weight_BF = batch_norm_case()
    twin = torch.nn.BatchNorm1d(5).double()
    twin.load_state_dict(norm.state_dict())
    feat_BF = feat_BF.double().requires_grad_()
    out_BF = twin(feat_BF)
    (out_BF * weight_BF).sum().backward()
    parts = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1)]
    close = {"rtol": 1e-5, "atol": 1e-4, "check_dtype": False}
    torch.testing.assert_close(torch.cat([p["out"] for p in parts]), out_BF.detach(), **close)
    torch.testing.assert_close(torch.cat([p["grad"] for p in parts]), feat_BF.grad, **close)
    params = torch.stack([twin.weight.grad, twin.bias.grad])
    torch.testing.assert_close(parts[0]["params"], params, **close)
    for name, value in twin.state_dict().items():
        for part in parts:
            torch.testing.assert_close(part["norm"][name], value, **close)
