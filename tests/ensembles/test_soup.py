"""A soup is the mean of its members' weights, to the bit; what cannot be averaged is refused."""

import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from composing import composition, record
from guie.base.errors import UserError
from guie.config.ensemble import ModelMember
from guie.data.dataset import Classes, EvalDataset
from guie.data.manifest import load_manifest
from guie.ensembles import joining
from guie.ensembles.soup import (
    examine,
    ingredients_of,
    mean_of_weights,
    similarity_by_part,
)
from guie.models import LoadedModel, open_model
from guie.models.weights import save_model
from guie.training.checkpoint import Checkpoints, TrainState
from guie.training.optim import MovingAverage
from guie.training.run_folder import read_metrics, read_summary
from guie.training.tasks import build_task
from tiny_runs import tiny_config, tiny_run, weights

BN = {"norm": "bn", "dim": 16}


def run_twice(run: Path) -> dict[str, Any]:
    """The same weights with their other name."""
    shutil.copy(run / "model.safetensors", run / "last.safetensors")
    return {"model": str(run), "weights": "last"}


def main(out: Path, *members: Path | dict, **keys: Any) -> Path:
    return composition(out, list(members), **{"join": "soup", **keys})


def with_bias(folder: Path, bias: float | torch.Tensor) -> Path:
    """A run whose head has a bias of these numbers first, else as it started."""
    run = tiny_run(folder)
    model = open_model(run)
    values = torch.as_tensor(bias).expand(16) if isinstance(bias, float) else bias
    model.embedder.head.linear.bias.data[: len(values)] = values
    save_model(model.embedder, run / "model.safetensors")
    return run


def test_the_mean_is_that_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Of two runs, one of them with both its files. Dropout may differ; counters count no images."""
    heads = [BN, {**BN, "dropout": 0.5}]
    runs = [tiny_run(tmp_path / n, moved=1e-3, head=h) for n, h in zip("ab", heads, strict=True)]
    files = [runs[0] / "model.safetensors", runs[0] / "last.safetensors"]
    files.append(runs[1] / "model.safetensors")
    for file, count in zip(files, (3, 7, 5), strict=True):
        model = open_model(file.parent, weights=file.name)
        model.embedder.head.norm.num_batches_tracked.fill_(count)
        model.embedder.head.norm.running_mean.fill_(count)
        model.embedder.head.linear.bias.data.add_(count)
        save_model(model.embedder, file)
    out = main(tmp_path / "soup", runs[0], {"model": str(runs[0]), "weights": "last"}, runs[1])
    members, found = [weights(file.parent, file.name) for file in files], weights(out)
    assert found.keys() == members[0].keys()
    assert found.pop("head.norm.num_batches_tracked") == 7
    for name, value in found.items():  # in float64, where small numbers do not vanish one by one
        values = [member[name].double() for member in members]
        expected = (sum(values[1:], values[0]) / 3).to(value.dtype)
        assert torch.equal(value, expected), name
    assert not torch.equal(found["head.linear.weight"], members[0]["head.linear.weight"])
    assert (found["head.norm.running_mean"] == 5).all()
    made = record(out)["members"]
    assert [member["member"] for member in made] == list(map(str, files))
    assert "independently" not in capsys.readouterr().err and made[2]["alike"]["head"] > 0.99
    assert open_model(out).source == str(out)


def test_one_member_alone_is_that_run_to_the_bit(tmp_path: Path) -> None:
    run = with_bias(tmp_path / "a", torch.tensor([-0.0, 1e-42, 3e38]))
    for out in (
        main(tmp_path / "same", run, join=None),
        main(tmp_path / "soup", run, run_twice(run)),
    ):
        assert (out / "model.safetensors").read_bytes() == (run / "model.safetensors").read_bytes()


def test_another_architecture_or_broken_weights_are_refused(
    kin: list[Path], tmp_path: Path
) -> None:
    for number, (other, message) in enumerate(
        (
            ({"head": {"dim": 8}}, "head.dim is 8, but"),
            ({"head": None}, "head.norm is None"),
            ({"size_px": 48}, "image.size_px is 48"),
            ({"image": {"size_px": 32, "mean": [0.1, 0.2, 0.3]}}, "image.mean is"),
            ({"backbone": {"library": "timm", "name": "test_vit"}}, "backbone.library is timm"),
        )
    ):
        run = tiny_run(tmp_path / f"b{number}", **other)
        with pytest.raises(UserError, match=message) as refused:
            main(tmp_path / "soup", kin[0], run)
        assert "\n" not in str(refused.value) and str(run) in str(refused.value)
    run = with_bias(tmp_path / "a", float("nan"))
    with pytest.raises(UserError, match=r"head\.linear\.bias is not finite"):
        main(tmp_path / "soup", run, kin[1])
    assert not (tmp_path / "soup").exists()


def test_similarity_is_the_cosine_of_each_part() -> None:
    a = {"head.x": torch.tensor([[3.0, 0.0]]), "head.y": torch.tensor([[4.0]])}
    b = {"head.x": torch.tensor([[0.0, 5.0]]), "head.y": torch.tensor([[2.0]])}
    vectors = {"head.norm": torch.ones(9)}
    expected = 8 / (25 * 29) ** 0.5
    assert similarity_by_part(a | vectors, b | vectors) == {"head": pytest.approx(expected)}


def test_greedy_leaves_out_what_lowers_the_score(tmp_path: Path) -> None:
    def score(model: LoadedModel) -> dict[str, float]:
        """Best where the bias is 0.4."""
        return {"val_r_at_1": -abs(model.embedder.head.linear.bias[0].item() - 0.4)}

    biases = {"a": 5.0, "b": 1.0, "c": 0.0}
    members = [ModelMember(model=str(with_bias(tmp_path / n, b))) for n, b in biases.items()]
    ingredients = examine(ingredients_of(members), score)
    model, scores, done = mean_of_weights(ingredients, score, greedy=True)
    # 0 first (-0.4), with 1 it is 0.5 (-0.1), with 5 it would be 2
    kept = {Path(one.run).name: one.kept for one in done}
    assert list(kept.items()) == [("c", True), ("b", True), ("a", False)]
    assert (model.embedder.head.linear.bias == 0.5).all()
    assert scores["val_r_at_1"] == pytest.approx(-0.1)
    assert done[2].soup["val_r_at_1"] == pytest.approx(-1.6)
    model, scores, _ = mean_of_weights(ingredients, score, greedy=False)
    assert (model.embedder.head.linear.bias == 2).all()


def test_a_greedy_soup_is_scored_on_val(
    kin: list[Path], data: dict[str, str], tmp_path: Path, capsys, monkeypatch
) -> None:
    """With a warning of a head that was trained independently."""
    runs = [kin[0], tiny_run(tmp_path / "b", start=2)]
    loaded, opened = [], EvalDataset.__getitem__

    def counted(self: EvalDataset, number: int) -> Any:
        loaded.append(number)
        return opened(self, number)

    monkeypatch.setattr(EvalDataset, "__getitem__", counted)
    out = main(tmp_path / "soup", *runs, join={"name": "soup", "greedy": True}, val=data)
    images = len(load_manifest(data["manifest"], data["root"]).split("val"))
    assert len(loaded) == images + 1  # once for all trials, but for the one that shows how large
    made = record(out)["members"]
    best, other = made
    assert best["joined"] and best["alone"]["val_r_at_1"] >= other["alone"]["val_r_at_1"]
    assert other["joined"] == (other["soup"]["val_r_at_1"] >= best["alone"]["val_r_at_1"])
    assert min(abs(member["alike"]["head"]) for member in made) < 0.2
    (line,) = read_metrics(out / "metrics.jsonl")
    last = other["soup"] if other["joined"] else best["alone"]
    assert {key: line[key] for key in last} == last
    assert read_summary(out)["best"]["val_r_at_1"] == line["val_r_at_1"]
    printed = capsys.readouterr()
    assert f"R@1 {line['val_r_at_1']:.4f}" in printed.out
    assert "b/model.safetensors: its head was trained independently" in printed.err


@pytest.mark.parametrize("ema", [False, True])
def test_checkpoints_are_averaged_as_they_are_scored(tmp_path: Path, ema: bool) -> None:
    run = tiny_run(tmp_path / "a", head=BN)
    config = tiny_config(run, head=BN)
    task = build_task(config, Classes(["a", "b"], [3, 3], ["x", "x"]))
    task.embedder.backbone.set_image_size(40)
    checkpoints, expected = Checkpoints(run, keep=2), []
    average = MovingAverage(task, 0.9) if ema else None
    for step in (5, 9):
        with torch.no_grad():
            for parameter in task.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
        if average:
            average.update_parameters(task)
        scored = average.module if average else task
        expected.append(scored.embedder.state_dict()["head.linear.weight"].double())
        state = TrainState(stage=1, global_step=step)
        parts = {"task": task.state_dict(), "ema": average.state_dict() if average else None}
        checkpoints.save({**parts, "frozen": None}, state)
        checkpoints.wait()
    member = {"model": str(run), "checkpoints": True}
    model = open_model(main(tmp_path / "soup", member))
    mean = ((expected[0] + expected[1]) / 2).float()
    assert torch.equal(model.embedder.head.linear.weight, mean)
    assert model.preprocess.size_px == 40  # of the stage
    damaged = checkpoints.paths()[0]
    damaged.write_bytes(damaged.read_bytes()[:-9])
    with pytest.raises(UserError, match="damaged"):
        main(tmp_path / "again", member)


def test_heads_are_averaged_over_one_tower(tmp_path: Path) -> None:
    """Heads of different dropout rates, on one frozen tower."""
    heads = [{"dim": 16, "dropout": rate, "norm": "none"} for rate in (0.0, 0.3)]
    runs = [tiny_run(tmp_path / f"r{n}", head=head) for n, head in enumerate(heads)]
    model = open_model(runs[1])
    model.embedder.head.linear.weight.data.add_(0.01)
    save_model(model.embedder, runs[1] / "model.safetensors")
    weight = "head.linear.weight"
    out = main(tmp_path / "heads", *runs, join="heads")
    expected = (weights(runs[0])[weight] + weights(runs[1])[weight]) / 2
    torch.testing.assert_close(weights(out)[weight], expected)
    moved = tiny_run(tmp_path / "m", moved=0.01, head=heads[0])
    bare = tiny_run(tmp_path / "x", head=None)
    differs = r"backbone\.\S+ differs .* join: heads needs identical backbones"
    for members, message in (
        ((runs[0], moved), differs),
        ((bare, run_twice(bare)), "has no head to average"),
    ):
        with pytest.raises(UserError, match=message):
            main(tmp_path / "apart", *members, join="heads")


def test_a_composition_replaces_no_file_of_another_program(
    kin: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "model.safetensors").write_bytes(b"downloaded")
    with pytest.raises(UserError, match="hub: holds model.safetensors, which would be replaced"):
        main(tmp_path / "hub", *kin)
    assert (tmp_path / "hub" / "model.safetensors").read_bytes() == b"downloaded"
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(joining, "write_record", Mock(side_effect=KeyboardInterrupt))
        main(tmp_path / "soup", *kin)
    assert (tmp_path / "soup" / "model.safetensors").exists()
    main(tmp_path / "soup", *kin)  # a killed write is known as ours
    with pytest.raises(UserError, match="already holds a model"):
        main(tmp_path / "soup", *kin)
