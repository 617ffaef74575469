"""Commands as a user starts them on a GPU: killed and resumed, sharded, with synchronised statistics."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import kills
from guie.config.loading import to_yaml
from runs_of_every_task import RUNS, Material, written
from tiny_runs import TINY_CLIP, logged_losses

ROOT = Path(__file__).parents[2]
TRAIN = [sys.executable, str(ROOT / "src/train.py")]
LAUNCH = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", "1"]
LAUNCH += ["--main_process_port", "0"]
PATIENCE_S = 120


def run(command: list[str], **environment: str) -> None:
    """Run a command; a failure shows the end of its output."""
    done = subprocess.run(
        command, env=os.environ | environment, timeout=PATIENCE_S, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_a_killed_run_ends_at_the_same_bits(
    precision: str, toy_manifest: Path, tmp_path: Path
) -> None:
    """By SIGKILL, amid two stages with batch statistics, dropout, an average and loader processes."""
    config = kills.write_config(tmp_path, kills.with_validation(toy_manifest))
    words = ["--config", str(config), "--set", "deterministic=true", "--set", "data.workers=2"]
    words += ["--set", f"precision={precision}", "--set"]
    run([*TRAIN, *words, f"out={tmp_path / 'whole'}"])
    whole, cut = tmp_path / "whole" / "run", tmp_path / "cut" / "run"
    words.append(f"out={tmp_path / 'cut'}")
    process = subprocess.Popen(
        [*TRAIN, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    kills.until(
        lambda: kills.count_lines(cut / "metrics.jsonl") >= 9 or process.poll() is not None,
        PATIENCE_S,
    )
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert list((cut / "checkpoints").glob("step_*"))
    run([*TRAIN, *words, "--resume"])
    assert kills.differences(whole, cut) == []


def test_fsdp_of_one_process_trains_as_without(material: Material, tmp_path: Path) -> None:
    name = "sub-centres, SAM, EMA, clipping, micro-batches, checkpointing"
    words = ["--config", str(written(RUNS[name], material, tmp_path))]
    words += ["--set", "log_every=1 step", "--set", "deterministic=true", "--set"]
    run([*TRAIN, *words, "name=plain"])
    fsdp = str(ROOT / "configs/accelerate/fsdp.yaml")
    run([*LAUNCH, "--config_file", fsdp, str(ROOT / "src/train.py"), *words, "name=sharded"])
    losses = [logged_losses(tmp_path / name) for name in ("sharded", "plain")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_synchronised_statistics_of_one_process(material: Material, tmp_path: Path) -> None:
    model = {"backbone": {"library": "timm", "name": "test_resnet"}}
    config = written({"model": model}, material, tmp_path)
    words = ["--config", str(config), "--set", "log_every=1 step", "--set", "deterministic=true"]
    run([*TRAIN, *words, "--set", "name=alone", "--set", "train.batch_norm=train"])
    ddp = str(ROOT / "configs/accelerate/ddp.yaml")
    words += ["--set", "name=synced", "--set", "train.batch_norm=synced"]
    run([*LAUNCH, "--config_file", ddp, str(ROOT / "src/train.py"), *words])
    losses = [logged_losses(tmp_path / name) for name in ("synced", "alone")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_the_commands_follow_each_other(
    toy_manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Train, embed, validate, export, score: each finds its GPU by itself."""
    monkeypatch.chdir(tmp_path)
    mix, root = kills.with_validation(toy_manifest), toy_manifest.parent
    rates = {"backbone": 1e-4, "head": 1e-3, "classes": 0.1}
    model = {"backbone": TINY_CLIP, "image": {"size_px": 32}, "head": {"dim": 16}}
    values = {"name": "run", "out": ".", "data": {"manifest": str(mix), "root": str(root)}}
    values |= {"model": model, "train": {"epochs": 0.5, "batch_size": 24, "lr": rates}}
    Path("c.yaml").write_text(to_yaml(values))
    of_test = f"--manifest {mix} --root {root} --split test"
    for command in (
        "train.py --config c.yaml",
        f"embed.py --model run {of_test} --out E.npz",
        f"validate.py --embeddings E.npz {of_test} --index merged --out report.json",
        "export.py --run run --out submission",
        f"score.py --submission submission/submission.zip {of_test} --out score.json",
    ):
        script, *words = command.split()
        run([sys.executable, str(ROOT / "src" / script), *words])
    assert Path("score.json").is_file()
