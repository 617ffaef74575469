"""An index is created, brought up to date, survives faults, and refuses what is not its own."""

import os
import shutil
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from PIL import Image

import search
import two_processes
from guie.base.errors import UserError
from guie.data.images import open_as_seen
from guie.search import open_index, updating
from guie.search.table import ABOUT, VECTOR, Index
from some_pictures import folder_of, indexed, picture
from tiny_runs import tiny_run


def words_of(run: Path, pictures: Path, out: Path) -> list[str]:
    words = ["index", "--model", str(run), "--images", str(pictures), "--out", str(out)]
    return [*words, "--workers", "1"]


def vectors(index: Index | Path) -> np.ndarray:
    index = index if isinstance(index, Index) else Index(index)
    return np.stack(index.read([VECTOR])[VECTOR].to_numpy())


def paths(index: Index) -> list[str]:
    return index.read(["image_path"])["image_path"].to_pylist()


@pytest.mark.parametrize("regions", [1, 5])
def test_it_is_brought_up_to_date(regions: int, run: Path, tmp_path: Path) -> None:
    pictures, out = folder_of(tmp_path, classes=2, each=3), tmp_path / "index"
    first, words = indexed(run, pictures, out, regions=regions)
    assert words == "6 new, 0 unchanged"
    before = vectors(first)
    (pictures / "right" / "0_0.png").unlink()
    picture(1, 99, (50, 30)).save(pictures / "left" / "1_0.png")
    picture(1, 7).save(pictures / "new '1'.png")
    made, words = indexed(run, pictures, out, regions=regions)
    assert words == "1 new, 1 changed, 1 removed, 4 unchanged"
    assert paths(made) == sorted(paths(made)) and "new '1'.png" in paths(made)
    np.testing.assert_array_equal(vectors(made)[2 * regions], before[2 * regions])  # left/1_2.png
    fresh, _ = indexed(run, pictures, tmp_path / "fresh", regions=regions)
    np.testing.assert_allclose(vectors(made), vectors(fresh), atol=1e-6)
    files = [open_as_seen(pictures / path) for path in paths(made)[::regions]]
    embedded = open_index(out).model.embed(files)
    np.testing.assert_allclose(vectors(made)[::regions], embedded, atol=1e-5)
    np.testing.assert_array_equal(vectors(first), before)  # an open one stays at its version
    assert indexed(run, pictures, out, regions=regions)[1] == "6 unchanged"


def test_only_new_images_are_computed_and_the_store_may_be_that_of_embed(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures, out = folder_of(tmp_path, classes=2, each=2), tmp_path / "index"
    parts = [["--shard", f"{number}/2", "--store", str(tmp_path / "rows")] for number in (1, 0)]
    for part in parts:
        search.main([*words_of(run, pictures, out), *part])
    assert not out.exists()

    def not_again(*given: object, **settings: object) -> None:
        raise AssertionError("embedded again")

    monkeypatch.setattr("guie.models.embedder.Embedder.forward", not_again)
    search.main([*words_of(run, pictures, out), *parts[0][2:]])
    (pictures / "left/1_0.png").unlink()
    shutil.move(pictures, tmp_path / "moved")  # a new root, and nothing is embedded again
    search.main(words_of(run, tmp_path / "moved", out))
    assert Index(out).images == 3 and Index(out).facts.root == str(tmp_path / "moved")


@pytest.mark.parametrize("copied", [True, False])
def test_a_picture_replaced_within_size_and_time_is_found_by_its_content(
    copied: bool, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `cp -p`, `exiftool -P` and disks with times of whole seconds leave it."""
    monkeypatch.setenv("GUIE_CHECK_CONTENT", "")
    (tmp_path / "p").mkdir()
    for name, color in (("p/0", (200, 0, 0)), ("p/1", (0, 200, 0)), ("new", (90, 90, 0))):
        Image.new("RGB", (64, 64), color).save(tmp_path / f"{name}.bmp")
    out, path = tmp_path / "index", tmp_path / "p/0.bmp"
    before, state = vectors(indexed(run, tmp_path / "p", out)[0]), path.stat()
    if copied:
        os.replace(tmp_path / "new.bmp", path)
    else:
        path.write_bytes((tmp_path / "new.bmp").read_bytes())
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert indexed(run, tmp_path / "p", out)[1] == "2 unchanged"  # size and time, by default
    monkeypatch.setenv("GUIE_CHECK_CONTENT", "1")
    made, words = indexed(run, tmp_path / "p", out)
    assert words == "1 changed, 1 unchanged"
    assert not np.allclose(vectors(made)[0], before[0], atol=1e-3)
    np.testing.assert_array_equal(vectors(made)[1], before[1])
    assert indexed(run, tmp_path / "p", out)[1] == "2 unchanged"


def test_unreadable_images_are_listed_and_a_folder_that_shrank_is_asked_about(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures, out = folder_of(tmp_path, classes=2, each=4), tmp_path / "index"
    (pictures / "left" / "broken.png").write_bytes(b"no picture")
    (pictures / "notes.txt").write_text("no picture by its name")
    search.main(words_of(run, pictures, out))
    said, listed = capsys.readouterr().out, tmp_path / "index.dropped.csv"
    assert "8 images, 16 dimensions (exact): 8 new" in said and "1 files, no image by" in said
    assert pd.read_csv(listed)["image_path"].tolist() == ["left/broken.png"]
    (pictures / "left" / "broken.png").unlink()
    (pictures / "left/1_0.png").write_bytes(b"no picture any more")
    search.main(words_of(run, pictures, out))
    assert "1 removed, 7 unchanged" in capsys.readouterr().out and listed.exists()
    listed.write_text("what I dropped\n")
    with pytest.raises(UserError, match="dropped.csv: would be replaced"):
        search.main(words_of(run, pictures, out))
    shutil.rmtree(pictures / "left")
    (pictures / "right" / "0_0.png").unlink()
    with pytest.raises(UserError, match="4 of the 7 images in .* are gone; .* --fewer"):
        indexed(run, pictures, out)
    assert indexed(run, pictures, out, fewer=True)[1] == "4 removed, 3 unchanged"


def test_labels_of_a_manifest_are_kept_and_updated(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder_of(tmp_path, classes=2, each=2)
    indexed(run, tmp_path / "m.csv", tmp_path / "index")
    table = pd.read_csv(tmp_path / "m.csv").sort_values("image_path")
    table["label"] += " new"
    table.to_csv(tmp_path / "m.csv", index=False)
    monkeypatch.setattr("guie.models.embedder.Embedder.forward", None)  # rows come from the store
    made, words = indexed(run, tmp_path / "m.csv", tmp_path / "index")
    assert words == "4 changed, 0 unchanged"
    assert made.read(ABOUT)["label"].to_pylist() == table["label"].tolist()


def test_what_is_not_its_own_is_refused(run: Path, four: Path, small_index: Path, tmp_path) -> None:
    pictures, out, album = four / "pictures", small_index, tmp_path / "album"
    with pytest.raises(UserError, match="by another model than this, or by other weights"):
        indexed(tiny_run(tmp_path / "other", start=1), pictures, out)
    with pytest.raises(UserError, match="not the model that .* was made with"):
        open_index(out, str(tmp_path / "other")).query(picture(1, 1))
    with pytest.raises(UserError, match="with --regions 1, not 5; leave --regions out"):
        indexed(run, pictures, out, regions=5)
    album.mkdir()
    (album / "photo.png").write_text("mine")
    with pytest.raises(UserError, match="album: not an index, but has 1 files .* photo.png"):
        search.main(words_of(run, pictures, album))
    assert os.listdir(album) == ["photo.png"]
    for folder in (album, tmp_path / "none"):
        with pytest.raises(UserError, match="no index; create one"):
            open_index(folder)
        assert folder == album or not folder.exists()
    for facts, fault in (({"format": 9}, "has format 9, not 2"), ({"regions": []}, "not an index")):
        broken = Index(out)
        broken.set_facts(**facts)
        with pytest.raises(UserError, match=fault):
            open_index(out)
        broken.set_facts(format=2, regions=1)
    for file in (out / "images.lance/data").iterdir():
        file.write_bytes(file.read_bytes()[:50])
    with pytest.raises(UserError, match="index: cannot be read; index the images again"):
        open_index(out)


def test_an_update_keeps_the_settings(run: Path, tmp_path: Path) -> None:
    """And an index in bf16 is queried in float32, on any machine."""
    pictures, out = folder_of(tmp_path, classes=2, each=2), tmp_path / "index"
    words = words_of(run, pictures, out)
    search.main([*words, "--precision", "bf16", "--regions", "5", "--ann"])
    picture(1, 9).save(pictures / "new.png")
    search.main(words)
    facts = Index(out).facts
    assert (facts.precision, facts.regions, facts.ann) == ("bf16", 5, True)
    (hit,) = open_index(out).query(pictures / "new.png", k=1)
    assert hit.image_path == "new.png" and 0.99 < hit.similarity
    with pytest.raises(UserError, match="with --precision bf16, not no; leave --precision out"):
        search.main([*words, "--precision", "no"])


KILLED = """
import os, sys
sys.path[:0] = {paths!r}
import pyarrow as pa, search
from guie.search import updating

batches, rows = updating._batches, updating.ROWS
updating.ROWS = 2

def killed(*given):
    for number, batch in enumerate(batches(*given)):
        yield batch
        if number:
            {death}

updating._batches = killed
search.main({words!r})
"""


@pytest.mark.parametrize(
    "first, death",
    [
        (True, "os.kill(os.getpid(), 9)"),
        (False, "os.kill(os.getpid(), 9)"),
        (False, "raise OSError(28, 'No space left')"),
    ],
)
def test_a_kill_or_a_full_disk_in_the_middle_leaves_the_index_as_it_was(
    first: bool, death: str, run: Path, tmp_path: Path
) -> None:
    pictures, out = folder_of(tmp_path, classes=2, each=4), tmp_path / "index"
    before = 0
    if not first:
        indexed(run, pictures, out)
        before = 8
        for number in range(6):
            picture(3, number).save(pictures / f"new_{number}.png")
    given = {"paths": sys.path, "death": death, "words": words_of(run, pictures, out)}
    ended = subprocess.run(
        [sys.executable, "-c", KILLED.format(**given)], capture_output=True, text=True
    )
    assert ended.returncode == (-signal.SIGKILL if "kill" in death else 1), ended.stderr
    if "kill" not in death:
        assert "UserError: " in ended.stderr and "the disk is full" in ended.stderr
    if first:
        with pytest.raises(UserError, match="no index"):
            open_index(out)
    else:
        assert Index(out).images == before
    _, words = indexed(run, pictures, out)
    assert Index(out).images == (8 if first else 14) and "new" in words


@pytest.mark.filterwarnings("ignore:optimize")  # Lance warns of versions that others may read
def test_old_versions_go_and_small_files_are_joined(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures, out = folder_of(tmp_path, classes=2, each=2), tmp_path / "index"
    indexed(run, pictures, out)
    for number in range(3):
        picture(1, 9 + number).save(pictures / f"new_{number}.png")
        indexed(run, pictures, out)
    assert Index(out).table.stats()["fragment_stats"]["num_fragments"] == 4
    monkeypatch.setattr(updating, "KEPT", timedelta(microseconds=1))
    indexed(run, pictures, out)
    table = Index(out).table
    assert table.stats()["fragment_stats"]["num_fragments"] == 1 and table.count_rows() == 7
    assert len(table.list_versions()) <= 3


@pytest.mark.slow
def test_two_processes_make_the_index_of_one(run: Path, tmp_path: Path) -> None:
    words = ["index", "--model", str(run), "--images", str(folder_of(tmp_path)), "--workers", "1"]
    search.main([*words, "--out", str(tmp_path / "one")])
    two_processes.run("search", [*words, "--out", str(tmp_path / "two")])
    one, two = (Index(tmp_path / name) for name in ("one", "two"))
    assert paths(one) == paths(two) and isinstance(one.read(ABOUT), pa.Table)
    np.testing.assert_allclose(vectors(one), vectors(two), atol=1e-6)
