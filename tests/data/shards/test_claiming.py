"""Writing an index destroys nothing of a user's, and two processes in one folder do not mix."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from guie.base.errors import UserError
from guie.curation.indexing import DROPPED, index_tars
from guie.curation.packing import pack
from guie.data.shards.index import PARTS, claimed
from sharded import SHARD_BYTES, data_set, picture_bytes, tar_of

CURATE = Path(__file__).parents[3] / "src/curate.py"
BROKEN = ("a/1.jpg", picture_bytes(1)[:300])


def tars(folder: Path) -> Path:
    """A folder of one tar, with a good image and a broken one."""
    tar_of(folder / "a.tar", [("a/0.jpg", picture_bytes(0)), BROKEN])
    return folder


@pytest.mark.parametrize("name", [".parts/notes.txt", f"{PARTS}/notes.txt", f"{PARTS}/a/b.parquet"])
def test_files_of_a_user_stay(name: str, tmp_path: Path) -> None:
    """Also in the folder of our own name, where a killed process has left its work."""
    folder, shards = tars(tmp_path / "tars"), tmp_path / "shards"
    for place in (folder, shards):
        with pytest.raises(KeyError), claimed(place):
            raise KeyError("killed")
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text("mine")
    index_tars(folder, "art", "train", 1)
    pack(data_set(tmp_path / "files"), shards, SHARD_BYTES, 1)
    for place in (folder, shards):
        assert (place / name).read_text() == "mine" and (place / "index.parquet").exists()
        assert not list((place / PARTS).glob("*.tar*")) and not (place / PARTS / "lock").exists()


@pytest.mark.parametrize("link", [False, True])
def test_a_folder_of_that_name_that_is_not_ours_is_refused(link: bool, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs" if link else tars(tmp_path / "tars") / PARTS
    theirs.mkdir()
    (theirs / "a.tar.1.parquet").write_text("mine")
    if link:
        (tars(tmp_path / "tars") / PARTS).symlink_to(theirs)
    with pytest.raises(UserError, match=f"{PARTS}: not made by curate.py"):
        index_tars(tmp_path / "tars", "art", "train", 1)
    assert [path.name for path in theirs.iterdir()] == ["a.tar.1.parquet"]


def test_a_list_that_is_not_ours_is_refused_and_ours_is_renewed(tmp_path: Path) -> None:
    listed = tars(tmp_path) / DROPPED
    for theirs in ("my own table\n", "image_path,reason,my note\na.jpg,,\n"):
        listed.write_text(theirs)
        with pytest.raises(UserError, match=f"{DROPPED}: would be replaced"):
            index_tars(tmp_path, "art", "train", 1)
        assert listed.read_text() == theirs and not (tmp_path / "index.parquet").exists()
    listed.write_text("image_path,reason\nold,cut short\n")
    index_tars(tmp_path, "art", "train", 1)
    assert pd.read_csv(listed)["image_path"].tolist() == ["a/a/1.jpg"]
    tar_of(tmp_path / "a.tar", [("a/0.jpg", picture_bytes(0))])
    (tmp_path / "index.parquet").unlink()
    index_tars(tmp_path, "art", "train", 1)
    assert not listed.exists()


@pytest.mark.parametrize("name", ["index.sidecar.yaml", "index.boxes.csv", "index.texts.csv"])
def test_packing_replaces_no_companion_of_a_user(name: str, tmp_path: Path) -> None:
    shards = tmp_path / "shards"
    shards.mkdir()
    for kept in (name, ".shard-notes.tmp.tar"):
        (shards / kept).write_text("mine")
    with pytest.raises(UserError, match=f"{name}: would be replaced"):
        pack(data_set(tmp_path / "files"), shards, SHARD_BYTES, 1)
    (shards / name).rename(tmp_path / name)
    pack(data_set(tmp_path / "files"), shards, SHARD_BYTES, 1)
    assert (shards / ".shard-notes.tmp.tar").read_text() == "mine"


def test_of_two_that_index_one_folder_one_is_refused_and_the_index_is_the_others(
    tmp_path: Path,
) -> None:
    tars(tmp_path)
    with claimed(tmp_path):
        command = [sys.executable, CURATE, "--index-shards", tmp_path, "--domain", "b"]
        done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "another process writes its index (process " in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    index_tars(tmp_path, "first", "train", 1)
    with pytest.raises(UserError, match="exists; delete it"):
        index_tars(tmp_path, "second", "test", 1)
    assert set(pd.read_parquet(tmp_path / "index.parquet")["domain"]) == {"first"}
