"""The table of an index is checked once; later starts map it from the cache, and copy no training rows."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from accelerate import Accelerator

from guie.base.errors import UserError
from guie.base.files import cache_folder
from guie.data.dataset import classes_of, distinct_rows, rows_hash
from guie.data.manifest import Manifest, load_manifest, rows_where, table
from guie.data.manifest.reading import sidecar_path
from guie.data.shards import cached
from guie.data.shards.cached import cached_folder, open_places
from guie.data.shards.index import read_facts, write_index
from guie.rows.readable import readable
from sharded import packed


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows of each table that is checked."""
    seen, check = [], table.check

    def counted(rows: pd.DataFrame, *args: object) -> list:
        seen.append(len(rows))
        return check(rows, *args)

    monkeypatch.setattr(table, "check", counted)
    return seen


def test_it_is_checked_once(tmp_path: Path, checks: list[int]) -> None:
    _, first = packed(tmp_path)
    checks.clear()
    again = load_manifest(first.path)
    assert not checks
    pd.testing.assert_frame_equal(again.table, first.table)


def test_what_is_unusual_is_said_at_each_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, shards = packed(tmp_path)
    lines = []
    for _ in range(2):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            load_manifest(shards.path)
        lines.append(caplog.messages)
    assert lines[0] == lines[1] and "query without a positive" in lines[0][0]


def test_other_declarations_have_it_checked_again(tmp_path: Path) -> None:
    """Without its declaration, an image in train and index is a leak."""
    _, shards = packed(tmp_path)
    sidecar_path(shards.path).unlink()
    with pytest.raises(UserError, match="a leak"):
        load_manifest(shards.path)


def test_an_index_with_other_rows_is_checked_again(tmp_path: Path) -> None:
    _, shards = packed(tmp_path)
    rows = pd.read_parquet(shards.path).iloc[:-1]
    write_index(shards.path, rows, read_facts(shards.path)["shards"])
    assert len(load_manifest(shards.path).table) == len(rows)


def test_a_damaged_copy_is_made_anew(tmp_path: Path, checks: list[int]) -> None:
    _, shards = packed(tmp_path)
    copies = cache_folder().glob("shards/*/*/checked-*.arrow")  # the cache of all tests
    file = max(copies, key=lambda file: file.stat().st_mtime_ns)
    file.write_bytes(file.read_bytes()[:-20])
    checks.clear()
    pd.testing.assert_frame_equal(load_manifest(shards.path).table, shards.table)
    assert checks == [len(shards.table)]


def test_damaged_places_are_made_anew(tmp_path: Path) -> None:
    _, shards = packed(tmp_path)
    index, image = str(shards.path), shards.table["image_path"][0]
    known = open_places(index).range_of(image)
    file = cached_folder(index) / "places.arrow"
    for damage in (b"", b"\0" * 40, file.read_bytes()[:-20]):
        cached._OPEN.clear()
        file.write_bytes(damage)
        assert open_places(index).range_of(image) == known


def buffers(column: pd.Series) -> set[int]:
    """Return the addresses of a text column's memory."""
    return {buffer.address for buffer in pa.array(column).buffers() if buffer}


@pytest.mark.skipif(pd.__version__ < "3", reason="pandas 2 copies texts")
def test_the_rows_of_train_are_the_mapped_ones(tmp_path: Path) -> None:
    _, shards = packed(tmp_path)
    rows = shards.split("train")
    assert buffers(rows["image_path"]) == buffers(shards.table["image_path"])
    assert np.shares_memory(rows["mtime_ns"], shards.table["mtime_ns"])


def test_rows_of_a_mask() -> None:
    rows = pd.DataFrame({"a": range(6)})
    for wanted in ("111111", "000000", "011100", "010110", "000001"):
        mask = pd.Series([digit == "1" for digit in wanted])
        pd.testing.assert_frame_equal(rows_where(rows, mask), rows[mask].reset_index(drop=True))


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


def states(manifest: Manifest) -> pd.DataFrame:
    found = readable(
        Accelerator(cpu=True), manifest, ("train",), drop_bad=False, dropped=Path("none.csv")
    )
    return found.split("train").set_index("image_path")[["size_bytes", "mtime_ns"]]


def test_a_start_reads_the_states_of_files_and_finds_those_of_shards(tmp_path: Path) -> None:
    files, shards = packed(tmp_path)
    loose, packed_states = states(files), states(shards)
    assert loose["size_bytes"].equals(packed_states["size_bytes"][loose.index])
    for path, state in loose.iterrows():
        assert state["mtime_ns"] == files.file(path).stat().st_mtime_ns
    of_path = pd.read_parquet(shards.path).drop_duplicates("image_path").set_index("image_path")
    content = of_path["content"][packed_states.index].to_numpy()
    assert (packed_states["mtime_ns"] == content >> np.uint64(1)).all()
