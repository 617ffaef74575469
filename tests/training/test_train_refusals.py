"""What training stops at, and trackers: wrong configs, images that cannot be read, a loss that diverges."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from accelerate import Accelerator
from toy_configs import FROZEN, RATES, sets

import train
from guie.base.errors import UserError
from guie.evaluation.validation import quick_scores
from guie.training import loop
from guie.training.run_folder import read_metrics
from tiny_runs import TINY_CLIP

SHORT = {"epochs": 0.1, "lr": FROZEN}
RESNET = {"backbone": {"library": "timm", "name": "test_resnet"}, "image": {"size_px": 32}}
SUPCON = {"task": {"loss": {"name": "supcon"}}, "stages": [{"epochs": 1, "lr": RATES}]}
SUPCON["stages"][0]["lr"] = {"backbone": 1e-3, "head": 1e-3}
NO_TEACHER = {
    "task": {
        "name": "distillation",
        "teachers": [{"model": "nowhere"}],
        "criteria": [{"relation": {"name": "similarity"}}],
    },
    "stages": [{"epochs": 1, "lr": {"head": 1e-3}}],
}
NO_GENERIC = {
    "model": {"backbone": {**TINY_CLIP, "pretrained": "any"}, "image": {"size_px": 64}},
    "retention": {"features": 1, "generic": {"manifest": "gone.csv", "batch_size": 2}},
}
LEARNING = {"model": RESNET, **SUPCON}
BY_STATISTICS = {"batch_norm": {"layer4": "train"}, "epochs": 1, "lr": FROZEN}
TRAINED_AND_SYNCED = [{**BY_STATISTICS, "batch_norm": mode} for mode in ("train", "synced")]
# Changes of a config, and the message
BY_CONFIG: list[tuple[dict[str, Any], list[str], str]] = [
    ({}, [f"seed={2**70}"], "a whole number beyond 64 bits"),
    ({}, [f"model.head.dim={2**60}"], "model.head.dim=.* less than or equal to 65536"),
    ({}, ["trackers=[tensorbord]"], r"trackers\.0.*'tensorboard'.*'trackio'"),
    (LEARNING, ["train.batch_norm=on"], "batch_norm=on: .* be .frozen."),
    ({"model": RESNET, "stages": [BY_STATISTICS]}, ["train.cached_views=2"], "are computed once"),
    ({"model": RESNET, "stages": [BY_STATISTICS]}, ["gradient_checkpointing=true"], "batch twice"),
    ({"model": RESNET, "stages": TRAINED_AND_SYNCED}, [], "stages.1.batch_norm: a run allows"),
    (LEARNING, ["train.accumulate=4", "train.batch_norm=train"], "set accumulate to 1"),
    # A backbone without pretrained weights learns its statistics, whatever batch_norm says
    (LEARNING, ["on_out_of_memory=halve"], "new modules of the backbone: .* twice"),
    # Models and files are looked for before images are checked
    ({}, ["start_from=nowhere"], "start_from: nowhere: no such run folder"),
    (NO_TEACHER, [], "nowhere: no such run folder"),
    (NO_GENERIC, [], "gone.csv: no such file"),
]


@pytest.mark.parametrize(("changes", "overrides", "message"), BY_CONFIG)
def test_a_wrong_config_is_refused_before_images_are_checked(
    changes: dict, overrides: list[str], message: str, written: Callable, monkeypatch
) -> None:
    if "new modules" not in message:  # which are known when the model is built
        monkeypatch.setattr(loop, "readable", None)
    with pytest.raises(UserError, match=message) as refusal:
        train.main(written(*overrides, **changes))
    assert len(str(refusal.value).splitlines()) <= 2


@pytest.mark.parametrize("hours", ["nan", "-1", "soon"])
def test_an_impossible_number_of_hours_is_refused(hours: str, capsys) -> None:
    with pytest.raises(SystemExit, match="^2$"):
        train.main(["--config", "nowhere.yaml", f"--max-hours={hours}"])
    assert f"{hours}: must be a number of hours, 0 or more" in capsys.readouterr().err


def test_a_later_stages_size_is_refused_before_the_first_step(written: Callable) -> None:
    words = written()
    with pytest.raises(UserError, match="image size 33 px: not a whole number of patches"):
        train.main([*words, *sets("stages.1.size_px=33")])
    assert read_metrics(Path(words[1]).parent / "runs/t/metrics.jsonl") == []


RESNET10 = {"backbone": {"library": "timm", "name": "resnet10t"}, "image": {"size_px": 32}}
ONE_IMAGE = [{"epochs": 1, "batch_size": 1, "lr": RATES}]
BY_STEP: list[tuple[dict[str, Any], list[str], str]] = [
    ({"stages": [{"epochs": 9, "lr": dict.fromkeys(RATES, 1e30)}]}, [], "loss is .* at .*images/"),
    # Batch normalisation of one image: in the head, in its micro-batch, in a backbone's map of one pixel
    ({}, ["train.batch_size=1", "model.head.norm=bn"], "batch_size 1 .* one image .* needs two"),
    ({}, ["train.batch_size=3", "train.accumulate=2", "model.head.norm=bn"], "in 2 micro-batches"),
    ({"model": RESNET10, "stages": ONE_IMAGE}, [], "batch_size 1 .* which needs two; raise"),
]


@pytest.mark.parametrize(("changes", "overrides", "message"), BY_STEP)
def test_what_fails_at_a_step_is_one_line(
    changes: dict, overrides: list[str], message: str, written: Callable
) -> None:
    with pytest.raises(UserError, match=message) as refusal:
        train.main(written(*overrides, **changes))
    assert "\n" not in str(refusal.value)


def test_a_model_that_memory_cannot_hold_is_refused(written: Callable, monkeypatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(loop, "build_task", full)
    with pytest.raises(UserError, match="out of memory before the first step, with .* classes"):
        train.main(written())


def test_unreadable_images_are_found_before_the_first_step(
    mix: Path, toy_manifest: Path, written: Callable, tmp_path: Path
) -> None:
    root = tmp_path / "images"
    shutil.copytree(toy_manifest.parent, root)
    rows = pd.read_csv(mix)
    of_train = rows[rows["split"] == "train"]["image_path"].iloc[3]
    of_val = rows[rows["split"] == "val"]["image_path"].iloc[0]
    (root / of_train).write_bytes((root / of_train).read_bytes()[:200])
    (root / of_val).unlink()
    words = written(root=root, stages=[SHORT])
    with pytest.raises(UserError, match="--drop-bad") as refusal:
        train.main(words)
    assert of_train in str(refusal.value) and of_val in str(refusal.value)
    assert not (Path(words[1]).parent / "runs/t/metrics.jsonl").exists()
    folder = train.main([*words, "--drop-bad"])
    assert set(pd.read_csv(folder / "dropped.csv")["image_path"]) == {of_train, of_val}


@pytest.mark.parametrize("alone", ["by label", "by role"])
def test_val_queries_without_a_positive_are_refused_before_the_first_step(
    alone: str, mix: Path, written: Callable, tmp_path: Path
) -> None:
    """By the message of the validation, which would come after the first stage."""
    table = pd.read_csv(mix)
    val = table["split"] == "val"
    if alone == "by role":
        table.loc[val, "role"] = "query"
    else:
        table = table[~val | ~table.duplicated(["split", "label"])]
    table.to_csv(tmp_path / "m.csv", index=False)
    with pytest.raises(UserError, match="m.csv: split val: none of .* queries has a positive") as e:
        train.main(written(manifest=tmp_path / "m.csv"))
    rows = table[table["split"] == "val"].reset_index(drop=True)
    with pytest.raises(UserError) as later:
        quick_scores(np.ones((len(rows), 2), np.float32), rows)
    assert str(e.value).endswith(str(later.value))


def test_image_text_contrast_needs_captions(mix: Path, written: Callable, tmp_path: Path) -> None:
    pd.read_csv(mix).drop(columns="caption").to_csv(tmp_path / "bare.csv", index=False)
    model = {"backbone": TINY_CLIP, "image": {"size_px": 64}, "head": None}
    stages = [{"epochs": 1, "lr": {"backbone": 1e-3}}]
    with pytest.raises(UserError, match="no caption column"):
        train.main(
            written(
                manifest=tmp_path / "bare.csv",
                model=model,
                task={"name": "contrastive"},
                stages=stages,
            )
        )


def test_a_stage_of_one_class_and_a_long_warm_up_are_warned_of(
    mix: Path, written: Callable, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = pd.read_csv(mix)
    first = table[(table["split"] == "train") & (table["domain"] == "dishes")]["label"].iloc[0]
    kept = (table["split"] != "train") | (table["label"] == first) | (table["domain"] != "dishes")
    table[kept].to_csv(tmp_path / "m.csv", index=False)
    stage = {"epochs": 1, "warmup": "1000 steps", "lr": FROZEN, "domains": ["dishes"]}
    train.main(written(manifest=tmp_path / "m.csv", stages=[stage]))
    printed = capsys.readouterr().out
    assert "warning: stage train trains on one class" in printed
    assert "the warm-up of 1000 steps never reaches the peak rates" in printed


# ---------------------------------------------------------------- trackers


def test_trackers_get_what_metrics_jsonl_has(written: Callable, monkeypatch) -> None:
    logged = []
    monkeypatch.setattr(Accelerator, "log", lambda _, values, step: logged.append((step, values)))
    run = train.main(written("trackers=[]", stages=[SHORT]))
    lines = read_metrics(run / "metrics.jsonl")
    assert [step for step, _ in logged] == [line["step"] for line in lines]
    for (_, values), line in zip(logged, lines, strict=True):
        assert values.items() <= line.items()
    assert not list(run.rglob("events.out.tfevents*")), "TensorBoard was not named"


def test_a_tracker_that_is_not_installed_is_named(written: Callable, monkeypatch) -> None:
    found = "guie.config.training.find_spec"
    monkeypatch.setattr(found, lambda name: None if name == "comet_ml" else name)
    with pytest.raises(UserError, match="trackers: comet_ml is not .*pip install comet-ml"):
        train.main(written("trackers=[tensorboard, comet_ml]"))
