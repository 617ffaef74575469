"""Object storage: bad answers are retried, then said in a line; the cache is bounded and optional."""

from __future__ import annotations

import errno
import os
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from torch.utils.data import default_collate

from guie.base.errors import UserError
from guie.data.dataset import EvalDataset
from guie.data.images import open_as_seen
from guie.data.loader import RawImages, eval_loader
from guie.data.loader import packed as packed_batch
from guie.data.manifest import Manifest, load_manifest, table
from guie.data.manifest.companions import read_companions
from guie.data.shards import cached, index, storage
from guie.data.shards.address import as_path
from guie.data.shards.opening import fetch_images
from guie.rows.states import absolute, states
from object_storage import Troubled, s3, set_environment, upload
from sharded import packed


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3() as endpoint:
        yield endpoint


@pytest.fixture
def troubled(server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Troubled]:
    """A proxy that this process uses for s3://, with no cache of before, and no patience."""
    import s3fs

    proxy = Troubled(server)
    set_environment(monkeypatch, proxy.endpoint)
    monkeypatch.setenv("GUIE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(storage, "WAITS_S", (0.01, 0.01))
    monkeypatch.setattr(storage, "TIMEOUT_S", 2)
    monkeypatch.setattr(storage, "CACHE", storage.CacheState())
    cached._OPEN.clear()
    s3fs.S3FileSystem.clear_instance_cache()
    yield proxy
    proxy.close()
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def both(troubled: Troubled, server: str, tmp_path: Path) -> tuple[Manifest, Manifest]:
    """A data set in files, and the same in a bucket of its own."""
    files, shards = packed(tmp_path)
    bucket = re.sub(r"[^a-z0-9]+", "-", tmp_path.name.lower()).strip("-")[-50:]
    url = upload(server, shards.path.parent, bucket)
    return files, load_manifest(f"{url}/index.parquet")


IMAGE = "val/02.v1.jpg"


def shards_of(objects: Manifest) -> list[str]:
    return [shard.name for shard in index.read_facts(objects.path)["shards"]]


def test_images_and_states_come_from_objects(both) -> None:
    files, objects = both
    assert objects.sidecar == files.sidecar  # it was copied with the index
    found = states(objects.root, objects.table["image_path"])
    sizes = [files.file(path).stat().st_size for path in objects.table["image_path"]]
    assert found.size_N.tolist() == sizes
    for path in objects.table["image_path"]:
        assert open_as_seen(objects.file(path)) == open_as_seen(files.file(path))


def test_an_image_is_fetched_once(both, troubled: Troubled) -> None:
    _, objects = both
    open_as_seen(objects.file(IMAGE))
    asked = len(troubled.asked)
    assert re.search(r"GET /\S+shard-\d+.tar bytes=\d+-\d+", troubled.asked[-1])
    open_as_seen(objects.file(IMAGE))
    assert len(troubled.asked) == asked


@pytest.mark.parametrize(
    ("of", "collate"), [(lambda data: data, default_collate), (RawImages, packed_batch)]
)
def test_the_images_of_a_batch_are_fetched_at_the_same_time(
    both, troubled, of, collate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "TIMEOUT_S", 60)
    monkeypatch.setattr(storage, "GAP_BYTES", -1)  # a request for each
    several = []
    for manifest in both:
        paths = absolute(manifest.root, sorted(set(manifest.table["image_path"])))
        together = threading.Barrier(23, timeout=300)
        troubled.troubles = [together] * 23
        data = EvalDataset(paths, lambda image_1CHW: image_1CHW)
        batch = next(eval_loader(of(data), [list(range(len(data)))], 0, collate=collate))
        several.append(batch[0] if of is not RawImages else batch.pixels_N)
    assert (several[0] == several[1]).all()
    assert sum(".tar bytes=" in line for line in troubled.asked) == len(data) == 23
    assert not troubled.troubles and not together.broken


@pytest.mark.parametrize("part_bytes", [storage.PART_BYTES, 6_000])
def test_neighbours_are_fetched_by_one_request(
    both, troubled: Troubled, part_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, objects = both
    monkeypatch.setattr(storage, "PART_BYTES", part_bytes)
    paths = absolute(objects.root, objects.table["image_path"].unique())
    fetch_images(paths)
    requests = sum(".tar bytes=" in line for line in troubled.asked)
    shards = len(shards_of(objects))
    assert requests == shards if part_bytes > 6_000 else shards < requests < len(paths)
    for path in objects.table["image_path"].unique():
        assert open_as_seen(objects.file(path)) == open_as_seen(files.file(path))
    assert sum(".tar bytes=" in line for line in troubled.asked) == requests


def test_what_fails_ahead_is_asked_for_again(both, troubled: Troubled) -> None:
    _, objects = both
    paths = absolute(objects.root, objects.table["image_path"].unique())
    troubled.troubles = [503] * len(shards_of(objects))
    fetch_images(paths)
    assert open_as_seen(objects.file(IMAGE))


def test_a_busy_bucket_is_asked_again(both, troubled: Troubled, capsys) -> None:
    files, objects = both
    troubled.troubles = [503, 503]
    assert open_as_seen(objects.file(IMAGE)) == open_as_seen(files.file(IMAGE))
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2 and all("trying again in" in line for line in said), said


def test_a_bucket_that_stays_busy_is_said_in_a_line(both, troubled: Troubled) -> None:
    _, objects = both
    troubled.troubles = [503] * 9
    with pytest.raises(UserError, match=r"^s3://\S+shard-\d+\.tar: .*[Rr]educe your request rate"):
        open_as_seen(objects.file(IMAGE))


def test_a_slow_answer_is_given_up(both, troubled: Troubled) -> None:
    files, objects = both
    troubled.troubles = [3.0]
    assert open_as_seen(objects.file(IMAGE)) == open_as_seen(files.file(IMAGE))
    shutil.rmtree(os.environ["GUIE_CACHE"] + "/shards/ranges")
    troubled.troubles = [3.0] * 9
    with pytest.raises(UserError, match=r"^s3://\S+: no answer within 2 s$"):
        open_as_seen(objects.file(IMAGE))


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
        ("s3", PermissionError("Access Denied"), "access is denied .*AWS_ACCESS_KEY", False),
    ],
)
def test_what_the_libraries_raise_is_said_with_a_remedy(scheme, error, said, again) -> None:
    """As gcsfs and adlfs raised it against emulators, which the tests do not have."""
    reason, tries_again = storage._reason(f"{scheme}://bucket/x", error)
    assert re.match(said, reason) and tries_again == again


def test_what_is_missing_is_named(both, troubled: Troubled, server: str, monkeypatch) -> None:
    _, objects = both
    with pytest.raises(UserError, match=r"^s3://none/index.parquet: no such object"):
        load_manifest("s3://none/index.parquet")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(UserError, match=r"^s3://\S+: no credentials; set AWS_ACCESS_KEY_ID"):
        open_as_seen(objects.file(IMAGE))


def test_access_that_is_denied_is_not_asked_again(both, troubled: Troubled) -> None:
    _, objects = both
    troubled.troubles = [403] * 9
    asked = len(troubled.asked)
    with pytest.raises(UserError, match=r"^s3://\S+: access is denied"):
        open_as_seen(objects.file(IMAGE))
    assert len(troubled.asked) == asked + 1


def test_a_shard_that_is_gone_or_has_another_size_is_said_at_the_start(
    both, server: str, tmp_path: Path
) -> None:
    import s3fs

    _, objects = both
    client = s3fs.S3FileSystem(
        key="testing", secret="testing", endpoint_url=server, skip_instance_cache=True
    )
    url = storage.url_of(objects.root).rpartition("/")[0]
    files = objects.root, objects.table["image_path"]
    client.pipe_file(f"{url}/shard-000001.tar", b"short")
    with pytest.raises(UserError, match=r"^s3://\S+: shard-000001.tar is 5 bytes long"):
        states(*files)
    client.rm(f"{url}/shard-000001.tar")
    with pytest.raises(UserError, match=r"^s3://\S+: shard-000001.tar is missing"):
        states(*files)


def test_an_object_that_changes_is_refused_until_it_is_the_one_indexed(
    both, server: str, tmp_path: Path
) -> None:
    import s3fs

    files, objects = both
    client = s3fs.S3FileSystem(
        key="testing", secret="testing", endpoint_url=server, skip_instance_cache=True
    )
    url = storage.url_of(objects.root).rpartition("/")[0]
    for tar in (tmp_path / "shards").glob("*.tar"):
        client.pipe_file(f"{url}/{tar.name}", bytes(tar.stat().st_size))
    with pytest.raises(UserError, match=r"^s3://\S+: the bytes from .* are not those of the index"):
        open_as_seen(objects.file(IMAGE))
    for tar in (tmp_path / "shards").glob("*.tar"):
        client.pipe_file(f"{url}/{tar.name}", tar.read_bytes())
    assert open_as_seen(objects.file(IMAGE)) == open_as_seen(files.file(IMAGE))


def test_an_index_that_changes_is_read_anew(both, server: str, tmp_path: Path) -> None:
    import s3fs

    files, objects = both
    some = files.table["image_path"].iloc[4:]
    from guie.curation.packing import pack
    from guie.data.manifest import save_manifest
    from sharded import SHARD_BYTES

    save_manifest(files.table.iloc[4:], tmp_path / "files/less.csv")
    pack(load_manifest(tmp_path / "files/less.csv"), tmp_path / "less", SHARD_BYTES, 1)
    client = s3fs.S3FileSystem(
        key="testing", secret="testing", endpoint_url=server, skip_instance_cache=True
    )
    url = storage.url_of(objects.root).rpartition("/")[0]
    for file in (tmp_path / "less").iterdir():
        client.pipe_file(f"{url}/{file.name}", file.read_bytes())
    again = load_manifest(f"{url}/index.parquet")
    assert sorted(again.table["image_path"]) == sorted(some)
    for path in some:
        assert open_as_seen(again.file(path)) == open_as_seen(files.file(path))


def test_processes_that_start_at_once_may_copy_one_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = MemoryFileSystem()
    monkeypatch.setattr(storage, "_filesystem", lambda url: objects)
    monkeypatch.setenv("GUIE_CACHE", str(tmp_path / "cache"))
    files, shards = packed(tmp_path)
    url = f"s3://{tmp_path.name}/index.parquet"
    objects.pipe_file(url, shards.path.read_bytes())
    sidecar = shards.path.with_suffix(".sidecar.yaml").read_bytes()
    objects.pipe_file(url.replace(".parquet", ".sidecar.yaml"), sidecar)
    read = table.read_rows

    def beside_another(path: Path) -> object:
        cached.local_copy(str(as_path(url)), refresh=True)
        return read(path)

    monkeypatch.setattr(table, "read_rows", beside_another)
    assert len(load_manifest(url).table) == len(files.table)


def test_an_index_that_is_cut_short_is_named_by_its_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = MemoryFileSystem()
    monkeypatch.setattr(storage, "_filesystem", lambda url: objects)
    monkeypatch.setenv("GUIE_CACHE", str(tmp_path / "cache"))
    url = f"s3://{tmp_path.name}/index.parquet"
    objects.pipe_file(url, packed(tmp_path)[1].path.read_bytes()[:-9])
    with pytest.raises(UserError, match=f"^{url}: not a Parquet file, or cut short"):
        load_manifest(url)


def test_companions_follow_those_of_an_index_that_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = MemoryFileSystem()
    fetched: list[str] = []
    whole = objects.cat_file
    monkeypatch.setattr(objects, "cat_file", lambda url: fetched.append(url) or whole(url))
    monkeypatch.setattr(storage, "_filesystem", lambda url: objects)
    monkeypatch.setenv("GUIE_CACHE", str(tmp_path / "cache"))
    _, shards = packed(tmp_path)
    stem = f"s3://{tmp_path.name}/index"
    objects.pipe_file(f"{stem}.parquet", shards.path.read_bytes())
    declared = "domains: {art: {index_is_train: true, shared_classes: true}}"
    objects.pipe_file(f"{stem}.sidecar.yaml", declared.encode())
    assert load_manifest(f"{stem}.parquet").sidecar.domains["art"].shared_classes
    fetched.clear()
    load_manifest(f"{stem}.parquet")
    assert not fetched
    objects.pipe_file(f"{stem}.texts.csv", b"image_path,text,label,domain\nt,a cup,art/c,art\n")
    objects.pipe_file(f"{stem}.sidecar.yaml", b"domains: {art: {index_is_train: true}}")
    again = load_manifest(f"{stem}.parquet")
    assert read_companions(again.path)["texts"]["text"].tolist() == ["a cup"]
    assert not again.sidecar.domains["art"].shared_classes and len(fetched) == 2
    objects.rm(f"{stem}.texts.csv")
    assert not read_companions(load_manifest(f"{stem}.parquet").path)


def test_an_image_that_the_bucket_lacks_is_named(troubled: Troubled) -> None:
    with pytest.raises(UserError, match="^s3://bucket/a.jpg: no such object"):
        open_as_seen(as_path("s3://bucket/a.jpg"))


def test_the_cache_stays_within_its_limit(both, monkeypatch: pytest.MonkeyPatch) -> None:
    _, objects = both
    monkeypatch.setenv("GUIE_SHARD_CACHE_GB", "2e-5")  # 20 kB, and the images have 50
    folder = Path(os.environ["GUIE_CACHE"]) / "shards/ranges"
    for path in objects.table["image_path"]:
        open_as_seen(objects.file(path))
        held = sum(file.stat().st_blocks * 512 for file in folder.iterdir())
        assert held <= 20_000 * 17 / 16 + 8192  # what one image may add, in whole blocks
    monkeypatch.setenv("GUIE_SHARD_CACHE_GB", "much")
    shutil.rmtree(folder)
    with pytest.raises(UserError, match="GUIE_SHARD_CACHE_GB=much: must be a number"):
        open_as_seen(objects.file(IMAGE))


def test_no_cache_is_kept_at_a_limit_of_zero(both, troubled, monkeypatch) -> None:
    _, objects = both
    monkeypatch.setenv("GUIE_SHARD_CACHE_GB", "0")
    for _ in range(2):
        open_as_seen(objects.file(IMAGE))
    assert sum(".tar bytes=" in line for line in troubled.asked) == 2
    assert not (Path(os.environ["GUIE_CACHE"]) / "shards/ranges").exists()


def test_a_full_disk_turns_the_cache_off_with_a_line(both, monkeypatch, capsys) -> None:
    files, objects = both

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(storage.os, "pwrite", full)
    for path in objects.table["image_path"]:
        assert open_as_seen(objects.file(path)) == open_as_seen(files.file(path))
    (said,) = capsys.readouterr().err.splitlines()
    assert "the disk is full" in said and "read without their cache" in said


def test_damage_in_the_cache_is_fetched_again(both) -> None:
    files, objects = both
    open_as_seen(objects.file(IMAGE))
    (copy,) = (Path(os.environ["GUIE_CACHE"]) / "shards/ranges").iterdir()
    copy.write_bytes(bytes(copy.stat().st_size))
    assert open_as_seen(objects.file(IMAGE)) == open_as_seen(files.file(IMAGE))


def test_a_module_that_is_missing_is_named() -> None:
    with pytest.raises(UserError, match=r"no module (gcsfs|adlfs).*pip install"):
        storage.read_range(storage.Range("/gs:/bucket/x.tar", 0, 1, 0))
