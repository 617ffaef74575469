"""An index takes the place of a manifest, and an image in a shard that of a file."""

import hashlib
import logging
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import curate
from guie.base.errors import UserError
from guie.curation.packing import pack
from guie.data.dataset import classes_of, distinct_rows, rows_hash
from guie.data.images import open_as_host, open_as_seen
from guie.data.manifest import Manifest, load_manifest, save_manifest
from guie.data.manifest.reading import sidecar_path
from guie.data.shards import index as shard_index
from guie.data.shards.index import cached_folder, open_places, read_facts, write_index
from guie.rows.states import States, states
from sharded import SHARD_BYTES, data_set, packed

IMAGE = "val/02.v1.jpg"


def states_of(manifest: Manifest) -> States:
    return states(manifest.root, manifest.table["image_path"])


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


def test_an_index_may_be_the_root_and_a_folder_may_be_named_like_one(tmp_path: Path) -> None:
    files, shards = packed(tmp_path)
    save_manifest(files.table.iloc[3:9], tmp_path / "some.csv", files.sidecar)
    some = load_manifest(tmp_path / "some.csv", shards.path)
    for image_path in some.table["image_path"]:
        assert open_as_seen(some.file(image_path)) == open_as_seen(files.file(image_path))
    with pytest.raises(UserError, match="leave out the root"):
        load_manifest(shards.path, tmp_path)
    folder = data_set(tmp_path / "odd.parquet")
    assert states_of(folder).readable_N.all()
    assert open_as_seen(folder.file(IMAGE)).size == (30, 24)


def test_an_index_that_is_replaced_is_read_anew(tmp_path: Path) -> None:
    files, shards = packed(tmp_path)
    assert open_as_seen(shards.file(IMAGE))
    shutil.rmtree(tmp_path / "shards")
    files.file(IMAGE).write_bytes(files.file("val/06.v1.jpg").read_bytes())
    again = load_manifest(pack(load_manifest(files.path), tmp_path / "shards", 9000, 1))
    assert open_as_seen(again.file(IMAGE)) == open_as_seen(again.file("val/06.v1.jpg"))


def test_a_shard_that_is_missing_cut_or_changed_is_refused(tmp_path: Path) -> None:
    """A missing or truncated one before the first step."""
    _, shards = packed(tmp_path)
    row = pd.read_parquet(shards.path).set_index("image_path").loc[IMAGE]
    tar, end = shards.path.parent / row["shard"], row["offset"] + row["size"]
    whole = tar.read_bytes()
    tar.write_bytes(whole[:5000])
    with pytest.raises(UserError, match=rf"index.parquet: {tar.name} is 5,000 bytes long"):
        states_of(shards)
    tar.unlink()
    with pytest.raises(UserError, match=rf"index.parquet: {tar.name} is missing"):
        states_of(shards)
    with pytest.raises(UserError, match=rf"{tar.name}: no such shard"):
        open_as_seen(shards.file(IMAGE))
    tar.write_bytes(whole[: end - 3])
    with pytest.raises(UserError, match=rf"{tar.name}: ends at byte .* cut short"):
        open_as_seen(shards.file(IMAGE))
    tar.write_bytes(whole[: end - 5] + bytes([whole[end - 5] ^ 1]) + whole[end - 4 :])
    with pytest.raises(UserError, match=rf"{tar.name}: the bytes from .* are not those of"):
        open_as_seen(shards.file(IMAGE))
    tar.write_bytes(whole)
    assert states_of(shards).readable_N.all() and open_as_seen(shards.file(IMAGE))
    with pytest.raises(UserError, match="index.parquet: has no image 'val/99.jpg'"):
        open_as_seen(shards.file("val/99.jpg"))
    assert states(shards.root, ["val/99.jpg"]).size_N.tolist() == [-1]


SPOILT = {
    "shards climb out": (lambda t, s: (t, [s[0], *map(climbing, s[1:])]), "leaves the folder"),
    "unlisted": (lambda t, s: (t, s[1:]), "is not in its list"),
    "outside": (lambda t, s: (t.assign(offset=t["offset"] + 10**6), s), "outside its shard"),
    "empty": (lambda t, s: (t.assign(size=0), s), "outside its shard"),
    "two places": (lambda t, s: (t.assign(image_path="a.jpg"), s), "already in row|two places"),
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
    pd.read_parquet(shards.path).to_parquet(shards.path)
    with pytest.raises(UserError, match=r"index.parquet: not an index of shards"):
        load_manifest(shards.path)


def test_what_is_unusual_is_said_at_each_start_and_a_damaged_copy_is_made_anew(tmp_path, caplog):
    _, first = packed(tmp_path)
    known, places = first.table, open_places(str(first.path)).range_of(IMAGE)
    (file,) = cached_folder(str(first.path)).glob("checked-*.arrow")
    for _ in range(2):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            pd.testing.assert_frame_equal(load_manifest(first.path).table, known)
        assert "query without a positive" in caplog.messages[0]
        file.write_bytes(file.read_bytes()[:-20])
    file = file.with_name("places.arrow")
    for damage in (b"", b"\0" * 40, file.read_bytes()[:-20]):
        shard_index._OPEN.clear()
        file.write_bytes(damage)
        assert open_places(str(first.path)).range_of(IMAGE) == places


def test_an_index_with_other_rows_or_declarations_is_checked_again(tmp_path: Path) -> None:
    """Without its declaration, an image in train and index is a leak."""
    _, shards = packed(tmp_path)
    rows = pd.read_parquet(shards.path).iloc[:-1]
    write_index(shards.path, rows, read_facts(shards.path)["shards"])
    assert len(load_manifest(shards.path).table) == len(rows)
    sidecar_path(shards.path).unlink()
    with pytest.raises(UserError, match="a leak"):
        load_manifest(shards.path)


def test_the_hash_of_the_rows_is_that_of_a_whole_table() -> None:
    rng = np.random.default_rng(0)
    stages = [
        pd.DataFrame({"image_path": [f"{n}/{i}" for i in range(size)], "label": "l", "domain": "d"})
        for n, size in enumerate((25_001, 10_000, 3))
    ]
    stages[0]["weight"] = rng.random(len(stages[0]))  # generic images have none
    whole = pd.util.hash_pandas_object(pd.concat(stages), index=False).to_numpy()
    assert rows_hash(stages) == hashlib.sha256(whole.tobytes()).hexdigest()[:16]


def test_an_image_of_several_stages_counts_once() -> None:
    domains = [f"d{number % 3}" for number in range(50)]
    rows = pd.DataFrame(
        {
            "image_path": [f"{number}.jpg" for number in range(50)],
            "label": [f"{domain}/{n * n % 7}" for n, domain in enumerate(domains)],
            "domain": domains,
        }
    )
    stages = [rows[rows["domain"].isin(some)] for some in (("d1",), ("d0", "d1"), ("d0", "d2"))]
    once = pd.concat(stages).drop_duplicates("image_path")
    assert distinct_rows(stages)["image_path"].tolist() == once["image_path"].tolist()
    found, groups = classes_of(distinct_rows(stages)), once.groupby("label")
    assert found.labels == sorted(set(once["label"]))
    assert found.sizes == groups.size().tolist()
    assert found.domains == groups["domain"].first().tolist()
