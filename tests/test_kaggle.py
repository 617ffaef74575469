"""The Kaggle notebook without a browser: two processes until the time is up, then one to the end."""

import importlib.util
import json
from pathlib import Path

import nbformat
import pytest

from guie.config.loading import to_yaml
from guie.training.run_folder import read_metrics

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "notebooks" / "kaggle_train.ipynb"


@pytest.fixture
def kaggle(toy_manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with Kaggle's input and working folders; the repository and a tiny mix are inputs."""
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "guie").symlink_to(ROOT)
    (tmp_path / "input" / "guie-mix").symlink_to(toy_manifest.parent)
    rates = {"backbone": 1e-4, "head": 1e-3, "classes": 1e-3}
    config = {
        "name": "tiny",
        "log_every": "1 step",
        "data": {"manifest": "${KAGGLE_INPUT}/guie-mix/manifest.csv", "workers": 1},
        "model": {
            "backbone": {"library": "open_clip", "name": "guie-tiny"},
            "image": {"size_px": 32},
        },
        "train": {"batch_size": 24, "epochs": 2, "lr": rates},
    }
    (tmp_path / "tiny.yaml").write_text(to_yaml(config))
    for name in ("input", "working"):
        monkeypatch.setenv(f"KAGGLE_{name.upper()}", str(tmp_path / name))
    monkeypatch.setenv("KAGGLE_CONFIG", str(tmp_path / "tiny.yaml"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


def session(folder: Path) -> str:
    """Run all cells, and return what they printed."""
    spec = importlib.util.spec_from_file_location("notebooks_run", ROOT / "notebooks" / "run.py")
    runner = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(runner)
    executed = runner.execute(NOTEBOOK, folder / "executed.ipynb", "smoke")
    outputs = [output for cell in executed.cells for output in cell.get("outputs", ())]
    return "".join(output.get("text", "") for output in outputs if output.get("name") == "stdout")


@pytest.mark.slow
def test_two_sessions(kaggle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAGGLE_PROCESSES", "2")
    monkeypatch.setenv("KAGGLE_HOURS", "0.0001")
    run = kaggle / "working" / "runs" / "tiny"
    printed = session(kaggle)
    assert "saved at step 1" in printed and "The time is up" in printed
    assert len(read_metrics(run / "metrics.jsonl")) == 1

    (kaggle / "working").rename(kaggle / "input" / "guie-train")
    monkeypatch.setenv("KAGGLE_PROCESSES", "1")
    monkeypatch.setenv("KAGGLE_HOURS", "1")
    assert "step_00000001-" in session(kaggle)  # found the checkpoint of the first
    steps = [line["step"] for line in read_metrics(run / "metrics.jsonl")]
    assert steps == list(range(1, len(steps) + 1)) and len(steps) > 2
    assert json.loads((run / "summary.json").read_text())["steps"] == len(steps)
    assert (kaggle / "working" / "submission" / "submission.zip").is_file()


def test_the_wheels_are_those_of_the_requirements() -> None:
    listed = (ROOT / "notebooks" / "kaggle_wheels.txt").read_text().splitlines()
    required = (ROOT / "requirements/base.txt").read_text()
    for line in listed:
        if not line.startswith(("#", "ftfy")):  # of open_clip_torch
            assert line in required, line


def test_its_inputs_have_one_name_everywhere() -> None:
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    text = "".join(cell.source for cell in cells)
    text += (ROOT / "configs" / "kaggle.yaml").read_text()
    for name in ("guie-wheels", "guie-mix", "guie-weights", "guie-train"):
        assert text.count(name) >= 2, name
