"""The whole road on toy images: train, export, embed, validate and score agree."""

import json
from pathlib import Path

import numpy as np
import pytest

import embed
import export
import score
import train
import validate
from guie.config.loading import to_yaml


@pytest.fixture(scope="module")
def road(toy_manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs/r, an exported submission and its score, made by the scripts."""
    folder = tmp_path_factory.mktemp("road")
    config = {
        "name": "r",
        "out": str(folder / "runs"),
        "data": {"manifest": str(toy_manifest), "workers": 0},
        "model": {
            "backbone": {"library": "open_clip", "name": "guie-tiny"},
            "image": {"size_px": 48, "fit": "pad"},
        },
        "train": {
            "epochs": 1,
            "batch_size": 32,
            "lr": {"backbone": 1e-4, "head": 1e-2, "classes": 1e-2},
        },
    }
    (folder / "c.yaml").write_text(to_yaml(config))
    run = train.main(["--config", str(folder / "c.yaml")])
    export.main(["--run", str(run), "--out", str(folder)])
    manifest = ["--manifest", str(toy_manifest), "--split", "test"]
    zipped = folder / "submission.zip"
    score.main(["--submission", str(zipped), *manifest, "--out", str(folder / "score.json")])
    for name, model in (("run", run), ("zip", zipped)):
        out = folder / f"{name}.npz"
        embed.main(["--model", str(model), *manifest, "--out", str(out), "--workers", "0"])
        report = ["--out", str(folder / f"{name}.json")]
        validate.main(["--embeddings", str(out), *manifest, "--index", "merged", *report])
    return folder


def test_the_submission_embeds_as_the_run_does(road: Path) -> None:
    run, zipped = np.load(road / "run.npz"), np.load(road / "zip.npz")
    assert (run["image_path"] == zipped["image_path"]).all()
    assert np.abs(run["embedding"] - zipped["embedding"]).max() <= 1e-5


def test_the_scorer_and_the_protocol_agree(road: Path) -> None:
    scored, report = (json.loads((road / f"{name}.json").read_text()) for name in ("score", "zip"))
    # One goes by distances, one by cosines: smaller differences than those of float32 are ties.
    emb_ND = np.load(road / "zip.npz")["embedding"].astype(np.float64)
    near_NN = -np.sort(-(emb_ND @ emb_ND.T), axis=1)[:, :7]  # the image itself, five, and the next
    tied = (np.diff(-near_NN) < 1e-7).any(axis=1).mean()
    assert tied < 0.05
    for key in ("mmp_at_5", "r_at_1"):
        assert scored["pooled"][key] == pytest.approx(report["pooled"][key], abs=tied + 1e-9)
    assert scored["dimension"] == report["dimension"] == 64


def test_without_a_val_split_the_last_weights_are_the_model(road: Path) -> None:
    best, last = (road / f"runs/r/{name}.safetensors" for name in ("model", "last"))
    assert best.read_bytes() == last.read_bytes()


def test_every_file_of_the_contract_is_there(road: Path) -> None:
    score_json = json.loads((road / "score.json").read_text())
    assert all(check["passed"] for check in score_json["checks"])
    for name in ("card.md", "export.json", "score.neighbours.csv"):
        assert (road / name).is_file()
