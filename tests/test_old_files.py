"""Files that the code of November 2026 wrote, before its modules and names changed, still open.

`old_files/` holds a run, the same run stopped after one step, an ensemble, its submission, and their
embeddings of the val split. The images are drawn here: bitmaps, whose size no encoder changes.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import embed
import train
from guie.training.run_folder import read_metrics

OLD = Path(__file__).with_name("old_files")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of the old commands: `manifest.csv`, its images, and `runs`."""
    rng = np.random.RandomState(0)
    rows = []
    for domain in "ab":
        for number in range(4):
            pattern = np.kron(rng.randint(0, 256, (5, 5, 3)), np.ones((8, 8, 1)))
            split, role = ("train", "train") if number < 3 else ("val", "both")
            for image in range(8):
                noisy = np.clip(pattern + rng.randint(-30, 31, (40, 40, 3)), 0, 255)
                name = f"{domain}{number}_{image}.bmp"
                Image.fromarray(noisy.astype(np.uint8)).save(tmp_path / name)
                rows.append((name, f"{domain}/{number}", domain, split, role))
    table = pd.DataFrame(rows, columns=["image_path", "label", "domain", "split", "role"])
    table.to_csv(tmp_path / "manifest.csv", index=False)
    shutil.copytree(OLD, tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("model", "expected"), [("run", "run"), ("both", "both"), ("submission.zip", "both")]
)
def test_an_old_model_embeds_as_it_did(folder: Path, model: str, expected: str) -> None:
    words = ["--model", f"runs/{model}", "--manifest", "manifest.csv", "--split", "val"]
    out = embed.main([*words, "--out", "E.npz", "--workers", "0"])
    with np.load(out) as now, np.load(OLD / "expected.npz") as then:
        assert now["image_path"].tolist() == then["image_path"].tolist()
        np.testing.assert_allclose(now["embedding"], then[expected], atol=1e-5)


def test_an_old_run_resumes_and_ends_as_it_did(folder: Path) -> None:
    done = train.main(["--config", "runs/cut/config.yaml", "--resume"])
    now, then = (read_metrics(path / "metrics.jsonl") for path in (done, OLD / "run"))
    assert [line.keys() for line in now] == [line.keys() for line in then]
    for line, known in zip(now, then, strict=True):
        numbers = {key: value for key, value in line.items() if key != "stage"}
        assert numbers == pytest.approx({key: known[key] for key in numbers}, rel=1e-3)
