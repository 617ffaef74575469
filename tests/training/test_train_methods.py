"""The one loop trains with every task and method, and resumes to the same bits."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from toy_configs import FEW, STAGES, sets

import embed
import runs_of_every_task
import train
from runs_of_every_task import RUNS, Material
from tiny_runs import TINY_CLIP, assert_same_bits, cut_and_resumed, logged_losses

pytestmark = pytest.mark.slow
# Losses with a state besides class weights (buffers, a boundary that is learned, proxies), and one without
LOSSES = ("curricularface", "margin", "soft_triple", "supcon")
METHODS = RUNS | {name: {"task": {"loss": {"name": name}}} for name in LOSSES}


@pytest.mark.parametrize("name", METHODS)
def test_it_resumes_to_the_same_bits(
    name: str, material: Material, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = runs_of_every_task.written(METHODS[name], material, tmp_path)
    words = ["--config", str(config), *sets("log_every=1 step", "checkpoint_every=1 step")]
    whole = train.main(words)
    assert len(logged_losses(whole)) > 2
    assert_same_bits(cut_and_resumed(monkeypatch, [*words, *sets("name=cut")], 2), whole)


def test_a_tiny_clip_pretrains_and_its_weights_load(
    mix: Path, toy_manifest: Path, written: Callable, tmp_path: Path
) -> None:
    folder = train.main(
        written(
            model={"backbone": TINY_CLIP, "image": {"size_px": 64}, "head": None},
            task={"name": "contrastive"},
            stages=[{"epochs": 1, "domains": FEW, "lr": {"backbone": 1e-3}}],
        )
    )
    weights = folder / "model_clip.safetensors"
    stages = [stage | {"epochs": 0.2} for stage in STAGES]
    run = train.main(written(f"model.backbone.pretrained={weights}", stages=stages))
    assert (run / "model.safetensors").is_file()
    words = ["--manifest", str(mix), "--root", str(toy_manifest.parent), "--split", "val"]
    words += ["--model", f"open_clip:guie-tiny:{weights}", "--workers", "0"]
    out = embed.main([*words, "--out", str(tmp_path / "E.npz")])
    assert np.load(out)["embedding"].shape[1] == 128
