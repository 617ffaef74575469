"""A store in a bucket, and an output there: of a server on the loopback."""

import re
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import curate
import embed
from guie.base.errors import UserError
from guie.data.images import open_as_seen
from guie.data.manifest import load_manifest
from guie.data.shards.storage import listed, objects_below, put, read_object, request
from guie.rows.filling import OnCores, fill
from guie.rows.states import keys
from guie.rows.store import Store
from object_storage import s3, set_environment, upload
from tiny_runs import tiny_run

pytest.importorskip("moto")
NAMES = [f"{number}.jpg" for number in range(40)]
COLUMNS = ["name", "length"]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3() as endpoint:
        yield endpoint


@pytest.fixture
def bucket(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "first").mkdir()
    (tmp_path / "first/note.txt").write_text("mine")
    set_environment(monkeypatch, server)
    monkeypatch.setenv("GUIE_CACHE", str(tmp_path / "cache"))
    name = re.sub(r"[^a-z0-9]+", "-", tmp_path.name.lower()).strip("-")[-50:]
    return upload(server, tmp_path / "first", name)


def lengths(name: str) -> list:
    return [name, len(name)]


def test_rows_are_kept_in_a_bucket(bucket: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(OnCores, "most", 8)
    compute = OnCores(lengths, NAMES, COLUMNS, 1)
    for part in (1, 0):
        fill(Store(f"{bucket}/checks", {}), keys(NAMES), compute, part=(part, 2))
    shutil.rmtree(tmp_path / "cache")  # as on another machine
    store = Store(f"{bucket}/checks", {})
    assert not len(store.missing(keys(NAMES)))
    assert store.table(keys(NAMES[::-1]))["name"].tolist() == NAMES[::-1]
    with pytest.raises(UserError, match=rf"{bucket}/checks/\w+: these 40 .* 2 parts"):
        fill(store, keys(NAMES), compute, part=(0, 3))
    store.remove()
    assert listed(store.url) == [] and read_object(f"{bucket}/note.txt") == b"mine"


def test_embeddings_are_written_to_a_bucket(bucket, toy_manifest, tmp_path, capsys):
    words = ["--model", str(tiny_run(tmp_path / "run")), "--manifest", str(toy_manifest)]
    words += ["--split", "test", "--workers", "0"]
    embed.main([*words, "--out", f"{bucket}/E.npz"])
    assert f"{bucket}/E.npz: " in capsys.readouterr().out
    (tmp_path / "fetched.npz").write_bytes(read_object(f"{bucket}/E.npz"))
    here = np.load(embed.main([*words, "--out", str(tmp_path / "E.npz")]))
    there = np.load(tmp_path / "fetched.npz")
    assert np.array_equal(here["embedding"], there["embedding"])
    embed.main([*words, "--out", f"{bucket}/E.npz"])
    assert " (0 new)" in capsys.readouterr().out.splitlines()[-1]


def test_no_such_bucket_is_said_in_a_line(bucket: str, monkeypatch) -> None:
    monkeypatch.setattr("guie.data.shards.storage.WAITS_S", ())
    with pytest.raises(UserError, match="^s3://none/[^\n]*$"):
        fill(Store("s3://none/rows", {}), keys(NAMES), OnCores(lengths, NAMES, COLUMNS, 1))


def test_class_folders_in_a_bucket_are_curated_and_embedded(
    bucket: str, toy_manifest: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    """Loose objects: listed once, read by their URLs, and only a new one is embedded later."""
    rows = pd.read_csv(toy_manifest).query("split == 'test'").groupby("label").head(2)[:12]
    for path, label in rows[["image_path", "label"]].itertuples(index=False):
        put(f"{bucket}/{label}/{Path(path).name}", (toy_manifest.parent / path).read_bytes())
    put(f"{bucket}/{rows['label'].iloc[0]}/Thumbs.db", b"no image")
    mix = tmp_path / "mix.yaml"
    mix.write_text(
        f"name: products\nout: {tmp_path}/products.csv\nroot: {bucket}\nbenchmark: true\n"
        f"sources: [{{kind: folder, path: '{bucket}', domain: toy, split: test}}]\n"
    )
    monkeypatch.setenv("GUIE_STORE", "")  # restored afterwards
    curate.main(["--config", str(mix), "--store", f"{bucket}-rows"])
    assert any("verified/" in name for name in objects_below(f"{bucket}-rows"))
    table = pd.read_csv(tmp_path / "products.csv")
    assert len(table) == 12 and set(table["label"]) == {f"toy/{label}" for label in rows["label"]}
    words = ["--model", str(tiny_run(tmp_path / "run")), "--manifest", f"{tmp_path}/products.csv"]
    words += ["--root", bucket, "--out", str(tmp_path / "E.npz")]
    there = np.load(embed.main([*words, "--workers", "0"]))
    for path in table["image_path"]:
        (tmp_path / "here" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "here" / path).write_bytes(read_object(f"{bucket}/{path}"))
    words[5:] = [str(tmp_path / "here"), "--out", str(tmp_path / "here.npz"), "--workers", "0"]
    here = np.load(embed.main(words))
    assert np.array_equal(here["embedding"], there["embedding"])

    replaced = table["image_path"].iloc[0]
    put(f"{bucket}/{replaced}", read_object(f"{bucket}/{table['image_path'].iloc[-1]}"))
    words[5:] = [bucket, "--out", str(tmp_path / "E.npz"), "--workers", "2"]
    again = np.load(embed.main(words))
    assert " (1 new)" in capsys.readouterr().out.splitlines()[-1]
    np.testing.assert_allclose(again["embedding"][0], there["embedding"][-1], atol=1e-5)
    request(f"{bucket}/{replaced}", "rm_file", optional=True)
    with pytest.raises(UserError, match=rf"{replaced} \(test\): .* no such object"):
        embed.main(words)


def test_tars_in_a_bucket_are_indexed_there(bucket, toy_manifest, tmp_path, capsys):
    images = sorted(toy_manifest.parent.rglob("*.jpg"))[:3]
    with tarfile.open(tmp_path / "one.tar", "w") as tar:
        for image in images:
            tar.add(image, f"bird/{image.parent.name}-{image.name}")
    put(f"{bucket}/one.tar", (tmp_path / "one.tar").read_bytes())
    words = ["--index-shards", bucket, "--domain", "birds"]
    curate.main(words)
    assert f"3 images in 1 shards -> {bucket}/index.parquet" in capsys.readouterr().out
    manifest = load_manifest(f"{bucket}/index.parquet")
    image = open_as_seen(manifest.file(manifest.table["image_path"].iloc[0]))
    assert any(open_as_seen(other).tobytes() == image.tobytes() for other in images)
    with pytest.raises(UserError, match=f"^{bucket}/index.parquet: exists"):
        curate.main(words)
    put(f"{bucket}/two/cut.tar", (tmp_path / "one.tar").read_bytes()[:700])
    with pytest.raises(UserError, match=f"^{bucket}/two/cut.tar: "):
        curate.main(["--index-shards", f"{bucket}/two", "--domain", "birds"])
