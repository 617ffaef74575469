"""Embeddings as Parquet: what is written is read to the bit, and bad files are refused in one line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scored_tables import gaussian_embeddings, mixed_table

import validate
from guie.base.errors import UserError
from guie.evaluation import files
from guie.evaluation.files import load_embeddings, write_parquet


def of(table: pd.DataFrame, dtype: type = np.float32) -> np.ndarray:
    return gaussian_embeddings(len(table)).astype(dtype)


def written(folder: Path, table: pd.DataFrame, values_TD: np.ndarray | None = None) -> Path:
    path = folder / "E.parquet"
    write_parquet(path, table, [of(table) if values_TD is None else values_TD])
    return path


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_it_is_read_in_the_tables_order_to_the_bit(dtype, tmp_path, monkeypatch) -> None:
    table = mixed_table()
    table = table.drop_duplicates("image_path")
    monkeypatch.setattr(files, "GROUP_BYTES", 7 * 16 * np.dtype(dtype).itemsize)
    values_TD = of(table, dtype)
    others = pd.DataFrame({"image_path": ["x.jpg"], "label": "x/x", "domain": "x"})
    nans_1D = np.full((1, 16), np.nan, dtype)  # ignored, whatever it holds
    order = np.random.default_rng(1).permutation(len(table))
    path = tmp_path / "E.parquet"
    about = pd.concat([table.iloc[order], others])
    write_parquet(path, about, [values_TD[order], nans_1D])
    assert pq.read_metadata(path).num_row_groups == -(-len(table) // 7) + 1
    found_TD = load_embeddings(path, table)
    np.testing.assert_array_equal(found_TD, values_TD)
    assert found_TD.dtype == dtype
    again = pd.concat([table, table[:3]])  # an image may stand in two rows
    np.testing.assert_array_equal(load_embeddings(path, again)[-3:], values_TD[:3])


def test_its_columns_are_those_that_others_expect(tmp_path) -> None:
    schema = pq.read_schema(written(tmp_path, mixed_table(), of(mixed_table(), np.float16)))
    assert schema.field("embedding").type == pa.list_(pa.float16(), 16)
    assert schema.names == ["image_path", "embedding", "label", "domain"]
    assert (
        pd.read_parquet(tmp_path / "E.parquet")["label"].tolist() == mixed_table()["label"].tolist()
    )


def test_lists_of_any_kind_are_read(tmp_path) -> None:
    table = mixed_table()
    for kind in (pa.list_, pa.large_list):
        lists = pa.array(of(table).tolist(), kind(pa.float32()))
        columns = {"embedding": lists, "other": range(len(table))}
        pq.write_table(
            pa.table({**columns, "image_path": table["image_path"]}), tmp_path / "E.parquet"
        )
        np.testing.assert_array_equal(load_embeddings(tmp_path / "E.parquet", table), of(table))


def lists(*rows: list[float | None] | None, kind: pa.DataType | None = None) -> pa.Array:
    return pa.array(rows, pa.list_(kind or pa.float32()))


A_AND_B = pa.array(["a", "b"])


@pytest.mark.parametrize(
    ("columns", "fault"),
    [
        ({"path": A_AND_B}, "no column 'image_path', or two; it has path; write it with embed.py"),
        ({"image_path": A_AND_B}, "no column 'embedding', or two; it has image_path"),
        ({"image_path": pa.array([1, 2])}, "no column 'embedding'"),
        (
            {"image_path": pa.array([1, 2]), "embedding": lists([1, 2], [1, 2])},
            "image_path is int64; must be string",
        ),
        (
            {"image_path": A_AND_B, "embedding": lists([1], [1], kind=pa.float64())},
            "embedding is list<.*double>; must be a list of float32 or float16",
        ),
        (
            {"image_path": A_AND_B, "embedding": pa.array([1.0, 2.0])},
            "embedding is double; must be a list",
        ),
        (
            {"image_path": A_AND_B, "embedding": lists([1, 2], [1])},
            "lists, or of different lengths .2, 1.",
        ),
        ({"image_path": A_AND_B, "embedding": lists([1, 2], None)}, "empty or missing lists, or"),
        ({"image_path": A_AND_B, "embedding": lists([], [])}, "empty or missing lists, or"),
        ({"image_path": A_AND_B, "embedding": lists([1, None], [1, 2])}, "1 number.s. missing"),
        ({"image_path": A_AND_B, "embedding": lists([1, np.nan], [1, 2])}, "not finite.*'a'"),
        ({"image_path": A_AND_B, "embedding": lists([1, 2], [0, 0])}, "zeros for 1 .*'b'"),
        (
            {"image_path": pa.array(["a", "a"]), "embedding": lists([1, 2], [1, 2])},
            "a second embedding for 1 image.s., first 'a'",
        ),
        (
            {"image_path": pa.array(["a", "c"]), "embedding": lists([1, 2], [1, 2])},
            "no embedding for 1 image.s., first 'b'; embed this manifest and split",
        ),
        (
            {"image_path": pa.array([], pa.string()), "embedding": lists()},
            "no embedding for 2 image",
        ),
    ],
)
def test_bad_files_are_refused_in_one_line(columns, fault, tmp_path) -> None:
    path = tmp_path / "E.parquet"
    pq.write_table(pa.table(columns), path)
    with pytest.raises(UserError, match=f"E.parquet: .*({fault})") as refused:
        load_embeddings(path, pd.DataFrame({"image_path": ["a", "b"]}))
    assert "\n" not in str(refused.value)


def test_lists_that_differ_between_row_groups_are_refused(tmp_path) -> None:
    columns = {"image_path": A_AND_B, "embedding": lists([1, 2], [1])}
    pq.write_table(pa.table(columns), tmp_path / "E.parquet", row_group_size=1)
    with pytest.raises(UserError, match="of different lengths .2, 1."):
        load_embeddings(tmp_path / "E.parquet", pd.DataFrame({"image_path": ["a", "b"]}))


def test_a_damaged_file_is_refused(tmp_path) -> None:
    table = mixed_table()
    path = written(tmp_path, table)
    whole = path.read_bytes()
    values = of(table).tobytes()
    at = whole.index(values[:64])
    flipped = whole[: at + 40] + bytes([whole[at + 40] ^ 1]) + whole[at + 41 :]
    for content in (whole[:-1], whole[: len(whole) // 2], whole[:8], b"", b"PAR1PAR1", flipped):
        path.write_bytes(content)
        with pytest.raises(UserError, match="E.parquet: not a Parquet file, or damaged; write"):
            load_embeddings(path, table)
    with pytest.raises(UserError, match="gone.parquet: cannot be read .No such file"):
        load_embeddings(tmp_path / "gone.parquet", table)


def test_a_failed_write_leaves_the_old_file(tmp_path) -> None:
    path = written(tmp_path, mixed_table())
    whole = path.read_bytes()
    with pytest.raises(RuntimeError, match="lost"):
        write_parquet(path, mixed_table(), [of(mixed_table()), Lost()])
    assert path.read_bytes() == whole and [p.name for p in tmp_path.iterdir()] == ["E.parquet"]


class Lost:
    dtype, shape = np.dtype(np.float32), (3, 16)
    __len__ = lambda self: 3  # noqa: E731

    def __getitem__(self, rows: slice) -> np.ndarray:
        raise RuntimeError("lost")


def test_validate_reports_the_same(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    table = mixed_table().assign(split="test")
    table.to_csv("m.csv", index=False)
    np.savez("E.npz", image_path=table["image_path"].to_numpy(str), embedding=of(table))
    written(tmp_path, table)
    reports = []
    for name in ("E.npz", "E.parquet"):
        words = ["--embeddings", name, "--manifest", "m.csv", "--draws", "50"]
        validate.main([*words, "--out", "report.json"])
        reports.append(json.loads(Path("report.json").read_text().replace(name, "E")))
    assert reports[0] == reports[1]
