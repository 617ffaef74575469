"""A Ray cluster of two workers computes what one process does, and survives what clusters meet."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import curate
import embed
import search
from guie.base.errors import UserError
from guie.config.loading import to_yaml
from guie.rows.filling import OnCores, connect, fill
from guie.rows.states import keys
from guie.rows.store import Store
from guie.search.searcher import open_index
from some_pictures import folder_of
from tiny_runs import tiny_run

ray = pytest.importorskip("ray")
NAMES = [f"{number}.jpg" for number in range(40)]
COLUMNS = ["name", "length"]


@pytest.fixture(scope="module")
def cluster():
    """Two workers on this machine, which import the tests too."""
    paths = os.pathsep.join(sys.path)
    ray.init(
        num_cpus=2,
        log_to_driver=False,
        include_dashboard=False,
        runtime_env={"env_vars": {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}},
    )
    yield
    ray.shutdown()


@pytest.fixture(autouse=True)
def on_ray(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GUIE_ENGINE", "ray")
    monkeypatch.setenv("GUIE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(OnCores, "most", 8)


def lengths(name: str) -> list:
    return [name, len(name)]


class Once:
    """Ends its process at one name, the first time."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __call__(self, name: str) -> list:
        if name == "20.jpg" and not self.place.exists():
            self.place.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return lengths(name)


class Raises:
    def __init__(self, error: Exception) -> None:
        self.error = error

    def __call__(self, name: str) -> list:
        if name == "20.jpg":
            raise self.error
        return lengths(name)


def test_a_worker_killed_in_the_middle_is_replaced(cluster, tmp_path: Path) -> None:
    store = Store(tmp_path / "rows", {})
    fill(store, keys(NAMES), OnCores(Once(tmp_path / "once"), NAMES, COLUMNS, 1))
    assert (tmp_path / "once").exists()
    assert store.table(keys(NAMES))["name"].tolist() == NAMES


@pytest.mark.parametrize(
    ("error", "said"),
    [(UserError("20.jpg: bad"), "^20.jpg: bad$"), (ZeroDivisionError(), "^Ray: ")],
)
def test_a_task_that_raises_is_said_in_a_line_and_the_rest_is_kept(cluster, tmp_path, error, said):
    store = Store(tmp_path / "rows", {})
    with pytest.raises(UserError, match=said) as caught:
        fill(store, keys(NAMES), OnCores(Raises(error), NAMES, COLUMNS, 1))
    assert "\n" not in str(caught.value)
    fill(store, keys(NAMES), OnCores(lengths, NAMES, COLUMNS, 1))
    assert not len(store.missing(keys(NAMES)))


DRIVER = """
import os, sys, time
from pathlib import Path
from guie.rows.filling import OnCores, connect, fill
from guie.rows.states import keys
from guie.rows.store import Store

def slow(name):
    time.sleep(0.05)
    return [name, len(name)]

OnCores.most = 8
names = [f"{number}.jpg" for number in range(400)]
fill(Store(sys.argv[1], {}), keys(names), OnCores(slow, names, ["name", "length"], 1))
"""


def test_a_driver_that_is_killed_goes_on_when_started_again(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-c", DRIVER, str(tmp_path / "rows")]
    store = Store(tmp_path / "rows", {})
    first = subprocess.Popen(words, env=env)
    while len([*store.folder.glob("*.key.npy")]) < 5:
        assert first.poll() is None
        time.sleep(0.1)
    first.kill()
    first.wait()
    done = len([*store.folder.glob("*.key.npy")])
    subprocess.run(words, env=env, check=True)
    blocks = len([*store.folder.glob("*.key.npy")])
    assert done < blocks == 50  # none was computed under another name


def test_embeddings_have_the_bits_of_one_process(cluster, toy_manifest, tmp_path, capsys):
    words = ["--model", str(tiny_run(tmp_path / "run")), "--manifest", str(toy_manifest)]
    words += ["--split", "test", "--batch-size", "8", "--workers", "0"]
    found = {}
    for engine in ("ray", "local"):
        out = embed.main([*words, "--engine", engine, "--out", str(tmp_path / f"{engine}.npz")])
        found[engine] = np.load(out)["embedding"]
    assert np.array_equal(found["ray"], found["local"])
    bad = tmp_path / "bad.csv"
    table = pd.read_csv(toy_manifest)
    shutil.copytree(toy_manifest.parent, tmp_path / "set")
    broken = table[table["split"] == "test"]["image_path"].iloc[3]
    (tmp_path / "set" / broken).write_bytes(b"no image")
    table.to_csv(bad, index=False)
    words[3] = str(bad)
    words += ["--root", str(tmp_path / "set"), "--engine", "ray", "--out", str(tmp_path / "b.npz")]
    with pytest.raises(UserError, match=f"{broken}.*not a readable image"):
        embed.main(words)
    deep = tmp_path / "set" / table[table["split"] == "test"]["image_path"].iloc[-2]
    Image.fromarray(np.full((9, 9), 300, np.uint16)).save(deep, "PNG")
    capsys.readouterr()
    embed.main([*words, "--drop-bad"])
    assert len(np.load(tmp_path / "b.npz")["embedding"]) == len(found["ray"]) - 1
    assert "images differently (16 bits 1)" in capsys.readouterr().err


def test_an_index_has_the_hits_of_one_process(cluster, tmp_path: Path, capsys) -> None:
    photos = folder_of(tmp_path)
    found = []
    for engine in ("ray", "local"):
        out = str(tmp_path / engine)
        words = ["index", "--model", str(tiny_run(tmp_path / "run")), "--images", str(photos)]
        search.main([*words, "--engine", engine, "--out", out])
        assert "30 new" in capsys.readouterr().out
        found.append(open_index(out).query(photos / "left/1_0.png", k=30))
    assert found[0] == found[1] and len(found[0]) == 30


def test_a_mix_is_cleaned_as_by_one_process(cluster, toy_manifest, tmp_path, monkeypatch):
    found = []
    for engine in ("ray", "local"):
        monkeypatch.setenv("GUIE_CACHE", str(tmp_path / f"{engine} cache"))  # both compute
        config = {
            "name": "mix",
            "out": str(tmp_path / engine / "mix.csv"),
            "root": str(toy_manifest.parent),
            "sources": [{"kind": "manifest", "path": str(toy_manifest)}],
            "clean": {"leaks": "drop_train"},
        }
        (tmp_path / f"{engine}.yaml").write_text(to_yaml(config))
        curate.main(["--config", str(tmp_path / f"{engine}.yaml"), "--engine", engine])
        found.append(
            [(tmp_path / engine / f"mix{kind}.csv").read_text() for kind in ("", ".findings")]
        )
    assert found[0] == found[1] and len(found[0][0].splitlines()) > 100


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1"])
def test_an_address_where_no_ray_answers_is_named_at_once(address, monkeypatch):
    """Ray itself tries for minutes."""
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(UserError, match=f"^RAY_ADDRESS {address}: .* refused.*`ray start --head`"):
        connect(ray)
