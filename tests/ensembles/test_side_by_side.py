"""Several models side by side or averaged: their embeddings as one; scored, reduced, exported."""

import shutil
from pathlib import Path

import pytest
import torch
from torch.nn import functional

import export
from composing import composition, record
from guie.config.model import LayersConfig
from guie.models import open_model, with_layers
from guie.models.opening import at_size
from guie.training.run_folder import read_metrics
from tiny_runs import tiny_run


@pytest.fixture(scope="module")
def runs(kin: list[Path], wide: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two with the same preprocessing, one of another size and fit, with a head that takes its shape."""
    return [kin[0], tiny_run(tmp_path_factory.mktemp("runs") / "b", start=1), wide]


def main(runs: list[Path], out: Path, **keys) -> Path:
    return composition(out, runs, **{"join": "side_by_side", **keys})


def pictures() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randint(0, 256, (1, 3, *size), dtype=torch.uint8) for size in [(50, 31), (9, 70)]]


def unit(emb_BD: torch.Tensor) -> torch.Tensor:
    return functional.normalize(emb_BD, dim=1)


@torch.no_grad()
def test_members_are_concatenated_and_not_needed_any_more(runs: list[Path], tmp_path: Path) -> None:
    copies = [shutil.copytree(run, tmp_path / run.name) for run in runs]
    out = main(copies, tmp_path / "all")
    for folder in copies:
        shutil.rmtree(folder)
    members, both = [open_model(run) for run in runs], open_model(out)
    assert both.embedder.dim == 16 + 16 + 24
    assert both.preprocess.sides_px == [32, 48]  # the first two share a view
    for picture in pictures():
        expected = torch.cat([member.scored(picture) for member in members], dim=1)
        torch.testing.assert_close(both.scored(picture), unit(expected))


@torch.no_grad()
def test_the_cosine_is_the_weighted_mean_of_the_members(runs: list[Path], tmp_path: Path) -> None:
    shares = [1.0, 2.0, 5.0]
    members = [{"model": str(run), "weight": w} for run, w in zip(runs, shares, strict=True)]
    both = open_model(main(members, tmp_path / "all"))
    cosines = [
        functional.cosine_similarity(*map(model.scored, pictures()))
        for model in (both, *map(open_model, runs))
    ]
    expected = sum(w * cosine for w, cosine in zip(shares, cosines[1:], strict=True)) / sum(shares)
    torch.testing.assert_close(cosines[0], expected)


@torch.no_grad()
def test_a_members_layer_takes_the_place_of_its_embedding(runs: list[Path], tmp_path: Path) -> None:
    layers = {"of": ["transformer.resblocks.0"], "pool": "token"}
    alone = {"model": str(runs[0]), "layers": layers}
    one, cut = (
        open_model(composition(tmp_path / name, [alone], **keys))
        for name, keys in (("one", {}), ("cut", {"reduce": {"name": "first", "dim": 8}}))
    )
    both = open_model(main([alone, runs[1]], tmp_path / "two"))
    model, other = with_layers(open_model(runs[0]), LayersConfig(**layers)), open_model(runs[1])
    for picture in pictures():
        layer = unit(model.scored(picture))
        torch.testing.assert_close(unit(one.scored(picture)), layer)
        torch.testing.assert_close(unit(cut.scored(picture)), unit(layer[:, :8]))
        pair = torch.cat([layer, other.scored(picture)], dim=1)
        torch.testing.assert_close(both.scored(picture), unit(pair))
    assert not any("resblocks.1" in name for name in one.embedder.state_dict())


@pytest.mark.slow
@torch.no_grad()
def test_an_average_is_the_mean_of_embeddings_with_a_warning_of_other_spaces(
    runs: list[Path], kin: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = open_model(composition(tmp_path / "mean", runs[:2], join="average"))
    warning = f"warning: {runs[1]}: its head was trained independently of that of {runs[0]} (cosine"
    assert warning in capsys.readouterr().err
    for picture in pictures():
        parts = [open_model(run).scored(picture) for run in runs[:2]]
        torch.testing.assert_close(out.scored(picture), unit(parts[0] + parts[1]))
    main(kin, tmp_path / "kin", join="average")
    assert "warning" not in capsys.readouterr().err


@pytest.mark.slow
@torch.no_grad()
def test_it_is_scored_reduced_and_exported(
    runs: list[Path], data: dict[str, str], tmp_path: Path, capsys, monkeypatch
) -> None:
    monkeypatch.setattr(
        "guie.export.parity.odd_sizes", lambda size_px: [(1, 99), (size_px, size_px)]
    )
    pca = {"name": "pca", "dim": 8, "images": data}
    small = main(runs, tmp_path / "small", val=data, reduce=pca)
    printed = capsys.readouterr().out
    assert "8 dimensions, 2 views of an image, val R@1" in printed
    assert f"{runs[2]}: 24 dimensions, val R@1" in printed and "of the variance" in printed
    (line,) = read_metrics(small / "metrics.jsonl")
    assert 0 < line["val_r_at_1"] <= 1
    members = record(small)["members"]
    assert [member["model"] for member in members] == list(map(str, runs))
    assert all(0 < member["val"]["val_r_at_1"] <= 1 for member in members)

    submission = tmp_path / "submission"
    export.main(["--run", str(small), "--out", str(submission)])
    card = (submission / "card.md").read_text()
    for words in (
        "| Models | 3, concatenated, reduced to 8 dimensions |",
        *("| Dimension | 8 |", "pad to 48 px", f"### Model 1: `{runs[0].name}`", "### Model 3"),
    ):
        assert words in card


@pytest.mark.slow
@torch.no_grad()
def test_compositions_are_members_of_others(runs: list[Path], tmp_path: Path) -> None:
    """From a folder and within the config; two soups side by side are the 4th place's."""
    inner = main(runs[:2], tmp_path / "inner", views=["flip"])
    nested = {"members": [str(runs[0]), str(runs[1])], "join": "soup"}
    out = open_model(main([inner, nested, runs[2]], tmp_path / "outer"))
    soup = open_model(composition(tmp_path / "soup", runs[:2], join="soup"))
    for picture in pictures():
        parts = [m.scored(picture) for m in (open_model(inner), soup, open_model(runs[2]))]
        torch.testing.assert_close(out.scored(picture), unit(torch.cat(parts, dim=1)))
    members = record(tmp_path / "outer")["members"]
    assert [member["dimension"] for member in members] == [32, 16, 24]
    assert members[1]["model"] == "soup of a, b"


@pytest.mark.slow
@torch.no_grad()
def test_sizes_of_one_run_are_joined_and_saved_once(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [{"model": str(runs[0]), "size_px": size_px} for size_px in (32, 64)]
    twice, one, picture = main(sizes, tmp_path / "twice"), open_model(runs[0]), pictures()[0]
    apart = unit(torch.cat([at_size(one, size).scored(picture) for size in (32, 64)], 1))
    torch.testing.assert_close(open_model(twice).scored(picture), apart)
    monkeypatch.setattr("guie.export.parity.odd_sizes", lambda size_px: [(1, 99)])
    bytes_of = []
    for out in (runs[0], twice):
        export.main(["--run", str(out), "--out", str(tmp_path / "exported" / out.name)])
        files = out / "model.safetensors", tmp_path / "exported" / out.name / "submission.zip"
        bytes_of.append([file.stat().st_size for file in files])
    for single, double in zip(*bytes_of, strict=True):
        assert double < 1.2 * single  # position embeddings alone are written twice
