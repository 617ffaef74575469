"""Every command gives the same bits from files, from shards, and from shards in object storage."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import curate
import embed
import export
import object_storage
import score
import search
import train
import two_processes
import validate
from guie.config.loading import to_yaml
from guie.search import open_index
from guie.training.run_folder import read_metrics
from tiny_runs import TINY_CLIP, mix_with_val, weights

SHARD_MB = "0.2"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with object_storage.s3() as found:
        yield found


@pytest.fixture(scope="module")
def files(toy_manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A manifest of 200 images in their folder, with a val split."""
    folder = tmp_path_factory.mktemp("files")
    shutil.copytree(toy_manifest.parent, folder, dirs_exist_ok=True)
    return mix_with_val(folder / toy_manifest.name, folder / "mix.csv")


@pytest.fixture(scope="module")
def shards(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The index of the same images in six shards."""
    folder = tmp_path_factory.mktemp("shards")
    curate.main(["--manifest", str(files), "--shards", str(folder), "--shard-mb", SHARD_MB])
    assert len(list(folder.glob("*.tar"))) > 4
    return folder / "index.parquet"


def trained(folder: Path, manifest: str | Path, workers: int, *words: str) -> Path:
    config = {
        "name": "r",
        "out": str(folder / "runs"),
        "log_every": "1 step",
        "data": {"manifest": str(manifest), "workers": workers},
        "model": {"backbone": TINY_CLIP, "image": {"size_px": 32}, "head": {"dropout": 0.2}},
        "train": {"epochs": 1, "batch_size": 32, "augment": {"color": 0.2}},
        "stages": [{"name": "full", "lr": {"backbone": 1e-4, "head": 1e-2, "classes": 1e-2}}],
    }
    folder.mkdir(exist_ok=True)
    (folder / "c.yaml").write_text(to_yaml(config))
    return train.main(["--config", str(folder / "c.yaml"), *words])


@pytest.fixture(scope="module")
def run(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was trained from files."""
    return trained(tmp_path_factory.mktemp("run"), files, 0)


def assert_same_run(one: Path, other: Path) -> None:
    for file in ("model.safetensors", "last.safetensors"):
        for name, weight in weights(one, file).items():
            assert torch.equal(weight, weights(other, file)[name]), name
    logs = [
        [
            {k: v for k, v in line.items() if "seconds" not in k and k != "time"}
            for line in read_metrics(at / "metrics.jsonl")
        ]
        for at in (one, other)
    ]
    assert logs[0] == logs[1]


def test_a_run_from_object_storage_ends_at_the_same_bits(
    run: Path, shards: Path, endpoint: str, tmp_path: Path, monkeypatch
) -> None:
    object_storage.set_environment(monkeypatch, endpoint)
    url = object_storage.upload(endpoint, shards.parent, "train")
    assert_same_run(run, trained(tmp_path, f"{url}/index.parquet", 2))


@pytest.mark.slow
def test_few_shards_at_a_time_resumed_with_another_number_of_processes(
    run: Path, shards: Path, tmp_path: Path
) -> None:
    """Two processes begin; one with two workers goes on. The images are those of one process."""
    config = ["--config", str(run.parent.parent / "c.yaml")]
    words = [f"data.manifest={shards}", f"out={tmp_path}", "model.head.dropout=0", "data.workers=0"]
    words += ["stages.0.sampler={name: shards, window: 2}", "stages.0.epochs=2"]
    words = [*config, *(word for value in words for word in ("--set", value))]
    one = train.main([*words, "--set", "name=one"])
    begun = two_processes.begin(tmp_path / "two/metrics.jsonl", 3, [*words, "--set", "name=two"])
    both = [read_metrics(one / "metrics.jsonl")]
    assert 3 <= begun < len(both[0])
    two = train.main([*words, "--set", "name=two", "--resume"])
    both.append(read_metrics(two / "metrics.jsonl"))
    losses = [{line["step"]: line["loss"] for line in log if "loss" in line} for log in both]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def embedded(folder: Path, run: Path, manifest: str | Path) -> tuple[np.ndarray, dict]:
    folder.mkdir()
    out = folder / "E.npz"
    of_test = ["--manifest", str(manifest), "--split", "test"]
    embed.main(["--model", str(run), *of_test, "--out", str(out), "--workers", "0"])
    validate.main(["--embeddings", str(out), *of_test, "--out", str(folder / "report.json")])
    report = json.loads((folder / "report.json").read_text())
    return dict(np.load(out)), {key: report[key] for key in ("mean", "pooled", "domains")}


def test_embeddings_and_reports_are_the_same(
    run: Path, files: Path, shards: Path, endpoint: str, tmp_path: Path, monkeypatch
) -> None:
    object_storage.set_environment(monkeypatch, endpoint)
    url = object_storage.upload(endpoint, shards.parent, "embed")
    arrays, report = embedded(tmp_path / "files", run, files)
    for name, manifest in (("shards", shards), ("s3", f"{url}/index.parquet")):
        other_arrays, other_report = embedded(tmp_path / name, run, manifest)
        assert (arrays["image_path"] == other_arrays["image_path"]).all()
        assert (arrays["embedding"] == other_arrays["embedding"]).all()
        assert report == other_report


@pytest.mark.slow
def test_a_search_index_is_the_same(run: Path, files: Path, shards: Path, tmp_path: Path) -> None:
    vectors = []
    for name, manifest in (("files", files), ("shards", shards)):
        out = tmp_path / name
        search.main(["index", "--images", str(manifest), "--model", str(run), "--out", str(out)])
        vectors.append(open_index(out).engine.vectors_ND)
    assert (vectors[0] == vectors[1]).all()


def test_the_score_is_the_same(
    run: Path, files: Path, shards: Path, endpoint: str, tmp_path: Path, monkeypatch
) -> None:
    object_storage.set_environment(monkeypatch, endpoint)
    url = object_storage.upload(endpoint, shards.parent, "score")
    export.main(["--run", str(run), "--out", str(tmp_path)])
    pooled = []
    for name, manifest in (("files", files), ("shards", shards), ("s3", f"{url}/index.parquet")):
        out = tmp_path / f"{name}.json"
        zipped = str(tmp_path / "submission.zip")
        score.main(["--submission", zipped, "--manifest", str(manifest), "--out", str(out)])
        pooled.append(json.loads(out.read_text())["pooled"])
    assert pooled[0] == pooled[1] == pooled[2]
