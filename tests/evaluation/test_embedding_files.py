"""E.npz and E.parquet: what is written is read to the bit, and bad files are refused in one line."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scored_tables import gaussian_embeddings, mixed_table

from guie.base.errors import UserError
from guie.evaluation import files
from guie.evaluation.files import load_embeddings, write_parquet

TABLE = mixed_table()
VALUES_TD = gaussian_embeddings(len(TABLE))


def write(path: Path, about: pd.DataFrame, values_ND: np.ndarray) -> Path:
    if path.suffix == ".parquet":
        write_parquet(path, about, [values_ND[:5], values_ND[5:]])
    else:
        np.savez(path, image_path=about["image_path"].to_numpy(str), embedding=values_ND)
    return path


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("name", ["E.npz", "E.parquet"])
def test_rows_are_read_in_the_tables_order_to_the_bit(name, dtype, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(files, "GROUP_BYTES", 7 * 16 * np.dtype(dtype).itemsize)
    values_TD = VALUES_TD.astype(dtype)
    other = pd.DataFrame({"image_path": ["x.jpg"], "label": "x/x", "domain": "x"})
    nans_1D = np.full((1, 16), np.nan, dtype)  # ignored, whatever it holds
    order = np.random.default_rng(1).permutation(len(TABLE))
    about = pd.concat([TABLE.iloc[order], other])
    path = write(tmp_path / name, about, np.concatenate([values_TD[order], nans_1D]))
    found_TD = load_embeddings(path, TABLE)
    np.testing.assert_array_equal(found_TD, values_TD)
    assert found_TD.dtype == dtype
    again = pd.concat([TABLE, TABLE[:3]])  # an image may have two rows of the table
    np.testing.assert_array_equal(load_embeddings(path, again)[-3:], values_TD[:3])


@pytest.mark.parametrize("name", ["E.npz", "E.parquet"])
def test_repeated_and_missing_images_are_named(name, tmp_path) -> None:
    path, first = tmp_path / name, TABLE["image_path"][0]
    write(path, pd.concat([TABLE, TABLE[:1]]), np.concatenate([VALUES_TD, VALUES_TD[:1]]))
    with pytest.raises(UserError, match=f"second embedding for 1 .*{first}"):
        load_embeddings(path, TABLE)
    write(path, TABLE[4:], VALUES_TD[4:])
    with pytest.raises(UserError, match=f"E.*: no embedding for 4 image.*{first}"):
        load_embeddings(path, TABLE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"embedding": lambda e: e.astype(np.float64)}, "float64; must be float32 or float16"),
        ({"embedding": lambda e: e[:, 0]}, "must have shapes"),
        ({"embedding": lambda e: e[:-1]}, "must have shapes"),
        ({"embedding": lambda e: e * np.nan}, "not finite"),
        ({"embedding": lambda e: e * 0}, "an embedding of zeros"),
        ({"image_path": lambda p: p.astype(bytes)}, "image_path.*must be str"),
        ({"image_path": lambda p: p.astype(object)}, "not an .npz of plain arrays"),  # a pickle
        ({"image_path": lambda p: None}, "no array 'image_path'"),
    ],
)
def test_wrong_arrays_are_refused(change, message, tmp_path) -> None:
    arrays = {"image_path": TABLE["image_path"].to_numpy(str), "embedding": VALUES_TD}
    arrays |= {name: edit(arrays[name]) for name, edit in change.items()}
    np.savez(tmp_path / "E.npz", **{k: array for k, array in arrays.items() if array is not None})
    with pytest.raises(UserError, match=f"E.npz: .*{message}"):
        load_embeddings(tmp_path / "E.npz", TABLE)


def lists(*rows: list[float | None] | None, kind: pa.DataType | None = None) -> pa.Array:
    return pa.array(rows, pa.list_(kind or pa.float32()))


@pytest.mark.parametrize(
    ("paths", "embedding", "fault"),
    [
        (None, lists([1], [1]), "not a Parquet file of embeddings .*image_path"),
        ([1, 2], lists([1, 2], [1, 2]), "not a Parquet file of embeddings .*int64"),
        (["a", "b"], lists([1], [1], kind=pa.float64()), "embedding is list<.*double>; must be"),
        (["a", "b"], pa.array([1.0, 2.0]), "embedding is double; must be a list of float32 or"),
        (["a", "b"], lists([1, 2], [1]), "lists are missing or differ in length"),
        (["a", "b"], lists([1, 2], None), "lists are missing or differ in length"),
        (["a", "b"], lists([1, None], [1, 2]), "not finite.*'a'"),
        (["a", "b"], lists([1, np.nan], [1, 2]), "not finite.*'a'"),
        (["a", "b"], lists([1, 2], [0, 0]), "zeros for 1 .*'b'"),
        (pa.array([], pa.string()), lists(), "no embedding for 2 image.s., first 'a'"),
    ],
)
def test_wrong_columns_are_refused_in_one_line(paths, embedding, fault, tmp_path) -> None:
    columns = {"image_path": paths, "embedding": embedding}
    given = pa.table({name: column for name, column in columns.items() if column is not None})
    pq.write_table(given, tmp_path / "E.parquet", row_group_size=1)
    with pytest.raises(UserError, match=f"E.parquet: .*({fault})") as refused:
        load_embeddings(tmp_path / "E.parquet", pd.DataFrame({"image_path": ["a", "b"]}))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["E.npz", "E.parquet"])
def test_a_damaged_file_is_refused(name, tmp_path) -> None:
    path = write(tmp_path / name, TABLE, VALUES_TD)
    whole = path.read_bytes()
    at = whole.index(VALUES_TD[2].tobytes())
    flipped = whole[: at + 40] + bytes([whole[at + 40] ^ 1]) + whole[at + 41 :]
    for content in (whole[: len(whole) // 2], b"", b"junk", flipped):
        path.write_bytes(content)
        with pytest.raises(UserError, match=f"{name}: not an? .*; write it with embed.py"):
            load_embeddings(path, TABLE)


def test_lists_and_strings_of_any_kind_are_read(tmp_path) -> None:
    path = tmp_path / "E.parquet"
    for kind, text in ((pa.list_, pa.large_string()), (pa.large_list, pa.string())):
        lists = pa.array(VALUES_TD.tolist(), kind(pa.float32()))
        names = pa.array(TABLE["image_path"], text)
        columns = {"embedding": lists, "other": range(len(TABLE)), "image_path": names}
        pq.write_table(pa.table(columns), path, row_group_size=50)
        np.testing.assert_array_equal(load_embeddings(path, TABLE), VALUES_TD)


class Lost:
    dtype, shape = np.dtype(np.float32), (3, 16)
    __len__ = lambda self: 3  # noqa: E731

    def __getitem__(self, rows: slice) -> np.ndarray:
        raise RuntimeError("lost")


def test_others_find_the_columns_and_a_failed_write_leaves_the_old_file(tmp_path) -> None:
    path = write(tmp_path / "E.parquet", TABLE, VALUES_TD.astype(np.float16))
    schema, whole = pq.read_schema(path), path.read_bytes()
    assert schema.field("embedding").type == pa.list_(pa.float16(), 16)
    assert schema.names == ["image_path", "embedding", "label", "domain"]
    assert pd.read_parquet(path)["label"].tolist() == TABLE["label"].tolist()
    with pytest.raises(RuntimeError, match="lost"):
        write_parquet(path, TABLE, [VALUES_TD, Lost()])
    assert path.read_bytes() == whole and [p.name for p in tmp_path.iterdir()] == ["E.parquet"]
