"""A run that starts from another's weights: what is taken, what begins anew, what is refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_configs import RATES

import train
from composing import composition
from guie.base.errors import UserError
from guie.config import RunConfig, load_config
from guie.models import open_model
from guie.models.embedder import Embedder, build_embedder
from guie.training import loop
from guie.training.starting import load_start
from tiny_runs import TINY_CLIP, assert_same_bits, cut_and_resumed, tiny_config, tiny_run


def started(start: Path, folder: Path, **model: Any) -> tuple[Embedder, str]:
    """Return a new embedder that starts from another model, and the message."""
    config = tiny_config(folder, **model).model_copy(update={"start_from": str(start)})
    embedder = build_embedder(config.model)
    return embedder, load_start(embedder, config)


def assert_has_weights_of(embedder: Embedder, model: Path, part: str = "") -> None:
    theirs = open_model(model).embedder.state_dict()
    ours = {name: value for name, value in embedder.state_dict().items() if name.startswith(part)}
    assert ours.keys() == {name for name in theirs if name.startswith(part)}
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


@pytest.mark.parametrize("kind", ["run", "soup", "reduced"])
def test_all_weights_are_taken_and_no_random_number_drawn(kind: str, tmp_path: Path) -> None:
    start, head = tiny_run(tmp_path / "run", start=3), {"dim": 16}
    if kind == "soup":
        other = tiny_run(tmp_path / "other", start=3, moved=0.1)
        start = composition(tmp_path / "soup", [start, other], join="soup")
    elif kind == "reduced":
        head["reduced_dim"] = 8
        start = composition(tmp_path / "small", [start], reduce={"name": "random", "dim": 8})
    torch.manual_seed(0)
    build_embedder(tiny_config(tmp_path / "new", head=head).model)
    expected = torch.rand(1)
    torch.manual_seed(0)
    embedder, message = started(start, tmp_path / "new", head=head)
    assert torch.rand(1) == expected
    assert_has_weights_of(embedder, start)
    assert message == f"starts from {start}"


def test_a_head_of_other_shapes_and_new_adapters_begin_anew(tmp_path: Path) -> None:
    other = tiny_run(tmp_path / "other", start=3)
    model = {"head": {"dim": 8}, "adapters": [{"kind": "stochastic", "dim": 4}]}
    embedder, message = started(other, tmp_path / "new", **model)
    assert message == f"starts from {other}, adapters from scratch, head from scratch"
    assert_has_weights_of(embedder, other, "backbone.tower.")
    assert embedder.dim == 8


def test_at_another_image_size_positions_are_resampled(tmp_path: Path) -> None:
    other = tiny_run(tmp_path / "other", start=3)
    embedder, message = started(other, tmp_path / "new", image={"size_px": 48})
    assert message == f"starts from {other}" and embedder.backbone.size_px == 48
    assert embedder(torch.zeros(1, 3, 48, 48)).shape == (1, 16)


VIT = {"backbone": {"library": "timm", "name": "test_vit"}, "image": {"size_px": 64}}


@pytest.mark.parametrize(
    ("start", "model", "message"),
    [
        ("nowhere", {}, "start_from: .*nowhere: no such run folder"),
        ("other", VIT, "start_from: .*other has another backbone than model.backbone, test_vit"),
        (
            "other",
            {"image": {"size_px": 32, "mean": [0.5] * 3}},
            "mean: .*, but start_from, .*, has .0.48",
        ),
        ("both", {}, "start_from: .*both: combines several models or views"),
        # A new reduction would keep the first numbers of a head that was not trained for that
        ("other", {"head": {"dim": 16, "reduced_dim": 8}}, "has no reduction from 16 to 8 numbers"),
        ("small", {"head": {"dim": 16, "reduced_dim": 8}}, "has no reduction from 16 to 8 numbers"),
    ],
)
def test_models_that_do_not_fit_are_refused(
    start: str, model: dict[str, Any], message: str, tmp_path: Path
) -> None:
    other = tiny_run(tmp_path / "other")
    if start == "both":
        composition(tmp_path / "both", [other, other], join="average")
    elif start == "small":
        composition(tmp_path / "small", [other], reduce={"name": "random", "dim": 4})
    with pytest.raises(UserError, match=message):
        started(tmp_path / start, tmp_path / "new", **model)


@pytest.mark.slow
def test_a_run_starts_from_another_and_resumes_without_it(
    written: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    other = tiny_run(tmp_path / "other", start=3)
    model = {"backbone": TINY_CLIP, "image": {"size_px": 32}, "head": {"dim": 16}}
    stages = [{"epochs": 1, "lr": RATES, "validate_every": "3 steps"}]
    words = written(f"start_from={other}", model=model, stages=stages)
    run = train.main(words)
    assert load_config(run / "config.yaml", RunConfig).start_from == str(other)
    assert json.loads((run / "record.json").read_text())["start"]["model"] == str(other)
    assert f"starts from {other}\n" in capsys.readouterr().out

    def load_and_delete(*given: Any) -> str:
        message = load_start(*given)
        shutil.rmtree(other)  # a resumed run must not look for it
        return message

    monkeypatch.setattr(loop, "load_start", load_and_delete)
    again = [*words, "--set", f"out={tmp_path}/again"]
    assert_same_bits(cut_and_resumed(monkeypatch, again, steps=4), run)
