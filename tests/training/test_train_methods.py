"""Losses of every kind, contrastive pretraining, SAM, EMA: the one loop trains them all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from toy_configs import write_config

import embed
import train
from guie.training.checkpoint import Checkpoints
from tiny_runs import TINY_CLIP, assert_same_bits, interrupted_after, logged_losses

pytestmark = pytest.mark.slow


def test_a_tiny_clip_pretrains_and_its_weights_load(
    mix: Path, toy_manifest: Path, tmp_path: Path
) -> None:
    clip = write_config(
        tmp_path / "clip.yaml",
        mix,
        toy_manifest.parent,
        name="clip",
        model={"backbone": TINY_CLIP, "image": {"size_px": 64}, "head": None},
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


# One of each kind: buffers, a boundary that is learned, proxies; pairs of a library, and our own.
LOSSES = ["curricularface", "margin", "soft_triple", "supcon", "hyperbolic"]
# Beside the weights of classes, with which test_train.py resumes to the same bits.
WITH_STATE = {"curricularface", "margin", "soft_triple"}


@pytest.mark.parametrize("name", LOSSES)
def test_every_kind_of_loss_trains_and_resumes(
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
    losses = logged_losses(whole)
    assert len(losses) >= 6 and losses[-1] < losses[0]
    if name not in WITH_STATE:
        return
    with monkeypatch.context() as patched:
        interrupted_after(patched, steps=3)
        with pytest.raises(KeyboardInterrupt):
            train.main(["--config", str(config), "--set", "name=cut"])
    cut = train.main(["--config", str(config), "--set", "name=cut", "--resume"])
    assert_same_bits(cut, whole)


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


def test_gradients_are_clipped_by_value(mix: Path, toy_manifest: Path, tmp_path: Path) -> None:
    stage = {
        **{"epochs": 0.01, "optimizer": "sgd", "schedule": "constant", "weight_decay": 0.0},
        **{"lr": {"head": 1.0, "classes": 1.0}, "clip_grad_value": 1e-4},
    }
    config = write_config(tmp_path / "c.yaml", mix, toy_manifest.parent, stages=[stage])
    words = ["--config", str(config), "--set"]
    moved, still = (
        load_file(
            train.main([*words, f"name={name}", "--set", f"stages.0.lr.head={rate}"])
            / "last.safetensors"
        )
        for name, rate in (("moved", 1.0), ("still", 1e-9))
    )
    difference = (moved["head.linear.weight"] - still["head.linear.weight"]).abs()
    assert 0.99e-4 < difference.max() <= 1.01e-4
    assert (difference > 0.99e-4).float().mean() > 0.5  # most gradients were larger
