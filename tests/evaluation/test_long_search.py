"""A search of minutes: its scores are stored, resumed after a kill, shared by processes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scored_tables import gaussian_embeddings, mixed_table

import two_processes
import validate
from guie.evaluation import search as searching
from guie.evaluation.knn import ExactIndex


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Arguments of a search that counts as long, in many blocks."""
    table = mixed_table().assign(split="test")
    table.to_csv(tmp_path / "m.csv", index=False)
    paths = table["image_path"].to_numpy(dtype=str)
    np.savez(tmp_path / "E.npz", image_path=paths, embedding=gaussian_embeddings(len(table)))
    monkeypatch.setattr(searching, "MOST_QUERIES", 9)
    monkeypatch.setattr(searching, "LONG", 0)
    files = ["--embeddings", str(tmp_path / "E.npz"), "--manifest", str(tmp_path / "m.csv")]
    return [*files, "--protocol", "uned", "merged", "--draws", "5"]


class Killed(BaseException):
    """As SIGKILL: nothing tidies up."""


def test_a_start_after_a_kill_resumes_to_the_same_report(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, cut = tmp_path / "whole.json", tmp_path / "cut.json"
    search, searched, limit = ExactIndex.search, [], -1

    def counting(self, *args):
        if len(searched) == limit:
            raise Killed
        searched.append(len(args[0]))
        return search(self, *args)

    monkeypatch.setattr(ExactIndex, "search", counting)
    validate.main([*words, "--out", str(whole)])
    blocks = len(searched)
    assert blocks > 20 and not list(tmp_path.glob("*.parts"))
    searched.clear()
    limit = 7
    with pytest.raises(Killed):
        validate.main([*words, "--out", str(cut)])
    assert not cut.exists() and len(list(tmp_path.glob("cut.json.parts/*/*.parquet"))) == 7
    searched.clear()
    limit = -1
    validate.main([*words, "--out", str(cut)])
    assert len(searched) == blocks - 7 and not list(tmp_path.glob("*.parts"))
    assert cut.read_bytes() == whole.read_bytes()


def test_scores_of_another_ranking_are_not_taken(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, cut, corrected = tmp_path / "whole.json", tmp_path / "cut.json", ["--rerank", "csls"]
    validate.main([*words, *corrected, "--out", str(whole)])
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr("guie.report.scoring.finish", lambda *_: (_ for _ in ()).throw(Killed))
        validate.main([*words, "--out", str(cut)])
    assert list(tmp_path.glob("cut.json.parts/*/*.parquet"))
    validate.main([*words, *corrected, "--out", str(cut)])
    assert json.loads(cut.read_text()) == json.loads(whole.read_text())


@pytest.mark.slow
def test_two_processes_share_the_blocks(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # the others would not see it
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    validate.main([*words, "--out", str(one)])
    two_processes.run("validate", [*words, "--out", str(two)])
    assert json.loads(two.read_text()) == json.loads(one.read_text())
    assert not list(tmp_path.glob("*.parts"))
