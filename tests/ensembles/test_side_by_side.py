"""Several models side by side or averaged: their embeddings as one; scored, reduced, exported."""

from __future__ import annotations

import io
import json
import math
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

import export
import train
from composing import composition, record
from guie.base.errors import UserError
from guie.config.model import LayersConfig
from guie.models import open_model, with_layers
from guie.models.opening import at_size, composed
from guie.training.run_folder import read_metrics
from tiny_runs import mix_with_val, tiny_run

TINY_VIT = {
    "library": "timm",
    "name": "vit_tiny_patch16_224",
    "kwargs": {"embed_dim": 48, "depth": 1, "num_heads": 3},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two that see an image alike, one at another size and fit, with a head that takes its shape.

    No test changes them.
    """
    folder = tmp_path_factory.mktemp("runs")
    image = {"size_px": 48, "fit": "pad", "mean": [0.5, 0.4, 0.3]}
    other = {"backbone": TINY_VIT, "image": image}
    head = {"dim": 24, "norm": "bn", "image_shape": True}
    return [
        tiny_run(folder / "a"),
        tiny_run(folder / "b", start=1),
        tiny_run(folder / "c", size_px=48, head=head, **other),
    ]


@pytest.fixture(scope="module")
def mix(toy_manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mix_with_val(toy_manifest, tmp_path_factory.mktemp("mix") / "mix.csv")


def main(runs: list[Path], out: Path, **keys) -> Path:
    return composition(out, runs, **{"join": "side_by_side", **keys})


def pictures() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randint(0, 256, (1, 3, *size), dtype=torch.uint8) for size in [(50, 31), (9, 70)]]


@torch.no_grad()
def test_the_members_embeddings_stand_side_by_side_and_are_not_needed_any_more(
    runs: list[Path], tmp_path: Path
) -> None:
    copies = [shutil.copytree(run, tmp_path / run.name) for run in runs]
    out = main(copies, tmp_path / "all")
    for folder in copies:
        shutil.rmtree(folder)
    members, both = [open_model(run) for run in runs], open_model(out)
    assert both.embedder.dim == 16 + 16 + 24
    assert both.preprocess.sides_px == [32, 48]  # the first two share one look
    for picture in pictures():
        expected = torch.cat([member.scored(picture) for member in members], dim=1)
        torch.testing.assert_close(both.scored(picture), functional.normalize(expected, dim=1))
    live = composed(members).embedder.state_dict()
    found = both.embedder.state_dict()
    assert found.keys() == live.keys()
    assert all(torch.equal(found[name], live[name]) for name in live)


@torch.no_grad()
def test_the_cosine_is_the_weighted_mean_of_the_members(runs: list[Path], tmp_path: Path) -> None:
    shares = [1.0, 2.0, 5.0]
    members = [{"model": str(run), "weight": w} for run, w in zip(runs, shares, strict=True)]
    both = open_model(composition(tmp_path / "all", members, join="side_by_side"))
    cosines = [
        functional.cosine_similarity(*map(model.scored, pictures()))
        for model in (both, *map(open_model, runs))
    ]
    expected = sum(w * cosine for w, cosine in zip(shares, cosines[1:], strict=True)) / sum(shares)
    torch.testing.assert_close(cosines[0], expected)


@torch.no_grad()
def test_a_members_own_layer_takes_the_place_of_its_embedding(
    runs: list[Path], tmp_path: Path
) -> None:
    layers = {"of": ["transformer.resblocks.0"], "pool": "token"}
    alone, first = {"model": str(runs[0]), "layers": layers}, {"name": "first", "dim": 8}
    one = open_model(composition(tmp_path / "one", [alone]))
    cut = open_model(composition(tmp_path / "cut", [alone], reduce=first))
    both = open_model(composition(tmp_path / "two", [alone, str(runs[1])], join="side_by_side"))
    model, other = with_layers(open_model(runs[0]), LayersConfig(**layers)), open_model(runs[1])
    for picture in pictures():
        beneath = functional.normalize(model.scored(picture), dim=1)
        torch.testing.assert_close(functional.normalize(one.scored(picture), dim=1), beneath)
        expected = functional.normalize(beneath[:, :8], dim=1)
        torch.testing.assert_close(functional.normalize(cut.scored(picture), dim=1), expected)
        pair = torch.cat([beneath, other.scored(picture)], dim=1)
        torch.testing.assert_close(both.scored(picture), functional.normalize(pair, dim=1))
    assert not any("resblocks.1" in name for name in one.embedder.state_dict())


@pytest.mark.slow
@torch.no_grad()
def test_an_average_is_the_mean_of_embeddings_and_strangers_are_told(
    runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = composition(tmp_path / "mean", runs[:2], join="average")
    message = capsys.readouterr().err
    assert (
        f"warning: {runs[1]}: its head was trained independently of that of {runs[0]} (cosine"
        in message
    )
    for picture in pictures():
        parts = [open_model(run).scored(picture) for run in runs[:2]]
        expected = functional.normalize(parts[0] + parts[1], dim=1)
        torch.testing.assert_close(open_model(out).scored(picture), expected)
    kin = [tiny_run(tmp_path / name, start=1, moved=1e-3) for name in ("x", "y")]
    composition(tmp_path / "kin", kin, join="average")
    assert "warning" not in capsys.readouterr().err


@pytest.mark.slow
def test_it_is_scored_reduced_and_exported(
    runs: list[Path],
    mix: Path,
    toy_manifest: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "guie.export.submission.odd_sizes", lambda size_px: [(1, 99), (size_px, size_px)]
    )
    data = {"manifest": str(mix), "root": str(toy_manifest.parent)}
    pca = {"name": "pca", "dim": 8, "images": data}
    small = main(runs, tmp_path / "small", val=data, reduce=pca)
    printed = capsys.readouterr().out
    assert "8 dimensions, 2 views of an image, val R@1" in printed
    assert f"{runs[2]}: 24 dimensions, val R@1" in printed and "of the variance" in printed
    (line,) = read_metrics(small / "metrics.jsonl")
    assert 0 < line["val_r_at_1"] <= 1
    message = record(small)["members"]
    assert [member["model"] for member in message] == list(map(str, runs))
    assert all(0 < member["val"]["val_r_at_1"] <= 1 for member in message)

    submission = tmp_path / "submission"
    export.main(["--run", str(small), "--out", str(submission)])
    with zipfile.ZipFile(submission / "submission.zip") as archive:
        saved = torch.jit.load(io.BytesIO(archive.read("saved_model.pt")))
    model = open_model(small)
    with torch.no_grad():
        for picture in pictures():
            torch.testing.assert_close(saved(picture), model.scored(picture), atol=1e-5, rtol=0)
    card = (submission / "card.md").read_text()
    for words in (
        "| Models | 3, concatenated, reduced to 8 dimensions |",
        "| Dimension | 8 |",
        "pad to 48 px",
        "### Model 3",
        "squash to 32 px",
    ):
        assert words in card
    assert f"### Model 1: `{runs[0].name}`" in card and "2 epochs" not in card


@pytest.mark.slow
@torch.no_grad()
def test_compositions_are_members_of_others(runs: list[Path], tmp_path: Path) -> None:
    """From a folder and as it stands in the config; two soups side by side are the 4th place's."""
    inner = main(runs[:2], tmp_path / "inner", views=["flip"])
    nested = {"members": [str(runs[0]), str(runs[1])], "join": "soup"}
    out = open_model(main([inner, nested, runs[2]], tmp_path / "outer"))
    soup = open_model(composition(tmp_path / "soup", runs[:2], join="soup"))
    for picture in pictures():
        parts = [m.scored(picture) for m in (open_model(inner), soup, open_model(runs[2]))]
        expected = functional.normalize(torch.cat(parts, dim=1), dim=1)
        torch.testing.assert_close(out.scored(picture), expected)
    message = record(tmp_path / "outer")["members"]
    assert [member["dimension"] for member in message] == [32, 16, 24]
    assert message[1]["model"] == "soup of a, b"


@pytest.mark.slow
@torch.no_grad()
def test_a_model_with_itself_ranks_as_alone_and_is_saved_once(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("guie.export.submission.odd_sizes", lambda size_px: [(1, 99)])
    sizes = [{"model": str(runs[0]), "size_px": size_px} for size_px in (32, 64)]
    twice = main(sizes, tmp_path / "twice")
    one, both = open_model(runs[0]), open_model(main([runs[0]] * 2, tmp_path / "both"))
    embs = [[model.scored(p).numpy() for p in pictures()] for model in (one, both)]
    np.testing.assert_allclose(embs[0][0] @ embs[0][1].T, embs[1][0] @ embs[1][1].T, atol=1e-6)

    for name, out in (("a", runs[0]), ("twice", twice)):
        export.main(["--run", str(out), "--out", str(tmp_path / "exported" / name)])
    for folder, file in ((tmp_path / "exported", "submission.zip"), (None, "model.safetensors")):
        single, double = (
            ((folder / out.name if folder else out) / file).stat().st_size
            for out in (runs[0], twice)
        )
        assert double < 1.2 * single  # position embeddings alone are written twice
    apart = functional.normalize(
        torch.cat([at_size(one, s).scored(pictures()[0]) for s in (32, 64)], 1)
    )
    torch.testing.assert_close(open_model(twice).scored(pictures()[0]), apart)


@pytest.mark.slow
def test_what_cannot_be_joined_is_refused(runs: list[Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="side_by_side needs at least two"):
        main(runs[:1], tmp_path / "one")
    out, layer = main(runs[:2], tmp_path / "two"), {"of": ["x"]}

    def own(model: Path, **keys: object) -> dict[str, object]:
        return {"model": str(model), **keys}

    for members, keys, message in (
        ([runs[0], tmp_path / "none"], {}, "no such run folder"),
        ([runs[0], own(runs[1], weight=math.inf)], {}, "weight: Input should be a finite number"),
        ([runs[0], own(runs[1], weight=1e300)], {}, "weight: Input should be less than"),
        ([out, runs[0]], {"join": "soup"}, "combines several models or views; average the runs"),
        (
            runs,
            {"join": "average"},
            "join: average: the members have 16, 16, 24 dimensions; averaging",
        ),
        (runs, {"join": None}, "join: missing, and needed for 3 members"),
        (runs, {"joins": "soup"}, "joins: unknown key; did you mean join"),
        ([own(out, size_px=40), str(runs[0])], {}, "state the size of each of its members"),
        ([own(runs[0], size_px=41), str(runs[0])], {}, "41"),
        ([own(out, layers=layer)], {"join": None}, "take layers of each of them"),
        ([own(runs[0], layers=layer)], {"join": None}, "has no layer 'x'"),
        (
            [own(runs[0], layers=layer), str(runs[1])],
            {"join": "soup"},
            "layers do not apply to soup",
        ),
        (runs, {"reduce": {"name": "first", "dim": 56}}, "has 56 dimensions; use 1 to 55"),
    ):
        with pytest.raises(UserError, match=message) as refused:
            main(members, tmp_path / "x", **keys)
        assert "\n" not in str(refused.value)
        assert not (tmp_path / "x").exists()
    config = tmp_path / "two.yaml"
    config.write_text(f"base: {runs[0] / 'config.yaml'}\nname: two\nout: {tmp_path}\n")
    with pytest.raises(UserError, match="holds an ensemble"):
        train.main(["--config", str(config)])


def test_more_than_64_dimensions_are_embedded_but_not_exported(
    runs: list[Path], tmp_path: Path
) -> None:
    out = main([runs[2]] * 3, tmp_path / "wide")
    assert open_model(out).embedder.dim == 72
    with pytest.raises(UserError, match=r"72 dimensions, the challenge allows 64; .*compose\.py"):
        export.main(["--run", str(out), "--out", str(tmp_path / "submission")])
    assert not json.loads((out / "summary.json").read_text())["best"]
