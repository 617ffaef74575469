"""An index is brought up to date, goes on, and refuses what is not its own."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import search
import two_processes
from guie.base.errors import UserError
from guie.data.images import open_as_seen
from guie.search import open_index
from guie.search.building import PARTS
from guie.search.index import FACTS, FILES, FLAT, read_index
from guie.search.sources import pictures_of, shard_of
from some_pictures import folder_of, indexed, picture
from tiny_runs import tiny_run


def test_it_is_brought_up_to_date(run: Path, tmp_path: Path) -> None:
    pictures = folder_of(tmp_path, classes=2, each=3)
    (pictures / "left" / "broken.png").write_bytes(b"no picture")
    (pictures / "notes.txt").write_text("no picture by its name")
    out = tmp_path / "index"
    _, changes = indexed(run, pictures, out)
    assert (changes.new, changes.kept) == (6, 0)
    assert changes.unreadable["image_path"].tolist() == ["left/broken.png"]
    assert "left/broken.png" in (out / "dropped.csv").read_text()
    assert pictures_of(pictures).skipped["no image by its extension (.txt)"] == 1
    before = read_index(out).vectors()[:].copy()

    (pictures / "left" / "broken.png").unlink()
    (pictures / "right" / "0_0.png").unlink()
    picture(1, 99, (50, 30)).save(pictures / "left" / "1_0.png")
    picture(1, 7).save(pictures / "new.png")
    made, changes = indexed(run, pictures, out)
    assert (changes.new, changes.changed, changes.removed, changes.kept) == (1, 1, 1, 4)
    assert "1 new, 1 changed, 1 removed, 4 as they were" in changes.told
    assert made.files["image_path"].tolist() == sorted(made.files["image_path"])
    assert not (out / PARTS).exists() and not (out / "dropped.csv").exists()
    assert [path.name for path in out.glob("g*")] == ["g2"]
    np.testing.assert_array_equal(made.vectors()[2], before[2])  # left/1_2.png as it was
    assert not np.array_equal(made.vectors()[0], before[0])
    searcher = open_index(out)
    expected = searcher.embed([open_as_seen(pictures / path) for path in made.files["image_path"]])
    np.testing.assert_allclose(made.vectors(), expected, atol=1e-5)


def test_a_killed_one_goes_on(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = folder_of(tmp_path, classes=2, each=2)

    def killed(*given: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("guie.search.building.finish", killed)
        with pytest.raises(KeyboardInterrupt):
            indexed(run, pictures, tmp_path / "index")
    with pytest.raises(UserError, match="no index"):
        read_index(tmp_path / "index")
    for file in pictures.rglob("*.png"):
        file.chmod(0o644)

    def not_again(*given: object, **settings: object) -> None:
        raise AssertionError("embedded again")

    monkeypatch.setattr("guie.model.embedder.Embedder.forward", not_again)
    _, changes = indexed(run, pictures, tmp_path / "index")
    assert changes.new == 4


def test_a_kill_leaves_the_old_index_and_a_folder_that_shrank_is_asked_about(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures, out = folder_of(tmp_path, classes=2, each=4), tmp_path / "index"
    indexed(run, pictures, out)
    picture(1, 9).save(pictures / "new.png")

    def killed(*given: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("guie.search.building.publish", killed)
        with pytest.raises(KeyboardInterrupt):
            indexed(run, pictures, out)
    assert len(open_index(out).like(0, k=99)) == 7  # as before
    assert indexed(run, pictures, out)[1].new == 1

    shutil.rmtree(pictures / "left")
    (pictures / "right" / "0_0.png").unlink()
    with pytest.raises(UserError, match="5 of the 9 pictures that .* knows are gone; .* --fewer"):
        indexed(run, pictures, out)
    assert indexed(run, pictures, out, fewer=True)[1].removed == 5


def test_archives_and_shards(run: Path, tmp_path: Path) -> None:
    folder_of(tmp_path, classes=2, each=3)
    with tarfile.open(tmp_path / "all.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "pictures", "all")
    shutil.rmtree(tmp_path / "pictures")
    found = pictures_of(tmp_path / "all.tar.gz")
    assert len(found.files) == 6 and set(found.files["domain"]) == {"all"}
    parts = [shard_of(found, number, 4).files["image_path"].tolist() for number in range(4)]
    assert sorted(sum(parts, [])) == found.files["image_path"].tolist()
    assert [len(part) for part in parts] == [2, 2, 1, 1]


def test_what_is_not_its_own_is_refused(run: Path, tmp_path: Path) -> None:
    pictures, out = folder_of(tmp_path, classes=2, each=2), tmp_path / "index"
    indexed(run, pictures, out)
    other = tiny_run(tmp_path / "other", start=1)
    with pytest.raises(UserError, match="or of other weights of it; vectors of two models"):
        indexed(other, pictures, out)
    with pytest.raises(UserError, match="not the model that .* was made by"):
        open_index(out, str(other)).open_model()
    shutil.copytree(pictures, tmp_path / "elsewhere")
    with pytest.raises(UserError, match="elsewhere; name another --out"):
        indexed(run, tmp_path / "elsewhere", out)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no image in it"):
        pictures_of(tmp_path / "empty")


@pytest.mark.parametrize("name", [FACTS, f"g1/{FILES}", f"g1/{FLAT}"])
def test_a_damaged_index_is_told_by_its_file(name: str, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "index"
    indexed(run, folder_of(tmp_path, classes=2, each=2), out)
    whole = (out / name).read_bytes()
    (out / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=rf"{name}: .*index the pictures again"):
        open_index(out)
    (out / name).write_bytes(whole)
    facts = json.loads((out / FACTS).read_text())
    for key, value, told in (
        ("dimension", 9, FLAT),
        ("pictures", 3, FILES),
        ("version", 0, "version 0"),
    ):
        (out / FACTS).write_text(json.dumps(facts | {key: value}))
        with pytest.raises(UserError, match=told):
            open_index(out)


def test_pictures_of_a_manifest_keep_its_labels(tmp_path: Path) -> None:
    folder_of(tmp_path, classes=2, each=2)
    found = pictures_of(tmp_path / "m.csv")
    table = pd.read_csv(tmp_path / "m.csv").sort_values("image_path")
    assert found.files["label"].tolist() == table["label"].tolist()


@pytest.mark.slow
def test_two_processes_make_the_index_of_one(run: Path, tmp_path: Path) -> None:
    words = ["index", "--model", str(run), "--images", str(folder_of(tmp_path)), "--workers", "1"]
    search.main([*words, "--out", str(tmp_path / "one")])
    two_processes.run("search", [*words, "--out", str(tmp_path / "two")])
    one, two = (read_index(tmp_path / name) for name in ("one", "two"))
    assert one.files.equals(two.files)
    np.testing.assert_allclose(one.vectors(), two.vectors(), atol=1e-6)
    assert one.facts.sureness == two.facts.sureness
