"""Two CPU processes train and embed as one does at the same global batch."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from toy_configs import FROZEN, RATES, sets

import embed
import kills
import runs_of_every_task
import train
import two_processes
from guie.config.loading import parsed, to_yaml
from guie.training.checkpoint import Checkpoints
from runs_of_every_task import RUNS, THREE, Material
from tiny_runs import TINY_CLIP, logged_losses

SRC = Path(__file__).parents[2] / "src"
TORCHRUN = [
    *(sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"),
    *("--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0"),
]
pytestmark = pytest.mark.slow


def environment() -> dict[str, str]:
    """A user's without a GPU."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("ACCELERATE_", "FSDP_"))}
    return env | {"OMP_NUM_THREADS": "1"}


def stopped_after(process: subprocess.Popen, log: Path, lines: int) -> None:
    """Send SIGTERM to a launched training after so many lines of log."""
    ends = time.monotonic() + 120
    while process.poll() is None and kills.count_lines(log) < lines and time.monotonic() < ends:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)  # the launcher passes it on to both
    try:
        assert process.wait(300) != 0
    finally:
        process.kill()
    saved = Checkpoints(log.parent, keep=1).load()
    # Else a resumed run begins anew, and is right
    assert saved and saved["state"].global_step >= lines


@pytest.fixture(scope="module")
def words(written: Callable, toy_manifest: Path) -> list[str]:
    """Two stages with batch statistics in the head, and nothing random in the model."""
    return written(
        manifest=toy_manifest,
        model={"backbone": TINY_CLIP, "image": {"size_px": 32}, "head": {"norm": "bn"}},
        train={"batch_size": 24, "augment": {"flip": 0.5}},
        stages=[{"epochs": 0.5, "lr": FROZEN}, {"epochs": 1, "lr": {**RATES, "classes": 1e-3}}],
    )


@pytest.fixture(scope="module")
def one(words: list[str]) -> Path:
    """The run of a single process."""
    return train.main(words)


def test_two_processes_equal_one_also_resumed_by_one(words: list[str], one: Path) -> None:
    """Two processes begin and are stopped; one continues: as if one had done it all."""
    words = [*words, *sets("name=launched")]
    process = subprocess.Popen([*TORCHRUN, str(SRC / "train.py"), *words], env=environment())
    stopped_after(process, one.with_name("launched") / "metrics.jsonl", 4)
    two = train.main([*words, "--resume"])
    assert logged_losses(two) == pytest.approx(logged_losses(one), rel=1e-4)


# Nothing is drawn in their models. Processes have different numbers of a domain's images
CURRICULAR = {"name": "curricularface", "classifier": "separate"}
CRITERIA = [
    {"loss": {"name": "arcface"}},
    {"relation": {"name": "snd", "sigma": 0.5, "queue": 64}},  # whose gradients are tame
    {"relation": {"name": "rkd", "angle": 1.0}, "domains": THREE},
    {"relation": {"name": "matching", "standardise": {"name": "phi_s", "steps": 2}, "drop": 0.0}},
    {"relation": {"name": "logits"}},
]
UNDRAWN = {
    "cached features": RUNS["two stages, the first on cached features"],
    "distillation": {"task": {"name": "distillation", "criteria": CRITERIA}},
    "online": {
        "task": {"name": "online", "loss": CURRICULAR},
        "train": RUNS["online"]["train"],
    },
    "online, a mean by class": {
        "task": {"name": "online", "loss": {**CURRICULAR, "running_mean": "class"}},
    },
}


@pytest.mark.parametrize("name", UNDRAWN)
def test_two_processes_equal_one_in_every_task(
    name: str, material: Material, tmp_path: Path
) -> None:
    config = runs_of_every_task.written(UNDRAWN[name], material, tmp_path)
    words = ["--config", str(config), *sets("log_every=1 step", "train.epochs=1")]
    one = train.main(words)
    two_processes.run("train", [*words, *sets("name=two")])
    # Rounding grows from step to step
    assert logged_losses(one.with_name("two")) == pytest.approx(logged_losses(one), rel=3e-3)


def test_two_processes_resume_to_the_same_bits_with_dropout(words: list[str], one: Path) -> None:
    words = [*words, *sets("model.head.dropout=0.5")]
    two_processes.run("train", [*words, *sets("name=whole")])
    whole, cut = one.with_name("whole"), [*words, *sets("name=cut")]
    begun = two_processes.begin(one.with_name("cut") / "metrics.jsonl", 7, cut)
    assert 7 <= begun < len(logged_losses(whole))
    two_processes.run("train", [*cut, "--resume"])
    assert kills.differences(whole, one.with_name("cut")) == []


def test_machines_with_different_run_folders_do_not_resume(one: Path, tmp_path: Path) -> None:
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
    command = [sys.executable, str(SRC / "train.py"), "--config", "../c.yaml", "--resume"]
    env = {**environment(), "MASTER_ADDR": "localhost", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    env |= {"LOCAL_RANK": "0", "ACCELERATE_USE_CPU": "true"}
    processes = [
        subprocess.Popen(command, cwd=folder, env=env | {"RANK": str(rank)}, stderr=subprocess.PIPE)
        for rank, folder in enumerate(machines)
    ]
    printed = [process.communicate(timeout=120)[1].decode() for process in processes]
    assert [process.returncode for process in processes] == [2, 2]
    last = printed[0].splitlines()[-1]
    assert last.startswith("error: runs/apart: the processes find checkpoints of steps [0, ")
    assert last.endswith("`out` must be on a disk that all machines share")


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
