"""validate.py --mteb: a manifest scored by mteb, and what is refused."""

import json
import shutil
import sys

import pandas as pd
import pytest

import validate
from guie.base.errors import UserError
from tiny_runs import tiny_run


@pytest.fixture
def asked(tmp_path):
    return ["--mteb", "--model", str(tiny_run(tmp_path / "tiny")), "--out", str(tmp_path / "mteb")]


def test_a_manifest_is_scored_and_the_result_kept(asked, toy_manifest, tmp_path, capsys):
    pytest.importorskip("mteb", reason="make judges has it")
    for _ in range(2):  # the second time too: its images may have changed
        validate.main([*asked, "--manifest", str(toy_manifest), "--workers", "2"])
        out = capsys.readouterr().out
        assert "manifest-test test: hit_rate_at_1 0." in out
    (file,) = (tmp_path / "mteb").rglob("manifest-test.json")
    kept = json.loads(file.read_text())["scores"]["test"][0]
    assert f"hit_rate_at_1 {kept['hit_rate_at_1']:.4f}, map_at_5 {kept['map_at_5']:.4f}" in out


@pytest.mark.parametrize("name", ["CUB", "STS12", "CIRRIT2IRetrieval"])
def test_a_task_that_is_not_of_images_alone_is_refused(asked, name):
    pytest.importorskip("mteb", reason="make judges has it")
    with pytest.raises(
        UserError, match=f"{name}: not an image-to-image retrieval .* CUB200I2IRetrieval"
    ):
        validate.main(["--mteb", "SOPI2IRetrieval", name, *asked[1:]])


@pytest.mark.parametrize("workers", ["0", "2"])
def test_an_image_that_cannot_be_decoded_is_named(asked, toy_manifest, tmp_path, workers):
    pytest.importorskip("mteb", reason="make judges has it")
    manifest = shutil.copytree(toy_manifest.parent, tmp_path / "toy") / "manifest.csv"
    table = pd.read_csv(manifest)
    path = table.loc[table["split"] == "test", "image_path"].iloc[3]
    image = manifest.parent / path
    image.write_bytes(image.read_bytes()[:200])
    with pytest.raises(UserError, match=f"{path}: cannot be decoded"):
        validate.main([*asked, "--manifest", str(manifest), "--workers", workers])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--batch-size", "0"], "--batch-size"),
        (["--workers", "-3"], "--workers -3: must be 0 or more"),
        (["--rerank", "csls", "--draws", "3"], "--mteb: leave out --rerank, --draws"),
    ],
)
def test_what_cannot_be_is_refused(words, said, capsys):
    with pytest.raises(SystemExit):
        validate.main(
            ["--mteb", "--model", "runs/demo", "--out", "o", "--manifest", "m.csv", *words]
        )
    assert said in capsys.readouterr().err.splitlines()[-1]


def test_a_model_and_a_task_or_a_manifest_are_needed(capsys):
    for words, said in (
        (["--mteb", "CUB200I2IRetrieval"], "--mteb: needs --model"),
        (["--mteb", "--model", "r"], "needs the names of tasks, or --manifest"),
        (["--mteb", "T", "--model", "r", "--manifest", "m"], "needs the names of tasks, or"),
        (["--embeddings", "E.npz"], "required: --manifest"),
        (["--embeddings", "E.npz", "--manifest", "m", "--workers", "2"], "need --mteb"),
    ):
        with pytest.raises(SystemExit):
            validate.main([*words, "--out", "o"])
        assert said in capsys.readouterr().err.splitlines()[-1], words


def test_a_file_in_place_of_the_folder_is_refused_at_once(asked, tmp_path):
    (tmp_path / "mteb").write_text("mine")
    with pytest.raises(UserError, match="mteb: needed as a folder, but is a file; write elsewhere"):
        validate.main([*asked, "--manifest", "gone.csv"])


def test_without_mteb_it_says_what_sets_it_up(asked, monkeypatch):
    monkeypatch.setitem(sys.modules, "mteb", None)
    monkeypatch.delitem(sys.modules, "guie.evaluation.mteb", raising=False)
    with pytest.raises(UserError, match="no module mteb: .*make judges"):
        validate.main(["--mteb", "SOPI2IRetrieval", *asked[1:]])
