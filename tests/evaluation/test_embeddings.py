"""Embeddings in files: what is read, and what is refused by name."""

from __future__ import annotations

import os
import zipfile
from argparse import Namespace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scored_tables import gaussian_embeddings, mixed_table, table_of

from guie.base.errors import UserError
from guie.data.manifest import Manifest, Sidecar
from guie.evaluation.files import load_embeddings
from guie.evaluation.reduction import joined, read_embeddings, reduced
from guie.report.scoring import embeddings_of


def arrays_for(table, dtype=np.float32):
    paths = table["image_path"].to_numpy(dtype=str)
    return {"image_path": paths, "embedding": gaussian_embeddings(len(table)).astype(dtype)}


@pytest.fixture
def align(tmp_path):
    """Write arrays as E.npz, and read them for a table."""

    def through_a_file(arrays, table):
        np.savez(tmp_path / "E.npz", **arrays)
        return load_embeddings(tmp_path / "E.npz", table)

    return through_a_file


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_align_is_free_in_order_and_ignores_what_the_table_does_not_name(dtype, align):
    table = mixed_table()
    arrays = arrays_for(table, dtype)
    expected_TD = arrays["embedding"]
    unknown = np.full((1, 16), np.nan, dtype)  # ignored, whatever it holds
    arrays = {
        "image_path": np.append(arrays["image_path"], "train/x.jpg"),
        "embedding": np.concatenate([arrays["embedding"], unknown]),
    }
    order = np.random.default_rng(1).permutation(len(table) + 1)
    found_TD = align({key: array[order] for key, array in arrays.items()}, table)
    np.testing.assert_array_equal(found_TD, expected_TD)
    assert found_TD.dtype == dtype


def test_an_image_may_stand_in_two_rows_of_the_table(align):
    table = table_of(
        ("a.jpg", "d/a", "query"), ("b.jpg", "d/b", "index"), ("a.jpg", "d/a", "index")
    )
    arrays = {"image_path": np.array(["b.jpg", "a.jpg"]), "embedding": np.eye(2, dtype="f4")}
    assert align(arrays, table).tolist() == [[0, 1], [1, 0], [0, 1]]


def test_a_repeated_image_is_refused(align):
    table = mixed_table()
    twice = {key: np.concatenate([array, array[5:6]]) for key, array in arrays_for(table).items()}
    with pytest.raises(UserError, match=f"second embedding for 1 .*{table['image_path'][5]}"):
        align(twice, table)


def test_missing_images_are_counted_and_the_first_named(align):
    table = mixed_table()
    arrays = {key: array[4:] for key, array in arrays_for(table).items()}
    with pytest.raises(UserError, match=f"E.npz.*for 4 image.*{table['image_path'][0]}"):
        align(arrays, table)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"embedding": lambda e: e.astype(np.float64)}, "float64.*must be float32 or float16"),
        ({"embedding": lambda e: e.astype(np.int32)}, "int32.*must be float32 or float16"),
        ({"embedding": lambda e: e[:, 0]}, "must have shape"),
        ({"embedding": lambda e: e[:-1]}, "must have shape"),
        ({"embedding": lambda e: e[:, :0]}, "must have shape"),
        ({"embedding": lambda e: e * np.nan}, "not finite"),
        ({"embedding": lambda e: e * 0}, "an embedding of zeros"),
        ({"image_path": lambda p: p.astype(bytes)}, "image_path.*must be str"),
        ({"image_path": lambda p: np.arange(len(p))}, "image_path.*must be str"),
        ({"image_path": lambda p: p[:, None]}, "image_path.*must be str"),
    ],
)
def test_wrong_arrays_are_refused(change, message, align):
    table = mixed_table()
    arrays = arrays_for(table)
    arrays |= {key: edit(arrays[key]) for key, edit in change.items()}
    with pytest.raises(UserError, match=message):
        align(arrays, table)


@pytest.mark.parametrize("key", ["image_path", "embedding"])
def test_a_missing_array_is_named(key, align):
    table = mixed_table()
    arrays = arrays_for(table)
    del arrays[key]
    with pytest.raises(UserError, match=f"no array '{key}'"):
        align(arrays, table)


@pytest.mark.parametrize("content", [None, b"", b"junk", b"PK\x03\x04 cut short"])
def test_a_file_that_is_no_npz_is_refused(content, tmp_path):
    path = tmp_path / "E.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match="E.npz: (cannot be read|not an .npz)"):
        load_embeddings(path, mixed_table())


def test_pickled_objects_are_refused_and_not_run(tmp_path):
    table = mixed_table()
    arrays = arrays_for(table)
    arrays["image_path"] = arrays["image_path"].astype(object)
    np.savez(tmp_path / "E.npz", **arrays)
    with pytest.raises(UserError, match="not an .npz of plain arrays"):
        load_embeddings(tmp_path / "E.npz", table)


def npy(shape: str, descr: str = "'<f4'", data: bytes = b"") -> bytes:
    """An array's file with a header that claims what it likes."""
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + data


@pytest.mark.parametrize(
    ("embedding", "fault"),
    [
        (npy(f"({10**12}, 64)"), "does not fit into memory"),
        (npy(f"({10**30}, 64)"), "not an .npz of plain arrays"),
        (npy("(100, 64)"), "not an .npz of plain arrays"),
        (npy("(-1, 64)"), "not an .npz of plain arrays"),
        (npy("()", data=b"1234"), r"shape \[\]; must have shape"),
        (npy("(2,)", "'|O'"), "not an .npz of plain arrays"),
        (npy("(" + "(" * 5_000), "not an .npz of plain arrays"),
        (b"not an array", "not an .npz of plain arrays"),
    ],
)
def test_a_header_that_claims_too_much_is_refused_in_one_line(embedding, fault, tmp_path):
    path, table = tmp_path / "E.npz", mixed_table()
    np.savez(path, image_path=arrays_for(table)["image_path"])
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("embedding.npy", embedding)
    with pytest.raises(UserError, match=f"E.npz: .*{fault}") as refused:
        load_embeddings(path, table)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("keep", [0.3, 0.9, 0.999])
def test_a_file_that_was_cut_is_refused(keep, tmp_path):
    path, table = tmp_path / "E.npz", mixed_table()
    np.savez(path, **arrays_for(table))
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])
    with pytest.raises(UserError, match="not an .npz of plain arrays"):
        load_embeddings(path, table)


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "E.npz")
    with pytest.raises(UserError, match="E.npz: not a regular file"):
        load_embeddings(tmp_path / "E.npz", mixed_table())


RNG = np.random.default_rng(0)
A_ND = RNG.normal(size=(40, 6)).astype(np.float32)
B_ND = 9 * RNG.normal(size=(40, 6)).astype(np.float32)


def unit(emb_ND: np.ndarray) -> np.ndarray:
    return emb_ND / np.linalg.norm(emb_ND, axis=1, keepdims=True)


def test_joins_are_of_unit_vectors() -> None:
    both = {"cars": A_ND, "food": B_ND}
    assert np.allclose(joined(both, "mean"), (unit(A_ND) + unit(B_ND)) / 2, atol=1e-6)
    assert np.allclose(joined(both, "concat"), np.hstack([unit(A_ND), unit(B_ND)]), atol=1e-6)
    assert joined(both, "oracle").keys() == both.keys()
    with pytest.raises(UserError, match="dimensions must be equal: cars 6, food 3"):
        joined({"cars": A_ND, "food": B_ND[:, :3]}, "mean")


def test_side_by_side_cosines_are_the_mean_of_the_members() -> None:
    side_ND = unit(joined({"0": A_ND, "1": B_ND}, "concat"))
    mean_NN = (unit(A_ND) @ unit(A_ND).T + unit(B_ND) @ unit(B_ND).T) / 2
    assert np.allclose(side_ND @ side_ND.T, mean_NN, atol=1e-6)


def test_the_first_dimensions_of_an_ensemble_are_its_first_members() -> None:
    members = {str(n): RNG.normal(size=(40, 3)).astype(np.float32) for n in range(4)}
    whole_ND = joined(members, "concat")
    for count in (1, 2, 4):
        first = joined(dict(list(members.items())[:count]), "concat")
        assert np.array_equal(reduced(whole_ND, None, "first", 3 * count), first)
    for dim in (0, 13):
        with pytest.raises(UserError, match=f"dim {dim}: must be 1 to the embedding's 12"):
            reduced(whole_ND, None, "first", dim)


def test_components_keep_the_most_and_whitened_all_alike() -> None:
    spread = np.array([4, 3, 0.02, 0.02, 0.02, 0.02])
    fit_FD = (RNG.normal(size=(500, 6)) * spread).astype(np.float32)
    two = reduced(fit_FD, fit_FD, "pca", 2)
    cosines = unit(fit_FD) @ unit(fit_FD).T
    centred = unit(fit_FD) - unit(fit_FD).mean(0)
    assert np.abs(two @ two.T - centred @ centred.T).max() < 0.1 * np.abs(cosines).max()
    white = reduced(fit_FD, fit_FD, "pca-whitened", 2)
    assert np.allclose(np.cov(white.T), np.eye(2), atol=0.01)
    assert reduced(A_ND, None, "random", 4).shape == (40, 4)


def test_specialists_are_fitted_each_on_its_own() -> None:
    given = {"cars": A_ND, "food": B_ND}
    both = reduced(given, {"cars": A_ND, "food": B_ND}, "pca", 2)
    assert np.allclose(both["food"], reduced(B_ND, B_ND, "pca", 2))


def test_files_and_what_is_wrong_with_them(tmp_path: Path) -> None:
    table = pd.DataFrame({"image_path": [f"{n}.jpg" for n in range(40)]})
    for name, emb_ND in (("a", A_ND), ("b", B_ND)):
        np.savez(tmp_path / f"{name}.npz", image_path=table["image_path"].to_numpy(str),
                 embedding=emb_ND)  # fmt: skip
    words = [f"cars={tmp_path}/a.npz", f"food={tmp_path}/b.npz"]
    read = read_embeddings(words, table, "concat")
    assert np.allclose(read, joined({"cars": A_ND, "food": B_ND}, "concat"))
    for wrong in ("cars", f"=x{tmp_path}", words[0]):
        with pytest.raises(UserError, match="must be DOMAIN=FILE, with each domain once"):
            read_embeddings([words[0], wrong], table, "mean")
    manifest = Manifest(table, tmp_path, tmp_path / "m.csv", Sidecar())
    asked = {"specialists": words, "join": "concat", "fit": None, "dim": 6, "seed": 0}
    with pytest.raises(
        UserError, match="--reduce pca: needs embeddings of train images; name them by --fit"
    ):
        embeddings_of(Namespace(reduce="pca", **asked), manifest, table)
    first = embeddings_of(Namespace(reduce="first", **asked), manifest, table)
    assert np.allclose(first, unit(A_ND), atol=1e-6)
