"""Shards hold every image as it was; packing resumes, and destroys no file of a user."""

import io
import json
import shutil
import tarfile
from pathlib import Path

import pandas as pd
import pytest

import curate
from guie.base.errors import UserError
from guie.curation import packing
from guie.curation.indexing import DROPPED, index_tars
from guie.curation.packing import pack
from guie.data.shards.index import PARTS, claimed
from sharded import SHARD_BYTES, data_set, packed, picture_bytes, tar_of


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.suffix == ".tar"}


def test_any_tool_reads_every_image_and_its_row(tmp_path: Path) -> None:
    files, shards = packed(tmp_path)
    rows = files.table
    samples: dict[str, dict[str, bytes]] = {}
    for tar in sorted((tmp_path / "shards").glob("*.tar")):
        assert tar.stat().st_size <= SHARD_BYTES + tarfile.RECORDSIZE
        with tarfile.open(tar) as file:
            for entry in file:
                key, _, suffix = entry.name.partition(".")
                samples.setdefault(key, {})[suffix] = file.extractfile(entry).read()
    assert len(samples) == rows["image_path"].nunique() and shards.sidecar == files.sidecar
    for sample in samples.values():
        row = json.loads(sample["json"])
        assert sample["jpg"] == (files.root / row["image_path"]).read_bytes()
        written = pd.DataFrame([row, *row.pop("rows", [])]).fillna("")
        kept = rows[rows["image_path"] == row["image_path"]]
        assert written[kept.columns].to_numpy().tolist() == kept.to_numpy().tolist()


def test_an_interrupted_packing_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, _ = packed(tmp_path)
    whole, folder = contents(tmp_path / "shards"), tmp_path / "again"
    opened = []

    def stopping(path: str) -> io.BytesIO:
        opened.append(path)
        if len(opened) == 14:
            raise KeyboardInterrupt
        return io.BytesIO(Path(path).read_bytes())

    with monkeypatch.context() as patched:
        patched.setattr(packing, "open_in_shard", stopping)
        with pytest.raises(KeyboardInterrupt):
            pack(files, folder, SHARD_BYTES, 1)
    first = contents(folder)
    assert 0 < len(first) < len(whole) and not (folder / "index.parquet").exists()
    assert not list(folder.glob(".shard*"))
    (folder / ".shard-000009.77.tmp.tar").write_bytes(b"of a process that was killed")
    cut, *kept = sorted(first)
    (folder / cut).write_bytes(first[cut][:3000])
    known = {name: (folder / name).stat().st_ino for name in kept}
    index = pack(files, folder, SHARD_BYTES, 2)
    assert {name: (folder / name).stat().st_ino for name in kept} == known
    assert contents(folder) == whole and not list(folder.glob(".shard*"))
    pd.testing.assert_frame_equal(
        pd.read_parquet(index), pd.read_parquet(tmp_path / "shards/index.parquet")
    )


def test_shards_of_another_manifest_or_no_longer_whole_stay(tmp_path: Path) -> None:
    files, shards = packed(tmp_path)
    folder = shards.path.parent
    before = contents(folder)
    with pytest.raises(UserError, match=r"shards.*(write elsewhere|delete)"):
        pack(files, folder, SHARD_BYTES // 2, 1)
    tar = folder / "shard-000001.tar"
    for damage in (lambda: tar.write_bytes(before[tar.name][:3000]), tar.unlink):
        damage()
        with pytest.raises(UserError, match=r"shard-000001.tar is missing or damaged \(1 of"):
            pack(files, folder, SHARD_BYTES, 1)
    tar.write_bytes(before[tar.name])
    shards.path.unlink()
    with pytest.raises(UserError, match=r"shards.*(write elsewhere|delete)"):
        pack(files, folder, SHARD_BYTES // 2, 1)
    assert contents(folder) == before


def test_an_image_or_a_disk_that_cannot_be_packed_is_named(tmp_path: Path, monkeypatch) -> None:
    files, shards = data_set(tmp_path / "files"), tmp_path / "shards"
    usage = shutil.disk_usage(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
        with pytest.raises(UserError, match="the disk has 1,000 free"):
            pack(files, shards, SHARD_BYTES, 1)
    with monkeypatch.context() as patched:
        patched.setattr(packing, "open_in_shard", lambda path: io.BytesIO(b"shorter"))
        with pytest.raises(UserError, match=r"\.v1\.jpg: changed while it was packed"):
            pack(files, shards, SHARD_BYTES, 1)
    files.file("train/00.v1.jpg").write_bytes(picture_bytes(0)[:700])
    with pytest.raises(UserError, match=r"train/00\.v1\.jpg"):
        pack(files, tmp_path / "others", SHARD_BYTES, 1)
    assert not contents(shards) and not (tmp_path / "others").exists()


def test_curate_packs_a_cleaned_mix_once(tmp_path: Path) -> None:
    """The index keeps the pixel digests of the cleaning."""
    files, out = data_set(tmp_path / "files"), tmp_path / "out"
    (tmp_path / "mix.yaml").write_text(
        f"""
name: mix
out: {tmp_path}/mix.csv
clean: {{}}
val_fraction: 0
features: {tmp_path}/features
sources: [{{kind: manifest, path: {files.path}}}]
"""
    )
    shards = ["--shards", str(out), "--shard-mb", "0.02", "--workers", "1"]
    curate.main(["--config", str(tmp_path / "mix.yaml"), *shards])
    before = {file: file.stat().st_mtime_ns for file in out.iterdir()}
    assert pd.read_parquet(out / "index.parquet")["pixels"].str.len().eq(32).all()
    curate.main(["--manifest", str(tmp_path / "mix.csv"), *shards])
    assert {file: file.stat().st_mtime_ns for file in out.iterdir()} == before


BROKEN = ("a/1.jpg", picture_bytes(1)[:300])


def tars(folder: Path) -> Path:
    """A folder of one tar, with a good image and a broken one."""
    tar_of(folder / "a.tar", [("a/0.jpg", picture_bytes(0)), BROKEN])
    return folder


def test_files_of_a_user_stay(tmp_path: Path) -> None:
    """Also in the folder of our own name, where a killed process has left its work."""
    folder, shards = tars(tmp_path / "tars"), tmp_path / "shards"
    mine = [".parts/notes.txt", f"{PARTS}/notes.txt", f"{PARTS}/a/b.parquet"]
    for place in (folder, shards):
        with pytest.raises(KeyError), claimed(place):
            raise KeyError("killed")
        for name in mine:
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text("mine")
    index_tars(folder, "art", "train", 1)
    pack(data_set(tmp_path / "files"), shards, SHARD_BYTES, 1)
    for place in (folder, shards):
        assert all((place / name).read_text() == "mine" for name in mine)
        assert (place / "index.parquet").exists() and not (place / PARTS / "lock").exists()
        assert not list((place / PARTS).glob("*.tar*"))


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


def test_packing_replaces_no_companion_of_a_user(tmp_path: Path) -> None:
    shards = tmp_path / "shards"
    shards.mkdir()
    (shards / ".shard-notes.tmp.tar").write_text("mine")
    for name in ("index.sidecar.yaml", "index.boxes.csv"):
        (shards / name).write_text("mine")
        with pytest.raises(UserError, match=f"{name}: would be replaced"):
            pack(data_set(tmp_path / "files"), shards, SHARD_BYTES, 1)
        (shards / name).unlink()
    pack(data_set(tmp_path / "files"), shards, SHARD_BYTES, 1)
    assert (shards / ".shard-notes.tmp.tar").read_text() == "mine"


def test_of_two_that_index_one_folder_one_is_refused_and_the_index_is_the_others(tmp_path):
    tars(tmp_path)
    with claimed(tmp_path), pytest.raises(UserError, match="another process writes its index"):
        curate.main(["--index-shards", str(tmp_path), "--domain", "b"])
    index_tars(tmp_path, "first", "train", 1)
    with pytest.raises(UserError, match="exists; delete it"):
        index_tars(tmp_path, "second", "test", 1)
    assert set(pd.read_parquet(tmp_path / "index.parquet")["domain"]) == {"first"}
