"""Trackers of a run: which get its log, and which are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from accelerate import tracking
from toy_configs import write_config

import train
from guie.base.errors import UserError
from guie.training.run_folder import read_metrics

FIND = "guie.config.training.find_spec"


class Recorder(tracking.GeneralTracker):
    """Stands in for a tracker that is not installed here."""

    name = "wandb"
    requires_logging_directory = False
    lines: list[tuple[int | None, dict[str, Any]]] = []
    tracker = None

    def __init__(self, run_name: str, **_: Any) -> None:
        super().__init__()
        self.lines.clear()

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        pass

    def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
        self.lines.append((step, values))


def short(mix: Path, root: Path, folder: Path, trackers: str) -> list[str]:
    stages = [{"epochs": 0.2, "lr": {"head": 0.1, "classes": 1.0}}]
    config = write_config(folder / "c.yaml", mix, root, stages=stages)
    return ["--config", str(config), "--set", f"trackers={trackers}"]


def test_the_named_trackers_get_what_metrics_jsonl_has(
    mix: Path, toy_manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FIND, lambda name: name)
    monkeypatch.setitem(tracking.LOGGER_TYPE_TO_CLASS, "wandb", Recorder)
    monkeypatch.setattr(tracking, "get_available_trackers", lambda: [tracking.LoggerType.WANDB])
    run = train.main(short(mix, toy_manifest.parent, tmp_path, "[wandb]"))
    written = read_metrics(run / "metrics.jsonl")
    assert [step for step, _ in Recorder.lines] == [line["step"] for line in written]
    assert all(
        values.items() <= line.items()
        for (_, values), line in zip(Recorder.lines, written, strict=True)
    )
    assert not list(run.rglob("events.out.tfevents*")), "TensorBoard was not named"


def test_a_tracker_that_is_not_installed_is_named(
    mix: Path, toy_manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FIND, lambda name: None if name == "comet_ml" else name)
    words = short(mix, toy_manifest.parent, tmp_path, "[tensorboard, comet_ml]")
    with pytest.raises(
        UserError, match=r"trackers: comet_ml is not .*pip install comet-ml, or rem"
    ):
        train.main(words)


def test_an_unknown_tracker_is_refused_with_those_there_are(
    mix: Path, toy_manifest: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"trackers\.0.*'tensorboard'.*'trackio'"):
        train.main(short(mix, toy_manifest.parent, tmp_path, "[tensorbord]"))
