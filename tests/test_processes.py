"""Two CPU processes train and embed as one does at the same global batch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

import embed
import train
from guie.logs import read_metrics

SRC = Path(__file__).parents[1] / "src"


def torchrun(*words: str) -> None:
    """Run a script of src/ in two processes, as a user without a GPU would."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
    port = ["--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0"]
    env = {k: v for k, v in os.environ.items() if not k.startswith("ACCELERATE_")}
    subprocess.run(
        [*command, *port, *words], check=True, env=env | {"OMP_NUM_THREADS": "1"}, timeout=300
    )


def test_two_processes_equal_one(toy_manifest: Path, tmp_path: Path) -> None:
    config = {
        "name": "one",
        "out": str(tmp_path),
        "log_every_steps": 1,
        "data": {"manifest": str(toy_manifest), "workers": 0},
        "model": {
            "backbone": {"library": "open_clip", "name": "guie-tiny"},
            "image": {"size_px": 32},
        },
        "stages": [
            {"epochs": 0.5, "batch_size": 24, "lr": {"head": 1e-3, "classes": 1e-3}},
            {
                "epochs": 1,
                "batch_size": 24,
                "lr": {"backbone": 1e-4, "head": 1e-3, "classes": 1e-3},
            },
        ],
    }
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
    words = ["--config", str(tmp_path / "c.yaml")]
    one = train.main(words)
    torchrun(str(SRC / "train.py"), *words, "--set", "name=two")
    single, double = (read_metrics(tmp_path / name / "metrics.jsonl") for name in ("one", "two"))
    assert [line["step"] for line in single] == [line["step"] for line in double]
    for a, b in zip(single, double, strict=True):
        assert b["loss"] == pytest.approx(a["loss"], rel=1e-4)

    # 199 images do not divide by two: none may be lost or doubled
    pd.read_csv(toy_manifest).iloc[:199].to_csv(tmp_path / "odd.csv", index=False)
    common = ["--model", str(one), "--manifest", str(tmp_path / "odd.csv"), "--batch-size", "32"]
    common += ["--root", str(toy_manifest.parent)]
    embed.main([*common, "--out", str(tmp_path / "one.npz"), "--workers", "0"])
    torchrun(str(SRC / "embed.py"), *common, "--out", str(tmp_path / "two.npz"))
    single, double = np.load(tmp_path / "one.npz"), np.load(tmp_path / "two.npz")
    assert len(single["image_path"]) == 199
    assert (single["image_path"] == double["image_path"]).all()
    np.testing.assert_allclose(single["embedding"], double["embedding"], atol=1e-5)
