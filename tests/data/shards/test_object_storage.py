"""Object storage: bad answers are retried, then said in a line; the cache is bounded and optional.

Most tests have a bucket in memory; the last ones ask an S3 through a proxy that answers badly.
"""

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from torch.utils.data import default_collate

from guie.base.errors import UserError
from guie.curation.packing import pack
from guie.data.dataset import EvalDataset
from guie.data.images import open_as_seen
from guie.data.loader import RawImages, eval_loader
from guie.data.loader import packed as packed_batch
from guie.data.manifest import Manifest, load_manifest, save_manifest
from guie.data.manifest.companions import read_companions
from guie.data.shards import index, storage
from guie.data.shards.storage import as_path
from guie.rows.states import absolute, states
from object_storage import Troubled, s3, set_environment, upload
from sharded import SHARD_BYTES, packed

IMAGE, URL = "val/02.v1.jpg", "s3://bucket/set"


class Bucket(MemoryFileSystem):
    """Objects in memory. The next requests for bytes fail with `troubles`; `asked` lists all of them."""

    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.store, self.pseudo_dirs = {}, [""]
        self.troubles: list[Exception] = []
        self.asked: list[str] = []

    def cat_file(self, path: str, start=None, end=None, **options) -> bytes:
        self.asked.append(path)
        if self.troubles:
            raise self.troubles.pop(0)
        return super().cat_file(path, start, end, **options)

    def upload(self, folder: Path) -> str:
        """Return the URL of the index of shards that it has then."""
        for file in filter(Path.is_file, folder.iterdir()):
            self.pipe_file(f"{URL}/{file.name}", file.read_bytes())
        return f"{URL}/index.parquet"

    def requests(self) -> int:
        return sum(path.endswith(".tar") for path in self.asked)


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of a cache of its own; no patience."""
    monkeypatch.setenv("GUIE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(storage, "WAITS_S", (0.01, 0.01))
    monkeypatch.setattr(storage, "CACHE", storage.CacheState())
    index._OPEN.clear()
    return tmp_path / "cache/shards/ranges"


@pytest.fixture
def bucket(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    bucket = Bucket()
    monkeypatch.setattr(storage, "_filesystem", lambda url: bucket)
    return bucket


@pytest.fixture
def both(bucket: Bucket, tmp_path: Path) -> tuple[Manifest, Manifest]:
    """A data set in files, and the same in a bucket."""
    files, shards = packed(tmp_path)
    return files, load_manifest(bucket.upload(shards.path.parent))


def assert_same(objects: Manifest, files: Manifest) -> None:
    for path in objects.table["image_path"]:
        assert open_as_seen(objects.file(path)) == open_as_seen(files.file(path))


def test_images_and_states_come_from_objects(both) -> None:
    files, objects = both
    assert objects.sidecar == files.sidecar  # it was copied with the index
    found = states(objects.root, objects.table["image_path"])
    sizes = [files.file(path).stat().st_size for path in objects.table["image_path"]]
    assert found.size_N.tolist() == sizes
    assert_same(objects, files)
    with pytest.raises(UserError, match="^s3://bucket/a.jpg: no such object"):
        open_as_seen(as_path("s3://bucket/a.jpg"))
    with pytest.raises(UserError, match=r"^s3://none/index.parquet: no such object"):
        load_manifest("s3://none/index.parquet")


@pytest.mark.parametrize("limit_gb", ["20", "0"])
def test_an_image_is_fetched_once_if_there_is_a_cache(both, bucket, cache, limit_gb, monkeypatch):
    files, objects = both
    monkeypatch.setenv("GUIE_SHARD_CACHE_GB", limit_gb)
    for _ in range(2):
        assert open_as_seen(objects.file(IMAGE)) == open_as_seen(files.file(IMAGE))
    assert bucket.requests() == (1 if limit_gb == "20" else 2)
    if limit_gb == "0":
        assert not cache.exists()
        return
    (copy,) = cache.iterdir()
    copy.write_bytes(bytes(copy.stat().st_size))  # damage is fetched again
    assert open_as_seen(objects.file(IMAGE)) == open_as_seen(files.file(IMAGE))


def test_a_busy_bucket_is_asked_again_and_then_said_in_a_line(both, bucket, capsys) -> None:
    files, objects = both
    bucket.troubles = [OSError("busy")] * 2
    assert open_as_seen(objects.file(IMAGE)) == open_as_seen(files.file(IMAGE))
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2 and all("busy; trying again in" in line for line in said), said
    bucket.troubles = [OSError("busy")] * 9
    with pytest.raises(UserError, match=r"^s3://\S+shard-\d+\.tar: cannot be read: busy$"):
        open_as_seen(objects.file("val/06.v1.jpg"))
    bucket.troubles, bucket.asked = [PermissionError("denied")] * 9, []
    with pytest.raises(UserError, match=r"^s3://\S+: access is denied"):
        open_as_seen(objects.file("val/06.v1.jpg"))
    assert len(bucket.asked) == 1


class ClientAuthenticationError(Exception):
    """Has the name of Azure's."""


@pytest.mark.parametrize(
    ("scheme", "error", "said", "again"),
    [
        ("gs", OSError("Forbidden: bucket/x"), "access is denied .*GOOGLE_APP", False),
        ("gs", OSError("Cannot connect"), "cannot be read: Cannot connect$", False),
        ("az", ValueError("Must provide either"), "no credentials; set AZURE_STORAGE", False),
        ("az", ClientAuthenticationError("No token"), "access is denied .*AZURE", False),
        ("az", Exception("Server failed to authenticate the request."), "access is denied", False),
        ("az", OSError("Cannot connect"), "cannot be read: Cannot connect$", True),
    ],
)
def test_what_the_libraries_raise_is_said_with_a_remedy(scheme, error, said, again) -> None:
    """As gcsfs and adlfs raised it against emulators, which the tests do not have."""
    reason, tries_again = storage._reason(f"{scheme}://bucket/x", error)
    assert re.match(said, reason) and tries_again == again


def test_a_shard_that_is_not_the_one_indexed_is_refused(both, bucket, tmp_path: Path) -> None:
    files, objects = both
    place = objects.root, objects.table["image_path"]
    for tar in (tmp_path / "shards").glob("*.tar"):
        bucket.pipe_file(f"{URL}/{tar.name}", bytes(tar.stat().st_size))
    with pytest.raises(UserError, match=r"^s3://\S+: the bytes from .* are not those of the index"):
        open_as_seen(objects.file(IMAGE))
    bucket.upload(tmp_path / "shards")
    assert_same(objects, files)
    bucket.pipe_file(f"{URL}/shard-000001.tar", b"short")
    with pytest.raises(UserError, match=r"^s3://\S+: shard-000001.tar is 5 bytes long"):
        states(*place)
    bucket.rm(f"{URL}/shard-000001.tar")
    with pytest.raises(UserError, match=r"^s3://\S+: shard-000001.tar is missing"):
        states(*place)


def test_an_index_that_changes_is_read_anew(both, bucket, tmp_path: Path) -> None:
    files, _ = both
    save_manifest(files.table.iloc[4:], tmp_path / "files/less.csv")
    pack(load_manifest(tmp_path / "files/less.csv"), tmp_path / "less", SHARD_BYTES, 1)
    url = bucket.upload(tmp_path / "less")
    again = load_manifest(url)
    assert sorted(again.table["image_path"]) == sorted(files.table["image_path"].iloc[4:])
    assert_same(again, files)
    bucket.pipe_file(url, bucket.cat_file(url)[:-9])
    with pytest.raises(UserError, match=f"^{url}: not a Parquet file, or cut short"):
        load_manifest(url)


def test_companions_follow_those_of_an_index_that_stays(both, bucket) -> None:
    url, stem = f"{URL}/index.parquet", f"{URL}/index"
    bucket.asked.clear()
    load_manifest(url)
    assert not bucket.asked
    bucket.pipe_file(f"{stem}.texts.csv", b"image_path,text,label,domain\nt,a cup,art/c,art\n")
    declared = b"domains: {art: {index_is_train: true, shared_classes: true}}"
    bucket.pipe_file(f"{stem}.sidecar.yaml", declared)
    again = load_manifest(url)
    assert read_companions(again.path)["texts"]["text"].tolist() == ["a cup"]
    assert again.sidecar.domains["art"].shared_classes and len(bucket.asked) == 2
    bucket.rm(f"{stem}.texts.csv")
    assert not read_companions(load_manifest(url).path)


def test_the_cache_stays_within_its_limit(both, cache, monkeypatch: pytest.MonkeyPatch) -> None:
    _, objects = both
    monkeypatch.setenv("GUIE_SHARD_CACHE_GB", "2e-5")  # 20 kB, and the images have 50
    for path in objects.table["image_path"]:
        open_as_seen(objects.file(path))
        held = sum(file.stat().st_blocks * 512 for file in cache.iterdir())
        assert held <= 20_000 * 17 / 16 + 8192  # what one image may add, in whole blocks
    monkeypatch.setenv("GUIE_SHARD_CACHE_GB", "much")
    with pytest.raises(UserError, match="GUIE_SHARD_CACHE_GB=much: must be a number"):
        open_as_seen(objects.file("train/00.v1.jpg"))


def test_a_full_disk_turns_the_cache_off_with_a_line(both, monkeypatch, capsys) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(storage.os, "pwrite", full)
    files, objects = both
    assert_same(objects, files)
    (said,) = capsys.readouterr().err.splitlines()
    assert "the disk is full" in said and "read without their cache" in said


def test_a_module_that_is_missing_is_named() -> None:
    with pytest.raises(UserError, match=r"no module (gcsfs|adlfs).*pip install"):
        storage.read_range(storage.Range("/gs:/bucket/x.tar", 0, 1, 0))


# ---------------------------------------------------------------- an S3


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3() as endpoint:
        yield endpoint


@pytest.fixture
def troubled(server: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Troubled]:
    """A proxy that this process uses for s3://."""
    proxy = Troubled(server)
    set_environment(monkeypatch, proxy.endpoint)
    yield proxy
    proxy.close()


def on_s3(server: str, tmp_path: Path) -> tuple[Manifest, Manifest]:
    files, shards = packed(tmp_path)
    name = re.sub(r"[^a-z0-9]+", "-", tmp_path.name.lower()).strip("-")[-50:]
    return files, load_manifest(f"{upload(server, shards.path.parent, name)}/index.parquet")


def test_a_busy_or_silent_s3_is_asked_again(server, troubled, tmp_path, monkeypatch, capsys):
    files, objects = on_s3(server, tmp_path)
    monkeypatch.setattr(storage, "TIMEOUT_S", 2)
    set_environment(monkeypatch, os.environ["AWS_ENDPOINT_URL"])  # a new client has the time-out
    troubled.troubles = [503, 3.0]
    assert open_as_seen(objects.file(IMAGE)) == open_as_seen(files.file(IMAGE))
    busy, silent = capsys.readouterr().err.splitlines()
    assert re.search(r"[Rr]educe your request rate.*; trying again", busy)
    assert "no answer within 2 s; trying again" in silent
    asked, troubled.troubles = len(troubled.asked), [403] * 9
    with pytest.raises(UserError, match=r"^s3://\S+: access is denied"):
        open_as_seen(objects.file("val/06.v1.jpg"))
    assert len(troubled.asked) == asked + 1
    troubled.troubles = []
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(UserError, match=r"^s3://\S+: no credentials; set AWS_ACCESS_KEY_ID"):
        open_as_seen(objects.file("val/06.v1.jpg"))


@pytest.mark.parametrize("raw", [False, True])
def test_the_images_of_a_batch_are_fetched_ahead(both, bucket, raw: bool) -> None:
    """Neighbours by one request; what fails is asked for again when it is opened."""
    several = []
    for manifest in both:
        bucket.troubles, bucket.asked = [OSError("busy")], []
        paths = absolute(manifest.root, sorted(set(manifest.table["image_path"])))
        data = EvalDataset(paths, lambda image_1CHW: image_1CHW)
        rows, collate = [list(range(23))], packed_batch if raw else default_collate
        batch = next(eval_loader(RawImages(data) if raw else data, rows, 0, collate=collate))
        several.append(batch.pixels_N if raw else batch[0])
    assert np.array_equal(*several)
    shards = len(set(bucket.glob(f"{URL}/*.tar")))
    assert shards < bucket.requests() < len(data) == 23
