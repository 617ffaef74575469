"""An index is brought up to date, goes on, and refuses what is not its own."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tarfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import search
import two_processes
from guie.base.errors import UserError
from guie.base.files import held
from guie.data.images import open_as_seen
from guie.search import open_index
from guie.search.building import PARTS
from guie.search.index import FACTS, FILES, FLAT, Pictures, pictures_of, read_index, shard_of
from some_pictures import folder_of, indexed, picture
from tiny_runs import tiny_run


def killed(*given: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("how", ["copied over it", "written in place"])
def test_a_picture_replaced_within_size_and_time_is_found_by_its_content(
    how: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `cp -p`, `exiftool -P` and disks with times of whole seconds leave it."""
    monkeypatch.setenv("GUIE_CHECK_CONTENT", "")
    for number, color in enumerate(((200, 0, 0), (0, 200, 0), (0, 0, 200))):
        (tmp_path / "p/a").mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (64, 64), color).save(tmp_path / f"p/a/{number}.bmp")
    out, path = tmp_path / "index", tmp_path / "p/a/0.bmp"
    indexed(run, tmp_path / "p", out)
    before, state = read_index(out).vectors_ND[:].copy(), path.stat()
    Image.new("RGB", (64, 64), (90, 90, 0)).save(tmp_path / "new.bmp")
    if how == "written in place":
        path.write_bytes((tmp_path / "new.bmp").read_bytes())
    else:
        os.replace(tmp_path / "new.bmp", path)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    _, changes = indexed(run, tmp_path / "p", out)
    assert (changes.changed, changes.kept) == (0, 3)  # size and time, by default
    monkeypatch.setenv("GUIE_CHECK_CONTENT", "1")
    made, changes = indexed(run, tmp_path / "p", out)
    assert (changes.changed, changes.kept) == (1, 2)
    assert not np.allclose(made.vectors_ND[0], before[0], atol=1e-3)
    np.testing.assert_array_equal(made.vectors_ND[1:], before[1:])
    _, changes = indexed(run, tmp_path / "p", out)
    assert (changes.changed, changes.kept) == (0, 3)


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
    before = read_index(out).vectors_ND[:].copy()

    (pictures / "left" / "broken.png").unlink()
    (pictures / "right" / "0_0.png").unlink()
    picture(1, 99, (50, 30)).save(pictures / "left" / "1_0.png")
    picture(1, 7).save(pictures / "new.png")
    made, changes = indexed(run, pictures, out)
    assert (changes.new, changes.changed, changes.removed, changes.kept) == (1, 1, 1, 4)
    assert "1 new, 1 changed, 1 removed, 4 unchanged" in changes.description
    assert made.files["image_path"].tolist() == sorted(made.files["image_path"])
    assert not (out / PARTS).exists() and not (out / "dropped.csv").exists()
    assert [path.name for path in out.glob("g*")] == ["g2"]
    np.testing.assert_array_equal(made.vectors_ND[2], before[2])  # left/1_2.png as it was
    assert not np.array_equal(made.vectors_ND[0], before[0])
    searcher = open_index(out)
    expected = searcher.embed([open_as_seen(pictures / path) for path in made.files["image_path"]])
    np.testing.assert_allclose(made.vectors_ND, expected, atol=1e-5)


@pytest.mark.parametrize("step", ["index._check_files", "index._read_vectors", "engines._read"])
def test_an_index_opens_at_the_moment_when_an_update_replaces_it(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    pictures, out = folder_of(tmp_path, classes=2, each=4), tmp_path / "index"
    indexed(run, pictures, out, factory="IVF1,Flat", probes=1)
    picture(1, 9).save(pictures / "new.png")
    module = sys.modules[f"guie.search.{step.partition('.')[0]}"]
    name = step.partition(".")[2]
    read = getattr(module, name)

    def updated(*given: object) -> object:
        monkeypatch.setattr(module, name, read)
        indexed(run, pictures, out, factory="IVF1,Flat", probes=1)
        return read(*given)

    monkeypatch.setattr(module, name, updated)
    assert len(open_index(out).like(0, k=99)) == 8


def test_a_kill_leaves_the_old_index_and_a_folder_that_shrank_is_asked_about(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures, out = folder_of(tmp_path, classes=2, each=4), tmp_path / "index"
    indexed(run, pictures, out)
    picture(1, 9).save(pictures / "new.png")

    with monkeypatch.context() as patched:
        patched.setattr("guie.search.building.publish", killed)
        with pytest.raises(KeyboardInterrupt):
            indexed(run, pictures, out)
    assert len(open_index(out).like(0, k=99)) == 7  # as before
    assert indexed(run, pictures, out)[1].new == 1

    shutil.rmtree(pictures / "left")
    (pictures / "right" / "0_0.png").unlink()
    with pytest.raises(UserError, match="5 of the 9 images in .* are gone; .* --fewer"):
        indexed(run, pictures, out)
    assert indexed(run, pictures, out, fewer=True)[1].removed == 5
    next(path for path in pictures.rglob("*.png")).unlink()
    assert indexed(run, pictures, out)[1].removed == 1, "three of four are left"


def test_archives_and_shards(run: Path, tmp_path: Path) -> None:
    folder_of(tmp_path, classes=2, each=3)
    with tarfile.open(tmp_path / "all.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "pictures", "all")
    shutil.rmtree(tmp_path / "pictures")
    found = pictures_of(tmp_path / "all.tar.gz")
    assert len(found.files) == 6 and set(found.files["domain"]) == {"all"}
    parts = [shard_of(found, number, 2).files["image_path"].tolist() for number in range(2)]
    assert sorted(sum(parts, [])) == found.files["image_path"].tolist()
    rest = Pictures(found.root, found.files.drop(index=[0, 3]), found.skipped)
    for number, part in enumerate(parts):  # no image moves when others come or go
        kept = [path for path in part if path in set(rest.files["image_path"])]
        assert not kept or shard_of(rest, number, 2).files["image_path"].tolist() == kept
    one = Pictures(found.root, found.files[:1], found.skipped)
    with pytest.raises(UserError, match="--shard ./2: has none of the 1 images"):
        [shard_of(one, number, 2) for number in range(2)]


def test_what_is_not_its_own_is_refused(
    run: Path, four: Path, small_index: Path, tmp_path: Path
) -> None:
    pictures, out = four / "pictures", small_index
    other = tiny_run(tmp_path / "other", start=1)
    with pytest.raises(UserError, match="or with other weights of it; vectors of two models"):
        indexed(other, pictures, out)
    with pytest.raises(UserError, match="not the model that .* was made with"):
        open_index(out, str(other)).open_model()
    shutil.copytree(pictures, tmp_path / "elsewhere")
    with pytest.raises(UserError, match="elsewhere; choose another --out"):
        indexed(run, tmp_path / "elsewhere", out)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no image in it"):
        pictures_of(tmp_path / "empty")


def test_an_index_keeps_its_precision(run: Path, four: Path, tmp_path: Path) -> None:
    """And is queried in float32, on any machine."""
    out = tmp_path / "index"
    words = ["index", "--model", str(run), "--images", str(four / "pictures"), "--out", str(out)]
    words += ["--workers", "1"]
    search.main([*words, "--precision", "bf16"])
    assert read_index(out).facts.precision == "bf16"
    picture(1, 9).save(four / "pictures" / "new.png")
    search.main(words)
    facts = read_index(out).facts
    assert (facts.precision, facts.pictures) == ("bf16", 5)
    (hit,) = open_index(out).query(four / "pictures" / "new.png", k=1)
    assert hit.image_path == "new.png" and 0.99 < hit.similarity
    with pytest.raises(UserError, match="made with --precision bf16, not no; leave --precision"):
        search.main([*words, "--precision", "no"])


@pytest.mark.parametrize("name", [FACTS, f"g1/{FILES}", f"g1/{FLAT}"])
def test_a_damaged_index_is_told_by_its_file(name: str, small_index: Path) -> None:
    out = small_index
    whole = (out / name).read_bytes()
    (out / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=rf"{name}: .*index the images again"):
        open_index(out)
    (out / name).write_bytes(whole)
    facts = json.loads((out / FACTS).read_text())
    for key, value, message in (
        ("dimension", 9, FLAT),
        ("pictures", 3, FILES),
        ("version", 0, "version 0"),
    ):
        (out / FACTS).write_text(json.dumps(facts | {key: value}))
        with pytest.raises(UserError, match=message):
            open_index(out)


def words_of(run: Path, pictures: Path, out: Path) -> list[str]:
    return [
        *("index", "--model", str(run), "--images", str(pictures), "--out", str(out)),
        *("--workers", "1"),
    ]


def tree(folder: Path) -> dict[str, bytes]:
    """Each file below a folder, and what is in it."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_a_folder_of_something_else_is_refused_and_left_as_it_is(run: Path, tmp_path: Path) -> None:
    pictures, album = folder_of(tmp_path, classes=2, each=2), tmp_path / "album"
    for name in ("g1/a.png", "g7/b.png", "parts/thesis.txt", "parts/0123456789abcdef/model.json"):
        (album / name).parent.mkdir(parents=True, exist_ok=True)
        (album / name).write_text("{}")
    indexed(run, pictures, tmp_path / "shard")
    before = tree(album)
    for words in (
        words_of(run, pictures, album),
        ["merge", "--shards", str(tmp_path / "shard"), "--out", str(album)],
    ):
        with pytest.raises(
            UserError, match=r"album: not an index, but has 3 other .*\(g1, g7, parts\)"
        ):
            search.main(words)
    (album / FACTS).write_text('{"name": "of a web page"}')
    with pytest.raises(UserError, match="album/index.json: not an index of search.py"):
        search.main(words_of(run, pictures, album))
    (album / FACTS).unlink()
    assert tree(album) == before
    run_folder = tmp_path / "trained"
    shutil.copytree(run, run_folder)
    (run_folder / ".lock").touch()
    with pytest.raises(UserError, match="trained: not an index"):
        search.main(words_of(run, pictures, run_folder))


def test_what_a_user_keeps_in_an_index_survives(run: Path, tmp_path: Path) -> None:
    pictures, out = folder_of(tmp_path, classes=2, each=3), tmp_path / "index"
    search.main(words_of(run, pictures, out))
    own = {"g7/photo.png", f"g8/{FLAT}", "parts/thesis.txt", "g1/own.txt"}
    for name in own:
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_text("the user's")
    away = tmp_path / "away"
    away.mkdir()
    (away / FLAT).write_text("the user's")
    (out / "g9").symlink_to(away)
    (out / "g²").mkdir()
    picture(1, 9).save(pictures / "new.png")
    search.main(words_of(run, pictures, out))
    found = tree(out)
    assert {name for name in found if found[name] == b"the user's"} == own
    assert tree(away) == {FLAT: b"the user's"} and (out / "g²").is_dir()
    assert read_index(out).facts.pictures == 7
    # of what is ours, only the new generation is left
    assert not (out / "g1" / FLAT).exists() and os.listdir(out / PARTS) == ["thesis.txt"]

    (out / "dropped.csv").write_text("what I dropped\n")
    with pytest.raises(UserError, match="dropped.csv: would be replaced"):
        search.main(words_of(run, pictures, out))
    assert (out / "dropped.csv").read_text() == "what I dropped\n"
    (out / "dropped.csv").unlink()
    shutil.rmtree(out / PARTS)
    (out / PARTS).symlink_to(away)
    with pytest.raises(UserError, match="parts: is a symbolic link, which is not followed"):
        search.main(words_of(run, pictures, out))


@pytest.mark.parametrize("moment", ["finish", "publish"])
def test_a_first_index_that_was_killed_goes_on(
    moment: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures, out = folder_of(tmp_path, classes=2, each=2), tmp_path / "index"
    (pictures / "broken.png").write_bytes(b"no picture")

    with monkeypatch.context() as patched:
        patched.setattr(f"guie.search.building.{moment}", killed)
        with pytest.raises(KeyboardInterrupt):
            search.main(words_of(run, pictures, out))
    assert (out / PARTS).exists() and (out / "dropped.csv").exists()
    with pytest.raises(UserError, match="no index"):
        read_index(out)
    for file in pictures.rglob("*.png"):
        file.chmod(0o644)
    if moment == "publish":
        (out / "g1" / ".vectors.7.tmp.npy").touch()  # of a kill in the middle of a file

    def not_again(*given: object, **settings: object) -> None:
        raise AssertionError("embedded again")

    monkeypatch.setattr("guie.models.embedder.Embedder.forward", not_again)
    search.main(words_of(run, pictures, out))
    assert read_index(out).facts.pictures == 4 and not (out / PARTS).exists()
    assert len(list(out.glob("g*"))) == 1


def test_two_that_write_one_index_are_refused(run: Path, tmp_path: Path) -> None:
    pictures, out = folder_of(tmp_path, classes=2, each=2), tmp_path / "index"
    indexed(run, pictures, out)
    shutil.copytree(out, tmp_path / "shard")
    picture(1, 9).save(pictures / "new.png")
    before = tree(out)
    with held(out / ".index.lock", "", "", 0):
        for words in (
            words_of(run, pictures, out),
            ["merge", "--shards", str(tmp_path / "shard"), "--out", str(out)],
        ):
            with pytest.raises(
                UserError, match=r"another process writes this index \(process \d+ on"
            ):
                search.main(words)
    assert {**tree(out), ".index.lock": b""} == {**before, ".index.lock": b""}
    search.main(words_of(run, pictures, out))
    assert read_index(out).facts.pictures == 5


def test_a_merge_keeps_its_shards_and_other_indexes(four: Path, tmp_path: Path) -> None:
    shard = str(shutil.copytree(four / "index", tmp_path / "shard"))
    other = tiny_run(tmp_path / "other", start=1)
    indexed(other, four / "pictures", tmp_path / "index")
    with pytest.raises(UserError, match="is one of the shards"):
        search.main(["merge", "--shards", shard, "--out", str(tmp_path / "other" / ".." / "shard")])
    with pytest.raises(UserError, match="shard: made from another model than .*index"):
        search.main(["merge", "--shards", shard, "--out", str(tmp_path / "index")])


FALSE = {
    "pictures": ["4", True, 0],
    "dimension": [[16]],
    "model": [None],
    "generation": ["../../elsewhere/g1", "", None],
    "version": ["1"],
    "root": [7],
    "fit": ["stretch"],
    "probes": [10**30],
    "checksums": [{"a": 1}, {}],
    "sureness": [
        [],
        {"labelled": True, "pictures": 4, "similarity": [0.1, 0.2], "share": [0.1]},
    ],
}


@pytest.mark.parametrize(
    "key, value", [(key, value) for key in FALSE for value in FALSE[key]], ids=lambda v: str(v)[:20]
)
def test_a_false_value_in_the_facts_is_told_by_its_key(
    key: str, value: object, small_index: Path, tmp_path: Path
) -> None:
    out = small_index
    facts = json.loads((out / FACTS).read_text())
    shutil.copytree(out / "g1", tmp_path / "elsewhere" / "g1")
    (out / FACTS).write_text(json.dumps({**facts, key: value}))
    with pytest.raises(UserError, match=rf"{FACTS}: .*{key}"):
        open_index(out)


@pytest.mark.parametrize("text", ["", "[]", "7", "null", "{}", '"a"', "[" * 9999, "\x00", "{"])
def test_facts_that_are_none_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / FACTS).write_text(text)
    with pytest.raises(UserError, match=f"{FACTS}: not an index of search.py, or damaged"):
        open_index(tmp_path)


def flipped(file: Path) -> None:
    """One bit of the last number is another; the size is the same."""
    content = bytearray(file.read_bytes())
    content[-2] ^= 1
    file.write_bytes(content)


def test_damage_that_still_reads_is_found_by_the_checksum(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures, out = folder_of(tmp_path, classes=2, each=9), tmp_path / "index"
    words = [*words_of(run, pictures, out), "--factory", "IVF2,Flat"]
    search.main(words)
    for name in (FLAT, FILES, "vectors.faiss"):
        file = out / "g1" / name
        whole = file.read_bytes()
        flipped(file)
        with pytest.raises(UserError, match=f"g1/{name}: damaged: .* index the images again"):
            open_index(out)
        file.write_bytes(whole)
    # A large file is hashed when the index is brought up to date, not at each query.
    monkeypatch.setattr("guie.search.index.HASHED_BYTES", 0)
    flipped(out / "g1" / FLAT)
    open_index(out)
    with pytest.raises(UserError, match=f"g1/{FLAT}: damaged"):
        search.main(words)
    with pytest.raises(UserError, match=f"g1/{FLAT}: damaged"):
        search.main(["merge", "--shards", str(out), "--out", str(tmp_path / "whole")])


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
    np.testing.assert_allclose(one.vectors_ND, two.vectors_ND, atol=1e-6)
    assert one.facts.sureness == two.facts.sureness
