"""A URL as the place of a result is refused before any work, and no folder `s3:` is created."""

from collections.abc import Callable
from pathlib import Path

import pytest

import compose
import curate
import embed
import export
import score
import search
import train
import validate
from guie.base.errors import UserError
from guie.base.files import cache_folder, held, write_text
from guie.config import config_from
from guie.config.data import MixConfig
from guie.curation.sources import prefix_of
from scorer.errors import UserError as ScorerError

CONFIGS = Path(__file__).parents[2] / "configs"
COMMANDS: dict[str, tuple[Callable[[list[str]], object], str]] = {
    "embed": (embed.main, "--model m --manifest m.csv --out URL.npz"),
    "validate": (validate.main, "--embeddings E.npz --manifest m.csv --out URL.json"),
    "results": (validate.main, "--embeddings E.npz --manifest m.csv --out o.json --html URL.html"),
    "export": (export.main, "--run r --out URL"),
    "score": (score.main, "--submission m.csv --manifest m.csv --out URL.json"),
    "index": (search.main, "index --model m --images m.csv --out URL"),
    "query": (search.main, "query --index . m.csv --json URL.json"),
    "duplicates": (search.main, "duplicates --index . --out URL.csv"),
    "shards": (curate.main, "--manifest m.csv --shards URL"),
    "mix": (curate.main, f"--config {CONFIGS}/demo/mix.yaml --set out=URL.csv"),
    "train": (train.main, f"--config {CONFIGS}/demo/train.yaml --set out=URL"),
    "compose": (compose.main, f"--config {CONFIGS}/compose/soup.yaml --set out=URL"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_refuses_it(command: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.csv").touch()
    main, words = COMMANDS[command]
    url = "hdfs://host/x" if command in ("embed", "index") else "s3://b/x"  # these write to S3
    with pytest.raises((UserError, ScorerError), match="URL; name a local|local disk") as caught:
        main(words.replace("URL", url).split())
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["m.csv"]


@pytest.mark.parametrize("url", ["s3://b/x", "gs://b/x", "s3:/b/x"])
def test_a_function_that_writes_refuses_it(url: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GUIE_CACHE", url)
    with pytest.raises(UserError, match="local path"):
        cache_folder()
    with pytest.raises(UserError, match="local path"):
        write_text(Path(url), "")
    with pytest.raises(UserError, match="local path"), held(Path(url), "", ""):
        pass
    assert not list(tmp_path.iterdir())
    for name in ("12:30.txt", "run a: first/x.txt"):  # no URLs
        write_text(name, "x")
        assert Path(name).read_text() == "x"


def mix(root: str) -> MixConfig:
    sources = [{"kind": "manifest", "path": "s3://shop/set/index.parquet"}]
    return config_from({"name": "m", "out": "m.csv", "root": root, "sources": sources}, MixConfig)


def test_the_root_of_a_mix_of_objects_is_in_their_bucket() -> None:
    index = Path("/s3:/shop/set/index.parquet")  # where the reader of a manifest finds it
    for root, prefix in (("s3://shop/set", ""), ("s3://shop", "set/"), ("s3://shop/", "set/")):
        assert prefix_of(index, mix(root).image_root) == f"{prefix}index.parquet/"
    for root in ("/", "input", "s3://warehouse", "gs://shop/set"):
        with pytest.raises(UserError, match="set root: s3://shop/set$") as caught:
            prefix_of(index, mix(root).image_root)
        assert "s3:/s" not in str(caught.value)
