"""The loop, called as a user calls it, on toy images with tiny models."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from safetensors.torch import load_file

import embed
import train
import validate
from guie.base.errors import UserError
from guie.training.run.checkpoint import Checkpoints
from guie.training.run.record import read_metrics
from tiny_runs import interrupted_after, mix_with_val

TINY = {"library": "open_clip", "name": "guie-tiny"}
STAGES = [
    {"name": "head", "epochs": 1, "lr": {"head": 1e-3, "classes": 1e-2}},
    {
        "name": "full",
        "epochs": 2,
        "size_px": 40,
        "sampler": "round_robin",
        "validate_every": "3 steps",
        "lr": {"backbone": 1e-4, "head": 1e-3, "classes": 1e-2},
    },
]


@pytest.fixture(scope="module")
def mix(toy_manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy benchmark with one train class of each domain moved to val."""
    return mix_with_val(toy_manifest, tmp_path_factory.mktemp("mix") / "mix.csv")


def write_config(path: Path, mix: Path, root: Path, **changes) -> Path:
    config = {
        "name": "t",
        "out": str(path.parent / "runs"),
        "log_every": "1 step",
        "checkpoint_every": "2 steps",
        "data": {"manifest": str(mix), "root": str(root), "workers": 0},
        "model": {"backbone": TINY, "image": {"size_px": 32}, "head": {"dropout": 0.2}},
        "train": {"batch_size": 32, "augment": {"color": 0.2}},
        "stages": STAGES,
        **changes,
    }
    path.write_text(yaml.safe_dump(config))
    return path


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


def test_a_frozen_stage_freezes_and_the_next_does_not(run: Path) -> None:
    lines = [line for line in read_metrics(run / "metrics.jsonl") if "loss" in line]
    assert {"lr_backbone" in line for line in lines if line["stage"] == "head"} == {False}
    assert {"lr_backbone" in line for line in lines if line["stage"] == "full"} == {True}


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
        interrupted_after(patched, steps=5)  # of about 15; the last checkpoint is older
        with pytest.raises(KeyboardInterrupt):
            train.main(there)
    with pytest.raises(UserError, match="unfinished run; --resume"):
        train.main(there)
    resumed = train.main([*there, "--resume"])
    for name in ("model.safetensors", "last.safetensors", "metrics.jsonl"):
        assert (resumed / name).read_bytes() == (run / name).read_bytes(), name


def test_embedding_and_validation_agree_with_the_training_log(
    run: Path, mix: Path, toy_manifest: Path, tmp_path: Path
) -> None:
    out, report = tmp_path / "E.npz", tmp_path / "report.json"
    common = ["--manifest", str(mix), "--root", str(toy_manifest.parent)]
    embed.main(["--model", str(run), *common, "--out", str(out), "--workers", "0"])
    rows = np.load(out)
    assert len(rows["image_path"]) == len(pd.read_csv(mix)) and rows["embedding"].shape[1] == 64
    validate.main(
        ["--embeddings", str(out), *common, "--split", "val", "--index", "merged"]
        + ["--out", str(report)]
    )
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
    )
    folder = train.main(["--config", str(config)])
    losses = [line["loss"] for line in read_metrics(folder / "metrics.jsonl") if "loss" in line]
    assert losses[-1] < 0.3 * losses[0]


def test_without_a_val_split_no_score_is_claimed(
    toy_manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = {"epochs": 0.5, "lr": {"head": 1e-3, "classes": 1e-2}}
    config = write_config(tmp_path / "c.yaml", toy_manifest, toy_manifest.parent, stages=[stage])
    for _ in range(2):  # the second finds it trained
        folder = train.main(["--config", str(config)])
        assert "no val split, so the last weights are kept" in capsys.readouterr().out
    assert json.loads((folder / "summary.json").read_text())["best"] is None
    assert (folder / "model.safetensors").exists()


def test_domains_left_out_are_neither_trained_on_nor_validated(
    mix: Path, toy_manifest: Path, tmp_path: Path
) -> None:
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


def test_patience_ends_a_stage(mix: Path, toy_manifest: Path, tmp_path: Path) -> None:
    stage = {"epochs": 50, "validate_every": "1 step", "patience": 2, "lr": {"classes": 1e-9}}
    config = write_config(tmp_path / "c.yaml", mix, toy_manifest.parent, stages=[stage])
    folder = train.main(["--config", str(config)])
    # nothing that validation sees is trained: the first score stays the best
    assert json.loads((folder / "summary.json").read_text())["steps"] == 3


def test_a_tiny_clip_pretrains_and_its_weights_load(
    mix: Path, toy_manifest: Path, tmp_path: Path
) -> None:
    clip = write_config(
        tmp_path / "clip.yaml",
        mix,
        toy_manifest.parent,
        name="clip",
        model={"backbone": TINY, "image": {"size_px": 64}, "head": None},
        task={"name": "contrastive"},
        stages=[{"epochs": 1, "domains": ["packages", "cars"], "lr": {"backbone": 1e-3}}],
    )
    folder = train.main(["--config", str(clip)])
    weights = folder / "model_clip.safetensors"
    config = write_config(tmp_path / "c.yaml", mix, toy_manifest.parent)
    words = ["--set", f"model.backbone.pretrained={weights}"]
    words += ["--set", "stages.0.epochs=0.2", "--set", "stages.1.epochs=0.2"]
    assert (train.main(["--config", str(config), *words]) / "model.safetensors").is_file()
    out = tmp_path / "E.npz"
    model = f"open_clip:guie-tiny:{weights}"
    common = ["--manifest", str(mix), "--root", str(toy_manifest.parent), "--split", "val"]
    embed.main(["--model", model, *common, "--out", str(out), "--workers", "0"])
    assert np.load(out)["embedding"].shape[1] == 128


def test_contrast_needs_captions(mix: Path, toy_manifest: Path, tmp_path: Path) -> None:
    table = pd.read_csv(mix).drop(columns="caption")
    table.to_csv(tmp_path / "bare.csv", index=False)
    config = write_config(
        tmp_path / "c.yaml",
        tmp_path / "bare.csv",
        toy_manifest.parent,
        model={"backbone": TINY, "image": {"size_px": 64}, "head": None},
        task={"name": "contrastive"},
        stages=[{"epochs": 1, "lr": {"backbone": 1e-3}}],
    )
    with pytest.raises(UserError, match="caption"):
        train.main(["--config", str(config)])


def test_a_diverged_loss_stops_with_its_place(
    mix: Path, toy_manifest: Path, tmp_path: Path
) -> None:
    lr = {"backbone": 1e30, "head": 1e30, "classes": 1e30}
    config = write_config(
        tmp_path / "c.yaml", mix, toy_manifest.parent, stages=[{"epochs": 9, "lr": lr}]
    )
    with pytest.raises(UserError, match=r"loss is .* at step .* learning rates .*images/"):
        train.main(["--config", str(config)])


def test_unreadable_images_are_found_before_the_first_step(
    mix: Path, toy_manifest: Path, tmp_path: Path
) -> None:
    root = tmp_path / "images"
    shutil.copytree(toy_manifest.parent, root)
    rows = pd.read_csv(mix)
    of_train = rows[rows["split"] == "train"]["image_path"].iloc[3]
    of_val = rows[rows["split"] == "val"]["image_path"].iloc[0]
    (root / of_train).write_bytes((root / of_train).read_bytes()[:200])
    (root / of_val).unlink()
    words = ["--config", str(write_config(tmp_path / "c.yaml", mix, root))]
    words += ["--set", "stages.0.epochs=0.2", "--set", "stages.1.epochs=0.2"]
    with pytest.raises(UserError, match="--drop-bad") as refusal:
        train.main(words)
    assert of_train in str(refusal.value) and of_val in str(refusal.value)
    assert not (tmp_path / "runs" / "t" / "metrics.jsonl").exists()
    folder = train.main([*words, "--drop-bad"])
    assert set(pd.read_csv(folder / "dropped.csv")["image_path"]) == {of_train, of_val}


LOSSES = [
    *("softmax", "arcface", "cosface", "curricularface", "triplet", "margin", "multi_similarity"),
    *("supcon", "proxy_anchor", "proxy_nca", "soft_triple", "batch_all", "hyperbolic"),
]

# Beside the weights of classes, with which test_resume_goes_on_to_the_same_bits resumes.
WITH_STATE = {"curricularface", "margin", "proxy_anchor", "proxy_nca", "soft_triple"}


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_trains_and_resumes(
    name: str, mix: Path, toy_manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those with a state of their own, stopped after three of six steps, end at the same bits."""
    stage = {"epochs": 6, "lr": {"backbone": 1e-4, "head": 1e-2, "classes": 1e-2}}
    few = {"domains": ["packages", "cars"], "batch_size": 24}
    config = write_config(
        tmp_path / "c.yaml",
        mix,
        toy_manifest.parent,
        stages=[{**stage, **few}],
        task={"loss": {"name": name}},
    )
    whole = train.main(["--config", str(config)])
    losses = [line["loss"] for line in read_metrics(whole / "metrics.jsonl") if "loss" in line]
    assert len(losses) >= 6 and losses[-1] < losses[0]
    if name not in WITH_STATE:
        return
    with monkeypatch.context() as patched:
        interrupted_after(patched, steps=3)
        with pytest.raises(KeyboardInterrupt):
            train.main(["--config", str(config), "--set", "name=cut"])
    cut = train.main(["--config", str(config), "--set", "name=cut", "--resume"])
    for file in ("last.safetensors", "metrics.jsonl"):
        assert (cut / file).read_bytes() == (whole / file).read_bytes(), file


def test_sam_ema_layer_decay_and_checkpointing_train_together(
    mix: Path, toy_manifest: Path, tmp_path: Path
) -> None:
    """The average is what is scored and saved; checkpointed blocks change no number."""
    stage = {
        **{"epochs": 1, "lr": {"backbone": 1e-3, "head": 1e-2, "classes": 1e-2}},
        **{"domains": ["packages", "cars"], "batch_size": 24},
        **{"sam_rho": 0.05, "ema_decay": 0.5, "layer_decay": 0.7, "clip_grad_norm": 1.0},
    }
    config = write_config(tmp_path / "c.yaml", mix, toy_manifest.parent, stages=[stage])
    words = ["--config", str(config), "--set"]
    plain = train.main([*words, "gradient_checkpointing=false"])
    saving = train.main([*words, "gradient_checkpointing=true", "--set", "name=saving"])
    ours, theirs = (load_file(run / "last.safetensors") for run in (plain, saving))
    for name, value in ours.items():
        torch.testing.assert_close(theirs[name], value, rtol=1e-4, atol=1e-5)
    saved = Checkpoints(plain, keep=2).load()
    raw, averaged = saved["task"], saved["ema"]
    name = "embedder.head.linear.weight"
    torch.testing.assert_close(averaged["module." + name], ours[name.partition(".")[2]])
    assert not torch.equal(raw[name], averaged["module." + name])
