"""An index stands in for a manifest, an image in a shard for a file; what does not fit is said in a line."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import curate
from guie.base.errors import UserError
from guie.config.stages import AugmentConfig
from guie.curation.packing import pack
from guie.data.augmentation import Augment
from guie.data.dataset import TrainDataset
from guie.data.images import open_as_host, open_as_seen
from guie.data.manifest import Manifest, load_manifest, save_manifest
from guie.data.preprocess import Preprocess
from guie.data.shards.index import read_facts, write_index
from guie.rows import readable
from guie.rows.filling import OnCores
from guie.rows.readable import find_unreadable
from guie.rows.states import States, states
from sharded import SHARD_BYTES, data_set, packed


def states_of(manifest: Manifest) -> States:
    return states(manifest.root, manifest.table["image_path"])


def test_samples_are_the_same_from_files_and_shards(tmp_path: Path) -> None:
    augment, preprocess = (
        Augment(AugmentConfig(flip=0.5, color=0.3)),
        Preprocess(32, [0.5] * 3, [0.2] * 3),
    )
    several = [
        TrainDataset(rows, sorted(set(rows["label"])), m.root, augment, preprocess, (0, 0))
        for m in packed(tmp_path)
        for rows in [m.split("train")]
    ]
    for row in range(len(several[0])):
        one, other = (data[3, 1, row] for data in several)
        assert (one["image"] == other["image"]).all() and one["label"] == other["label"]


def test_a_mix_of_files_and_several_shards(tmp_path: Path) -> None:
    """curate.py reads an index as a source; image_path then goes through it."""
    files, shards = packed(tmp_path)
    (tmp_path / "mix.yaml").write_text(
        f"""
name: mix
out: {tmp_path}/mix.csv
val_fraction: 0
sources:
  - {{kind: manifest, path: {files.path}}}
  - {{kind: manifest, path: {shards.path}}}
"""
    )
    curate.main(["--config", str(tmp_path / "mix.yaml"), "--workers", "1"])
    mix = load_manifest(tmp_path / "mix.csv")
    assert len(mix.table) == 2 * len(files.table)
    assert states_of(mix).readable_N.all()
    path = "shards/index.parquet/val/02.v1.jpg"
    assert path in set(mix.table["image_path"])
    assert open_as_host(mix.root / path) == open_as_host(files.root / "val/02.v1.jpg")
    # and such a mix may be packed again
    again = load_manifest(pack(mix, tmp_path / "again", SHARD_BYTES, 1))
    assert open_as_host(again.root / path) == open_as_host(files.root / "val/02.v1.jpg")


def test_a_manifest_may_name_the_index_as_its_root(tmp_path: Path) -> None:
    files, shards = packed(tmp_path)
    save_manifest(files.table.iloc[3:9], tmp_path / "some.csv", files.sidecar)
    some = load_manifest(tmp_path / "some.csv", shards.path)
    for image_path in some.table["image_path"]:
        assert open_as_seen(some.file(image_path)) == open_as_seen(files.file(image_path))


def test_images_that_the_packer_decoded_are_not_decoded_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, shards = packed(tmp_path)
    decoded, compute = [], OnCores.__call__

    def counted(cores, blocks, *more):
        decoded.extend(cores.items[row] for block in blocks for row in block)
        compute(cores, blocks, *more)

    monkeypatch.setattr(OnCores, "__call__", counted)
    look = (shards.table, shards.root, 1)
    assert find_unreadable(*look).empty and not decoded
    monkeypatch.setattr(readable, "VERSION", "another Pillow")
    assert find_unreadable(*look).empty
    assert set(decoded) == set(shards.table["image_path"])


def test_a_folder_named_like_an_index_is_a_folder(tmp_path: Path) -> None:
    files = data_set(tmp_path / "odd.parquet")
    assert states_of(files).readable_N.all()
    assert open_as_seen(files.file("val/02.v1.jpg")).size == (30, 24)


def test_an_index_that_is_replaced_is_read_anew(tmp_path: Path) -> None:
    _, shards = packed(tmp_path)
    assert open_as_seen(shards.file("val/02.v1.jpg"))
    shutil.rmtree(tmp_path / "shards")
    (tmp_path / "files/val/02.v1.jpg").write_bytes((tmp_path / "files/val/06.v1.jpg").read_bytes())
    again = load_manifest(
        pack(load_manifest(tmp_path / "files/m.csv"), tmp_path / "shards", 9000, 1)
    )
    seen = [np.asarray(open_as_seen(again.file(f"val/{name}.v1.jpg"))) for name in ("02", "06")]
    assert (seen[0] == seen[1]).all()


def shard_of(manifest: Manifest, image_path: str) -> tuple[Path, int, int]:
    row = pd.read_parquet(manifest.path).set_index("image_path").loc[image_path]
    return manifest.path.parent / row["shard"], int(row["offset"]), int(row["size"])


def test_a_missing_or_truncated_shard_is_said_before_the_first_step(tmp_path: Path) -> None:
    _, shards = packed(tmp_path)
    tar, _, _ = shard_of(shards, "val/02.v1.jpg")
    whole = tar.read_bytes()
    tar.write_bytes(whole[:5000])
    with pytest.raises(UserError, match=rf"index.parquet: {tar.name} is 5,000 bytes long"):
        states_of(shards)
    tar.unlink()
    with pytest.raises(UserError, match=rf"index.parquet: {tar.name} is missing"):
        states_of(shards)
    with pytest.raises(UserError, match=rf"{tar.name}: no such shard"):
        open_as_seen(shards.file("val/02.v1.jpg"))
    tar.write_bytes(whole)
    states_of(shards)


def test_a_shard_that_is_cut_while_it_is_read(tmp_path: Path) -> None:
    _, shards = packed(tmp_path)
    tar, offset, size = shard_of(shards, "val/02.v1.jpg")
    tar.write_bytes(tar.read_bytes()[: offset + size - 3])
    with pytest.raises(UserError, match=rf"{tar.name}: ends at byte .* cut short"):
        open_as_seen(shards.file("val/02.v1.jpg"))


def test_other_bytes_than_indexed_are_refused(tmp_path: Path) -> None:
    _, shards = packed(tmp_path)
    tar, offset, size = shard_of(shards, "val/02.v1.jpg")
    data = bytearray(tar.read_bytes())
    data[offset + size // 2] ^= 1
    tar.write_bytes(data)
    with pytest.raises(
        UserError, match=rf"{tar.name}: the bytes from .* are not those of the index"
    ):
        open_as_seen(shards.file("val/02.v1.jpg"))


def test_an_image_that_the_index_lacks(tmp_path: Path) -> None:
    _, shards = packed(tmp_path)
    with pytest.raises(UserError, match="index.parquet: has no image 'val/99.jpg'"):
        open_as_seen(shards.file("val/99.jpg"))
    assert states(shards.root, ["val/99.jpg"]).size_N.tolist() == [-1]


def test_a_root_is_refused_where_the_index_has_one(tmp_path: Path) -> None:
    _, shards = packed(tmp_path)
    with pytest.raises(UserError, match="leave out the root"):
        load_manifest(shards.path, tmp_path)


SPOILT = {
    "shards climb out": (lambda t, s: (t, [s[0], *map(climbing, s[1:])]), "leaves the folder"),
    "unlisted": (lambda t, s: (t, s[1:]), "is not in its list"),
    "outside": (lambda t, s: (t.assign(offset=t["offset"] + 10**6), s), "outside its shard"),
    "before": (lambda t, s: (t.assign(offset=-5), s), "outside its shard"),
    "empty": (lambda t, s: (t.assign(size=0), s), "outside its shard"),
    "two places": (
        lambda t, s: (t.assign(image_path="a.jpg", split="train", role="train"), s),
        "already in row 0|at two places",
    ),
}


def climbing(shard):
    return type(shard)(f"../{shard.name}", shard.size, shard.sha256)


@pytest.mark.parametrize("case", SPOILT)
def test_a_spoilt_index_is_refused_in_a_line(tmp_path: Path, case: str) -> None:
    _, shards = packed(tmp_path)
    spoil, message = SPOILT[case]
    table = pd.read_parquet(shards.path)
    write_index(shards.path, *spoil(table, read_facts(shards.path)["shards"]))
    with pytest.raises(UserError, match=message):
        states_of(load_manifest(shards.path))


def test_a_parquet_with_such_columns_is_no_index(tmp_path: Path) -> None:
    _, shards = packed(tmp_path)
    shutil.copy(shards.path.with_suffix(".sidecar.yaml"), tmp_path / "other.sidecar.yaml")
    pd.read_parquet(shards.path).to_parquet(tmp_path / "other.parquet")
    with pytest.raises(UserError, match=r"other.parquet: not an index of shards"):
        load_manifest(tmp_path / "other.parquet")
