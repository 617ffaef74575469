"""A store in a bucket, and an output there: of a server on the loopback."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import embed
from guie.base.errors import UserError
from guie.data.shards.storage import listed, whole_object
from guie.rows.filling import OnCores, fill
from guie.rows.states import keys
from guie.rows.store import Store
from object_storage import s3, set_environment, upload
from tiny_runs import tiny_run

pytest.importorskip("moto")
NAMES = [f"{number}.jpg" for number in range(40)]
COLUMNS = ["name", "length"]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3() as endpoint:
        yield endpoint


@pytest.fixture
def bucket(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "first").mkdir()
    (tmp_path / "first/note.txt").write_text("mine")
    set_environment(monkeypatch, server)
    monkeypatch.setenv("GUIE_CACHE", str(tmp_path / "cache"))
    name = re.sub(r"[^a-z0-9]+", "-", tmp_path.name.lower()).strip("-")[-50:]
    return upload(server, tmp_path / "first", name)


def lengths(name: str) -> list:
    return [name, len(name)]


def test_rows_are_kept_in_a_bucket(bucket: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(OnCores, "most", 8)
    compute = OnCores(lengths, NAMES, COLUMNS, 1)
    for part in (1, 0):
        fill(Store(f"{bucket}/checks", {}), keys(NAMES), compute, part=(part, 2))
    shutil.rmtree(tmp_path / "cache")  # as on another machine
    store = Store(f"{bucket}/checks", {})
    assert not len(store.missing(keys(NAMES)))
    assert store.table(keys(NAMES[::-1]))["name"].tolist() == NAMES[::-1]
    with pytest.raises(UserError, match=rf"{bucket}/checks/\w+: these 40 .* 2 parts"):
        fill(store, keys(NAMES), compute, part=(0, 3))
    store.remove()
    assert listed(store.url) == [] and whole_object(f"{bucket}/note.txt") == b"mine"


def test_embeddings_are_written_to_a_bucket(
    bucket: str, toy_manifest: Path, tmp_path: Path, capsys
) -> None:
    words = ["--model", str(tiny_run(tmp_path / "run")), "--manifest", str(toy_manifest)]
    words += ["--split", "test", "--workers", "0"]
    embed.main([*words, "--out", f"{bucket}/E.npz"])
    assert f"{bucket}/E.npz: " in capsys.readouterr().out
    (tmp_path / "fetched.npz").write_bytes(whole_object(f"{bucket}/E.npz"))
    here = np.load(embed.main([*words, "--out", str(tmp_path / "E.npz")]))
    there = np.load(tmp_path / "fetched.npz")
    assert np.array_equal(here["embedding"], there["embedding"])
    embed.main([*words, "--out", f"{bucket}/E.npz"])
    assert " (0 new)" in capsys.readouterr().out.splitlines()[-1]


def test_no_such_bucket_is_said_in_a_line(bucket: str, monkeypatch) -> None:
    monkeypatch.setattr("guie.data.shards.storage.WAITS_S", ())
    with pytest.raises(UserError, match="^s3://none/[^\n]*$"):
        fill(Store("s3://none/rows", {}), keys(NAMES), OnCores(lengths, NAMES, COLUMNS, 1))
