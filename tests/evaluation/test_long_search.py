"""A search of minutes: blocks kept, gone on with after a kill, shared by processes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scored_tables import gaussian_embeddings, mixed_table

import two_processes
import validate
from guie.base.errors import UserError
from guie.evaluation import knn as neighbours
from guie.evaluation import long_search
from guie.evaluation import search as searching
from guie.evaluation.search import KEY, BlockCache


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Arguments of a search that counts as long, in many blocks."""
    table = mixed_table().assign(split="test")
    table.to_csv(tmp_path / "m.csv", index=False)
    paths = table["image_path"].to_numpy(dtype=str)
    np.savez(tmp_path / "E.npz", image_path=paths, embedding=gaussian_embeddings(len(table)))
    monkeypatch.setattr(searching, "MOST_QUERIES", 9)
    monkeypatch.setattr(long_search, "LONG", 0)
    files = ["--embeddings", str(tmp_path / "E.npz"), "--manifest", str(tmp_path / "m.csv")]
    return [*files, "--protocol", "uned", "merged", "--draws", "5"]


class Killed(BaseException):
    """As SIGKILL: nothing tidies up."""


def test_a_start_after_a_kill_goes_on_to_the_same_report(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, cut = tmp_path / "whole.json", tmp_path / "cut.json"
    searched = []
    search = neighbours.ExactIndex.search

    def counting(self, *args):
        if len(searched) == limit:
            raise Killed
        searched.append(len(args[0]))
        return search(self, *args)

    monkeypatch.setattr(neighbours.ExactIndex, "search", counting)
    limit = -1
    validate.main([*words, "--out", str(whole)])
    blocks = len(searched)
    assert blocks > 20 and not whole.with_name("whole.json.parts").exists()
    searched.clear()
    limit = 7
    with pytest.raises(Killed):
        validate.main([*words, "--out", str(cut)])
    assert not cut.exists() and len(list(tmp_path.glob("cut.json.parts/*.parquet"))) == 7
    searched.clear()
    limit = -1
    validate.main([*words, "--out", str(cut)])
    assert len(searched) == blocks - 7
    assert cut.read_bytes() == whole.read_bytes()
    assert not cut.with_name("cut.json.parts").exists()


def test_blocks_of_other_embeddings_are_not_taken(words: list[str], tmp_path: Path) -> None:
    out, parts = tmp_path / "r.json", tmp_path / "r.json.parts"
    validate.main([*words, "--out", str(out)])
    first = out.read_bytes()
    BlockCache.open(parts, "of other embeddings")
    for block in range(40):
        (parts / f"{block}.parquet").write_bytes(b"stale")
    validate.main([*words, "--out", str(out)])
    assert out.read_bytes() == first and not parts.exists()


@pytest.mark.slow
def test_two_processes_share_the_blocks(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # the others would not see it
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    validate.main([*words, "--out", str(one)])
    two_processes.run("validate", [*words, "--out", str(two)])
    assert json.loads(two.read_text()) == json.loads(one.read_text())
    assert not two.with_name("two.json.parts").exists()


def test_a_block_belongs_to_one_process_and_to_one_search(tmp_path: Path) -> None:
    BlockCache.open(tmp_path / "k", "a")
    shares = [BlockCache(tmp_path / "k", process, 3) for process in range(3)]
    assert all(sum(kept.is_mine(number) for kept in shares) == 1 for number in range(10))
    kept = shares[0]
    values = mixed_table()[["label"]]
    kept.within("puma").add("separate a b", 1, values)
    assert kept.within("puma").get("separate a b", 1).equals(values)
    assert kept.get("separate a b", 1) is None
    assert kept.within("puma").get("separate a_b", 1) is None
    BlockCache.open(tmp_path / "k", "a")
    assert kept.within("puma").get("separate a b", 1) is not None
    BlockCache.open(tmp_path / "k", "b")
    assert [file.name for file in (tmp_path / "k").iterdir()] == [KEY]


def test_blocks_of_another_ranking_are_not_taken(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, cut, corrected = tmp_path / "whole.json", tmp_path / "cut.json", ["--rerank", "csls"]
    validate.main([*words, *corrected, "--out", str(whole)])
    add = BlockCache.add

    def killed(self, name, number, values):
        add(self, name, number, values)
        if number == 2:
            raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(BlockCache, "add", killed)
        validate.main([*words, "--out", str(cut)])
    assert list(tmp_path.glob("cut.json.parts/*.parquet"))
    validate.main([*words, *corrected, "--out", str(cut)])
    assert json.loads(cut.read_text()) == json.loads(whole.read_text())


def test_a_folder_of_a_user_in_the_place_of_the_blocks_is_kept(tmp_path: Path) -> None:
    (tmp_path / "k").mkdir()
    (tmp_path / "k/notes.txt").write_text("mine")
    with pytest.raises(UserError, match="k: not made by validate.py"):
        BlockCache.open(tmp_path / "k", "a")
    (tmp_path / "k/notes.txt").rename(tmp_path / "notes.txt")
    BlockCache.open(tmp_path / "k", "a")
    (tmp_path / "notes.txt").rename(tmp_path / "k/notes.txt")
    BlockCache.open(tmp_path / "k", "b")
    BlockCache(tmp_path / "k").remove()
    assert [file.name for file in (tmp_path / "k").iterdir()] == ["notes.txt"]
