"""The loop, called as a user calls it, on toy images with tiny models."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from toy_configs import STAGES, write_config

import embed
import train
import validate
from guie.base.errors import UserError
from guie.models import open_model
from guie.training.run_folder import read_metrics
from tiny_runs import assert_same_bits, interrupted_after, logged_losses


@pytest.fixture(scope="module")
def config(mix: Path, toy_manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_config(tmp_path_factory.mktemp("run") / "c.yaml", mix, toy_manifest.parent)


@pytest.fixture(scope="module")
def run(config: Path) -> Path:
    return train.main(["--config", str(config)])


def test_a_run_explains_itself(run: Path, mix: Path) -> None:
    for name in ("config.yaml", "record.json", "summary.json", "model.safetensors"):
        assert (run / name).is_file(), name
    assert list(run.rglob("events.out.tfevents*"))
    lines = read_metrics(run / "metrics.jsonl")
    losses = [line for line in lines if "loss" in line]
    assert {line["stage"] for line in losses} == {"head", "full"}
    assert [line["step"] for line in losses] == list(range(1, len(losses) + 1))
    scores = [line["val_r_at_1"] for line in lines if "val_r_at_1" in line]
    summary = json.loads((run / "summary.json").read_text())
    assert len(scores) >= 3 and summary["best"]["val_r_at_1"] == max(scores)
    # of the last stage, which trains all
    assert summary["trainable_parameters"] == summary["parameters"]
    assert {"lr_backbone" in line for line in losses if line["stage"] == "head"} == {False}
    assert {"lr_backbone" in line for line in losses if line["stage"] == "full"} == {True}


def test_a_finished_run_is_reused_and_another_config_refused(run: Path, config: Path) -> None:
    before = (run / "model.safetensors").stat().st_mtime_ns
    assert train.main(["--config", str(config)]) == run
    assert (run / "model.safetensors").stat().st_mtime_ns == before
    with pytest.raises(UserError, match="another config .seed: 0, now 5"):
        train.main(["--config", str(config), "--set", "seed=5"])


def test_resume_goes_on_to_the_same_bits(
    run: Path, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped in the second stage and resumed, a run ends as the uninterrupted one did."""
    there = ["--config", str(config), "--set", f"out={tmp_path}"]
    with monkeypatch.context() as patched:
        interrupted_after(patched, steps=5)  # the last checkpoint is older
        with pytest.raises(KeyboardInterrupt):
            train.main(there)
    with pytest.raises(UserError, match="unfinished run; --resume"):
        train.main(there)
    resumed = train.main([*there, "--resume"])
    assert_same_bits(resumed, run)


def test_a_resume_with_a_replaced_image_is_refused(
    mix: Path, toy_manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "images"
    shutil.copytree(toy_manifest.parent, root)
    words = ["--config", str(write_config(tmp_path / "c.yaml", mix, root, stages=STAGES[:1]))]
    with monkeypatch.context() as patched:
        interrupted_after(patched, steps=2)
        with pytest.raises(KeyboardInterrupt):
            train.main(words)
    rows = pd.read_csv(mix)
    train_image, other = rows.loc[rows["split"] == "train", "image_path"].iloc[[2, 5]]
    of_val = rows.loc[rows["split"] == "val", "image_path"].iloc[0]
    kept = shutil.copy2(root / train_image, tmp_path / "kept")
    shutil.copyfile(root / other, root / train_image)
    shutil.copyfile(root / other, root / of_val)  # which is scored, not trained on
    with pytest.raises(UserError, match=f"1 of .* training images .* first {train_image} .*bytes"):
        train.main([*words, "--resume"])
    shutil.copy2(kept, root / train_image)
    assert (train.main([*words, "--resume"]) / "summary.json").exists()


def test_embedding_and_validation_agree_with_the_training_log(
    run: Path, mix: Path, toy_manifest: Path, tmp_path: Path
) -> None:
    out, report = tmp_path / "E.npz", tmp_path / "report.json"
    common = ["--manifest", str(mix), "--root", str(toy_manifest.parent), "--split", "val"]
    embed.main(["--model", str(run), *common, "--out", str(out), "--workers", "0"])
    rows = np.load(out)
    of_val = pd.read_csv(mix)["split"] == "val"
    assert len(rows["image_path"]) == of_val.sum() and rows["embedding"].shape[1] == 64
    words = ["--embeddings", str(out), *common, "--index", "merged", "--out", str(report)]
    validate.main(words)
    best = json.loads((run / "summary.json").read_text())["best"]["val_r_at_1"]
    assert json.loads(report.read_text())["mean"]["r_at_1"] == pytest.approx(best, abs=1e-9)


def test_training_learns(mix: Path, toy_manifest: Path, tmp_path: Path) -> None:
    """On few classes the loss falls far below its start: the gradients reach what they should."""
    config = write_config(
        tmp_path / "c.yaml",
        mix,
        toy_manifest.parent,
        stages=[
            {
                "epochs": 12,
                "domains": ["packages", "cars"],
                "lr": {"backbone": 1e-3, "head": 1e-2, "classes": 1e-2},
                "augment": {"crop_scale": [1.0, 1.0], "crop_ratio": [1.0, 1.0]},
            }
        ],
        task={"loss": {"name": "softmax"}},
        checkpoint_every="1000 steps",
    )
    folder = train.main(["--config", str(config)])
    losses = logged_losses(folder)
    assert losses[-1] < 0.3 * losses[0]


def test_without_a_val_split_no_score_is_claimed(
    toy_manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = {"epochs": 0.1, "lr": {"head": 1e-3, "classes": 1e-2}}
    config = write_config(tmp_path / "c.yaml", toy_manifest, toy_manifest.parent, stages=[stage])
    for _ in range(2):  # the second finds it trained
        folder = train.main(["--config", str(config)])
        assert "no val split, so the last weights are kept" in capsys.readouterr().out
    assert json.loads((folder / "summary.json").read_text())["best"] is None
    assert (folder / "model.safetensors").exists()


def test_domains_left_out_are_neither_trained_on_nor_validated(
    mix: Path, toy_manifest: Path, tmp_path: Path
) -> None:
    """And what trains is counted without the classes."""
    table = pd.read_csv(mix)
    out = sorted(set(table["domain"]))[:2]
    stage = {"epochs": 0.1, "lr": {"head": 1e-3, "classes": 1e-2}}
    data = {"manifest": str(mix), "root": str(toy_manifest.parent), "workers": 0}
    path = write_config(
        tmp_path / "c.yaml",
        mix,
        toy_manifest.parent,
        data=data | {"leave_out": out},
        stages=[stage],
    )
    run = train.main(["--config", str(path)])
    left = table[~table["domain"].isin(out)]
    classes = (run / "classes.txt").read_text().splitlines()
    assert classes == sorted(set(left.loc[left["split"] == "train", "label"]))
    scored = {
        k.partition("/")[2] for k in read_metrics(run / "metrics.jsonl")[-1] if "r_at_1/" in k
    }
    assert scored == set(left.loc[left["split"] == "val", "domain"])
    summary = json.loads((run / "summary.json").read_text())
    embedder = open_model(run).embedder
    assert summary["trainable_parameters"] == sum(p.numel() for p in embedder.head.parameters())
    assert summary["parameters"] == sum(p.numel() for p in embedder.parameters())


def test_patience_ends_a_stage_and_says_so(
    mix: Path, toy_manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = {"epochs": 50, "validate_every": "1 step", "patience": 2}
    stage["lr"] = {"head": 0.0, "classes": 1e-9}
    config = write_config(tmp_path / "c.yaml", mix, toy_manifest.parent, stages=[stage])
    folder = train.main(["--config", str(config)])
    # nothing that validation sees is trained: the first score stays the best
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["steps"] == 3
    [name] = summary["stopped_early"]
    assert summary["stopped_early"][name] == 3
    said = f"stage {name}: patience 2 ended it at step 3 of "
    assert said in capsys.readouterr().out
