"""What training stops at: no captions, a loss that is not finite, images that cannot be read."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from toy_configs import write_config

import train
from guie.base.errors import UserError
from guie.evaluation.protocols import quick_scores
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
