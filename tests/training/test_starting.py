"""A run that begins with another's weights: what is taken, what begins anew, what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_configs import write_config

import train
from composing import composition
from guie.base.errors import UserError
from guie.config import RunConfig, load_config
from guie.models import open_model
from guie.models.embedder import Embedder, build_embedder
from guie.training import loop
from guie.training.starting import load_start
from tiny_runs import TINY_CLIP, assert_same_bits, cut_and_resumed, tiny_config, tiny_run

Weights = dict[str, torch.Tensor]


def begun(start: Path | str, folder: Path, **model: Any) -> tuple[Embedder, str]:
    """A new embedder that starts from another model, and what is said of it."""
    config = tiny_config(folder, **model).model_copy(update={"start_from": str(start)})
    embedder = build_embedder(config.model)
    return embedder, load_start(embedder, config)


def parts(weights: Weights, prefix: str) -> Weights:
    return {name: value for name, value in weights.items() if name.startswith(prefix)}


def same(ours: Weights, theirs: Weights) -> bool:
    return ours.keys() == theirs.keys() and all(torch.equal(ours[n], theirs[n]) for n in ours)


def test_all_of_it_is_taken_and_no_random_number_drawn(tmp_path: Path) -> None:
    other = tiny_run(tmp_path / "other", start=3)
    torch.manual_seed(0)
    build_embedder(tiny_config(tmp_path / "new").model)
    expected = torch.rand(1)
    torch.manual_seed(0)
    embedder, said = begun(other, tmp_path / "new")
    assert torch.rand(1) == expected
    assert same(embedder.state_dict(), open_model(other).embedder.state_dict())
    assert said == f"starts from {other}"


def test_a_soup_is_one_model_to_start_from(tmp_path: Path) -> None:
    runs = [tiny_run(tmp_path / name, moved=0.1) for name in ("a", "b")]
    composition(tmp_path / "soup", runs, join="soup")
    embedder, _ = begun(tmp_path / "soup", tmp_path / "new")
    assert same(embedder.state_dict(), open_model(tmp_path / "soup").embedder.state_dict())


def test_a_reduction_is_taken_too(tmp_path: Path) -> None:
    run = tiny_run(tmp_path / "a")
    composition(tmp_path / "small", [run], reduce={"name": "random", "dim": 8})
    head = {"dim": 16, "reduced_dim": 8}
    embedder, said = begun(tmp_path / "small", tmp_path / "new", head=head)
    assert same(embedder.state_dict(), open_model(tmp_path / "small").embedder.state_dict())
    assert said == f"starts from {tmp_path / 'small'}"


def test_a_start_without_the_reduction_is_refused(tmp_path: Path) -> None:
    """A new one would keep the first numbers of a head that was not trained for that."""
    run = tiny_run(tmp_path / "a")
    composition(tmp_path / "small", [run], reduce={"name": "random", "dim": 4})
    for start in (run, tmp_path / "small"):
        with pytest.raises(UserError, match="start_from: .* has no reduction from 16 to 8 numbers"):
            begun(start, tmp_path / "new", head={"dim": 16, "reduced_dim": 8})


def test_a_head_of_other_shapes_and_new_adapters_begin_anew(tmp_path: Path) -> None:
    other = tiny_run(tmp_path / "other", start=3)
    model = {"head": {"dim": 8}, "adapters": [{"kind": "stochastic", "dim": 4}]}
    embedder, said = begun(other, tmp_path / "new", **model)
    assert said == f"starts from {other}, adapters from scratch, head from scratch"
    ours, theirs = embedder.state_dict(), open_model(other).embedder.state_dict()
    assert same(parts(ours, "backbone.tower."), parts(theirs, "backbone.tower."))
    assert embedder.dim == 8


def test_at_another_image_size_positions_are_resampled(tmp_path: Path) -> None:
    other = tiny_run(tmp_path / "other", start=3)
    embedder, said = begun(other, tmp_path / "new", image={"size_px": 48})
    assert said == f"starts from {other}" and embedder.backbone.size_px == 48
    assert embedder(torch.zeros(1, 3, 48, 48)).shape == (1, 16)


@pytest.mark.parametrize(
    ("start", "model", "message"),
    [
        ("nowhere", {}, "start_from: .*nowhere: no such run folder"),
        (
            "other",
            {"backbone": {"library": "timm", "name": "test_vit"}, "image": {"size_px": 64}},
            "start_from: .*other has another backbone than model.backbone, test_vit",
        ),
        (
            "other",
            {"image": {"size_px": 32, "mean": [0.5] * 3}},
            r"model.image.mean: \[0.5, 0.5, 0.5\], but start_from, .*other, has \[0.48",
        ),
        ("both", {}, "start_from: .*both: combines several models or views"),
    ],
)
def test_what_does_not_fit_is_refused(
    start: str, model: dict[str, Any], message: str, tmp_path: Path
) -> None:
    other = tiny_run(tmp_path / "other")
    composition(tmp_path / "both", [other, other], join="average")
    with pytest.raises(UserError, match=message):
        begun(tmp_path / start, tmp_path / "new", **model)


@pytest.mark.slow
def test_a_run_starts_from_another_and_resumes_without_it(
    mix: Path,
    toy_manifest: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    other = tiny_run(tmp_path / "other", start=3)
    lr = {"backbone": 1e-4, "head": 1e-3, "classes": 1e-2}
    stages = [{"epochs": 1, "lr": lr, "validate_every": "3 steps"}]
    model = {"backbone": TINY_CLIP, "image": {"size_px": 32}, "head": {"dim": 16}}
    path = write_config(tmp_path / "c.yaml", mix, toy_manifest.parent, model=model, stages=stages)
    words = ["--config", str(path), "--set", f"start_from={other}"]
    run = train.main([*words, "--set", "name=whole"])
    assert load_config(run / "config.yaml", RunConfig).start_from == str(other)
    assert json.loads((run / "record.json").read_text())["start"]["model"] == str(other)
    assert f"starts from {other}\n" in capsys.readouterr().out
    monkeypatch.setattr(loop, "load_start", once_then_gone(loop.load_start, other))
    resumed = cut_and_resumed(monkeypatch, [*words, "--set", f"out={tmp_path}/again"], steps=4)
    assert_same_bits(resumed, run)


def once_then_gone(start: Any, other: Path) -> Any:
    """Start from a model that is deleted behind it: a resume is not to look for it."""

    def started(*given: Any) -> str:
        said = start(*given)
        shutil.rmtree(other)
        return said

    return started
