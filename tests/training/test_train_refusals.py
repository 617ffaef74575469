"""What training stops at: no captions, a loss that is not finite, images that cannot be read."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from toy_configs import write_config

import train
from guie.base.errors import UserError
from guie.evaluation.validation import quick_scores
from guie.training import loop
from guie.training.run_folder import read_metrics
from tiny_runs import TINY_CLIP


def test_contrast_needs_captions(mix: Path, toy_manifest: Path, tmp_path: Path) -> None:
    table = pd.read_csv(mix).drop(columns="caption")
    table.to_csv(tmp_path / "bare.csv", index=False)
    config = write_config(
        tmp_path / "c.yaml",
        tmp_path / "bare.csv",
        toy_manifest.parent,
        model={"backbone": TINY_CLIP, "image": {"size_px": 64}, "head": None},
        task={"name": "contrastive"},
        stages=[{"epochs": 1, "lr": {"backbone": 1e-3}}],
    )
    with pytest.raises(UserError, match="caption"):
        train.main(["--config", str(config)])


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"start_from": "nowhere"}, "start_from: nowhere: no such run folder"),
        (
            {
                "task": {
                    "name": "distillation",
                    "teachers": [{"model": "nowhere"}],
                    "criteria": [{"relation": {"name": "similarity"}}],
                },
                "stages": [{"epochs": 1, "lr": {"head": 1e-3}}],
            },
            "nowhere: no such run folder",
        ),
        (
            {
                "model": {
                    "backbone": {**TINY_CLIP, "pretrained": "any"},
                    "image": {"size_px": 64},
                    "head": {"norm": "bn"},
                },
                "retention": {"features": 1, "generic": {"manifest": "gone.csv", "batch_size": 2}},
            },
            "gone.csv: no such file",
        ),
    ],
)
def test_what_is_missing_is_named_before_the_images_are_checked(
    keys: dict,
    message: str,
    mix: Path,
    toy_manifest: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop, "readable", None)
    config = write_config(tmp_path / "c.yaml", mix, toy_manifest.parent, **keys)
    with pytest.raises(UserError, match=message):
        train.main(["--config", str(config)])


def test_a_later_stages_size_is_refused_before_the_first_step(
    mix: Path, toy_manifest: Path, tmp_path: Path
) -> None:
    words = ["--config", str(write_config(tmp_path / "c.yaml", mix, toy_manifest.parent))]
    with pytest.raises(UserError, match="image size 33 px: not a whole number of patches"):
        train.main([*words, "--set", "stages.1.size_px=33"])
    assert read_metrics(tmp_path / "runs/t/metrics.jsonl") == []


def test_a_warm_up_that_outlasts_its_stage_is_told(
    mix: Path, toy_manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = {"epochs": 0.1, "warmup": "1000 steps", "lr": {"head": 1e-3, "classes": 1e-2}}
    train.main(
        [
            "--config",
            str(write_config(tmp_path / "c.yaml", mix, toy_manifest.parent, stages=[first])),
        ]
    )
    assert "the warm-up of 1000 steps never reaches the peak rates" in capsys.readouterr().out


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
    stages = [{"epochs": 0.1, "lr": {"head": 1e-3, "classes": 1e-2}}]
    words = ["--config", str(write_config(tmp_path / "c.yaml", mix, root, stages=stages))]
    with pytest.raises(UserError, match="--drop-bad") as refusal:
        train.main(words)
    assert of_train in str(refusal.value) and of_val in str(refusal.value)
    assert not (tmp_path / "runs" / "t" / "metrics.jsonl").exists()
    folder = train.main([*words, "--drop-bad"])
    assert set(pd.read_csv(folder / "dropped.csv")["image_path"]) == {of_train, of_val}


@pytest.mark.parametrize("alone", ["by label", "by role"])
def test_val_queries_without_a_positive_are_refused_before_the_first_step(
    alone: str, mix: Path, toy_manifest: Path, tmp_path: Path
) -> None:
    """In the words of the validation, which would come to it after the first stage."""
    table = pd.read_csv(mix)
    val = table["split"] == "val"
    if alone == "by role":
        table.loc[val, "role"] = "query"
    else:
        table = table[~val | ~table.duplicated(["split", "label"])]
    table.to_csv(tmp_path / "m.csv", index=False)
    words = ["--config", str(write_config(tmp_path / "c.yaml", tmp_path / "m.csv", mix.parent))]
    words += ["--set", f"data.root={toy_manifest.parent}"]
    with pytest.raises(UserError, match="m.csv: split val: none of .* queries has a positive") as e:
        train.main(words)
    rows = table[table["split"] == "val"].reset_index(drop=True)
    with pytest.raises(UserError) as later:
        quick_scores(np.ones((len(rows), 2), np.float32), rows)
    assert str(e.value).endswith(str(later.value))
    assert not (tmp_path / "runs" / "t" / "metrics.jsonl").exists()


def test_a_stage_of_one_class_is_warned_of(
    mix: Path, toy_manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its softmax is 0 at every step."""
    table = pd.read_csv(mix)
    first = table[(table["split"] == "train") & (table["domain"] == "toys")]["label"].iloc[0]
    kept = (table["split"] != "train") | (table["label"] == first) | (table["domain"] != "toys")
    table[kept].to_csv(tmp_path / "m.csv", index=False)
    stages = [{"epochs": 1, "lr": {"head": 1e-3, "classes": 1e-2}, "domains": ["toys"]}]
    root = toy_manifest.parent
    config = write_config(tmp_path / "c.yaml", tmp_path / "m.csv", root, stages=stages)
    train.main(["--config", str(config)])
    assert "warning: stage train trains on one class" in capsys.readouterr().out


@pytest.mark.parametrize("hours", ["nan", "inf", "-1", "1e400", "soon"])
def test_a_time_that_never_comes_is_refused(hours: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="^2$"):
        train.main(["--config", "nowhere.yaml", f"--max-hours={hours}"])
    assert f"{hours}: must be a number of hours, 0 or more" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("norm", "words"),
    [("bn", ["train.batch_size=1"]), ("bn_plain", ["train.batch_size=3", "train.accumulate=2"])],
)
def test_batch_normalisation_of_one_image_is_refused(
    norm: str, words: list[str], mix: Path, toy_manifest: Path, tmp_path: Path
) -> None:
    words = [*words, f"model.head.norm={norm}"]
    config = write_config(tmp_path / "c.yaml", mix, toy_manifest.parent)
    with pytest.raises(UserError, match="stages.0.batch_size: .* one image .* needs two"):
        train.main(["--config", str(config), *(w for word in words for w in ("--set", word))])


def test_batch_normalisation_of_a_tower_is_refused_at_its_step(
    mix: Path, toy_manifest: Path, tmp_path: Path
) -> None:
    """A map of one pixel, of one image."""
    rates = {"backbone": 1e-3, "head": 1e-3, "classes": 1e-2}
    stages = [{"epochs": 1, "batch_size": 1, "lr": rates}]
    model = {"backbone": {"library": "timm", "name": "resnet10t"}, "image": {"size_px": 32}}
    config = write_config(tmp_path / "c.yaml", mix, toy_manifest.parent, model=model, stages=stages)
    with pytest.raises(UserError, match="stage train: batch_size 1 .* which needs two; raise"):
        train.main(["--config", str(config)])


@pytest.mark.parametrize("word", ["train.accumulate=2", "on_out_of_memory=halve"])
def test_new_batch_normalisation_sees_no_micro_batch_of_a_loss_that_compares_images(
    word: str, mix: Path, toy_manifest: Path, tmp_path: Path
) -> None:
    """A backbone without pretrained weights learns its statistics, whatever batch_norm says."""
    stages = [{"epochs": 1, "lr": {"backbone": 1e-3, "head": 1e-3}}]
    model = {"backbone": {"library": "timm", "name": "test_resnet"}, "image": {"size_px": 32}}
    task = {"loss": {"name": "supcon"}}
    config = write_config(
        tmp_path / "c.yaml", mix, toy_manifest.parent, model=model, stages=stages, task=task
    )
    with pytest.raises(
        UserError, match="new modules of the backbone: .* sees each micro-batch twice"
    ):
        train.main(["--config", str(config), "--set", word])


@pytest.mark.parametrize(
    ("word", "said"),
    [
        (f"seed={2**70}", "a whole number beyond 64 bits"),
        (f"model.head.dim={2**60}", "model.head.dim=.* less than or equal to 65536"),
        ("stages.0.epochs=1e308", "stages.0.epochs=.* less than or equal to 1000000"),
        (f"train.batch_size={2**60}", "train.batch_size=.* less than or equal to 1048576"),
        (f"keep_checkpoints={2**60}", "keep_checkpoints=.* less than 2147483648"),
        ("model.image.size_px=1000000000", "model.image.size_px=.* less than or equal to 16384"),
        ("data.workers=1000000", "data.workers=.* less than or equal to 1024"),
        ("model.head.hidden=[65537]", "model.head.hidden.* less than or equal to 65536"),
    ],
)
def test_numbers_beyond_what_torch_can_hold_are_refused(
    word: str, said: str, mix: Path, toy_manifest: Path, tmp_path: Path
) -> None:
    config = write_config(tmp_path / "c.yaml", mix, toy_manifest.parent)
    with pytest.raises(UserError, match=said):
        train.main(["--config", str(config), "--set", word])


def test_a_model_that_memory_cannot_hold_is_refused(
    mix: Path, toy_manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(loop, "build_task", full)
    config = write_config(tmp_path / "c.yaml", mix, toy_manifest.parent)
    with pytest.raises(
        UserError, match="out of memory before the first step, with .* classes; use"
    ):
        train.main(["--config", str(config)])
