"""Training and validation of a manifest show the same pictures, as its sidecar says."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from toy_configs import write_config

import train
from guie.base.errors import UserError
from guie.training.run_folder import METRICS_FILE, read_metrics
from tiny_runs import interrupted_after

STAGES = [
    {"name": "head", "epochs": 1, "cached_views": 1, "lr": {"head": 1e-3, "classes": 1e-2}},
    {"name": "full", "epochs": 1, "lr": {"backbone": 1e-3, "head": 1e-3, "classes": 1e-2}},
]


def drawn(folder: Path, bits: int, decode: str = "seen") -> Path:
    """A mix of six classes of patterns, for training and for val, grey."""
    rng, rows = np.random.default_rng(0), []
    folder.mkdir()
    for split in ("train", "val"):
        for label in range(6):
            pattern = np.kron(rng.integers(40, 216, (4, 4)), np.ones((8, 8), int))
            for n in range(6):
                grey = np.clip(pattern + rng.integers(-20, 20, (32, 32)), 0, 255).astype(np.uint8)
                name = f"{split}{label}_{n}.png"
                Image.fromarray(grey if bits == 8 else grey.astype(np.uint16) * 257).save(
                    folder / name
                )
                rows.append(
                    f"{name},d/{split}{label},d,{split},{'train' if split == 'train' else 'both'}"
                )
    path = folder / "m.csv"
    path.write_text("\n".join(["image_path,label,domain,split,role", *rows, ""]))
    if decode != "seen":
        path.with_name("m.sidecar.yaml").write_text(f"decode: {decode}\n")
    return path


def trained(folder: Path, mix: Path, *words: str) -> list[dict]:
    """Train; return the lines of metrics.jsonl without times. All runs share one cache of features."""
    config = write_config(folder / "run.yaml", mix, mix.parent, stages=STAGES, name=mix.parent.name)
    run = train.main(["--config", str(config), *words])
    lines = read_metrics(run / METRICS_FILE)
    return [{k: v for k, v in line.items() if k.startswith(("loss", "val_"))} for line in lines]


def test_sixteen_bits_train_and_score_as_the_eight_that_they_hold(tmp_path: Path) -> None:
    eight = trained(tmp_path, drawn(tmp_path / "eight", 8))
    deep = trained(tmp_path, drawn(tmp_path / "deep", 16))
    assert deep == eight and any("val_r_at_1" in line for line in deep)
    shutil.copytree(tmp_path / "deep", tmp_path / "host")
    (tmp_path / "host/m.sidecar.yaml").write_text("decode: host\n")
    host = trained(tmp_path, tmp_path / "host/m.csv")
    assert [line["loss"] for line in host if "loss" in line] != [
        line["loss"] for line in deep if "loss" in line
    ]


def test_another_decoder_is_another_run_and_has_features_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mix = drawn(tmp_path / "mix", 16)
    with monkeypatch.context() as patched:
        interrupted_after(patched, 1)
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path, mix)
    mix.with_name("m.sidecar.yaml").write_text("decode: host\n")
    with pytest.raises(UserError, match="the sidecar's decode changed"):
        trained(tmp_path, mix, "--resume")
    host = trained(tmp_path, mix, "--overwrite")
    mix.with_name("m.sidecar.yaml").unlink()
    assert trained(tmp_path, mix, "--overwrite") != host
    mix.with_name("m.sidecar.yaml").write_text("decode: host\n")
    assert trained(tmp_path, mix, "--overwrite") == host  # from the cache
