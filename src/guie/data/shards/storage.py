"""Read byte ranges: of a file by `os.pread`, of an object by fsspec, with retries and a bounded cache.

`s3://bucket/x` is written `/s3:/bucket/x` inside the program. `Path` would cut one of the two slashes, and
`os.path.abspath` would put the working folder before it.

The cache holds a sparse copy of each shard in `GUIE_CACHE`. Nothing records which bytes it has: a range
counts as cached if its hash is that of the index. So a process that is killed, and several processes that
write at once, can leave nothing wrong. `GUIE_SHARD_CACHE_GB` is its limit, 20 by default, and 0 turns it off.
"""

import hashlib
import io
import logging
import os
import re
import sys
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import xxhash

from guie.base.errors import DISK_FULL, UserError, optional_module, why_unreadable
from guie.base.files import cache_folder

WAITS_S = (0.5, 1.0, 2.0, 4.0)  # before another try; object storage asks to wait by 503
TIMEOUT_S = 30  # for an answer to begin
STAT_THREADS = 32
CONNECTIONS = 64  # of a process to a bucket; botocore's default is 10
GAP_BYTES = 64 * 1024  # between two images of one request: cheaper than another request
PART_BYTES = 8 * 1024**2  # that one request fetches at most, if it is for several images
BLOCK_BYTES = 4096  # of a disk
LIMIT, LIMIT_GB = "GUIE_SHARD_CACHE_GB", 20.0
CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS",
    "az": "set AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT_NAME and _KEY",
}
DENIED = "^Forbidden|failed to authenticate"  # neither gcsfs nor adlfs has a class of error for it
MODULES = {"s3": "s3fs", "gs": "gcsfs", "az": "adlfs"}
URL = re.compile(rf"/?({'|'.join(MODULES)}):/+(.*)")  # also where a Path has cut a slash

WHOLE = -1  # in place of an offset: the whole object
_AHEAD: dict[tuple[str, int], bytes] = {}  # by URL and offset: what `fetch_ahead` fetched


def as_path(name: str | Path) -> Path:
    """Return a path for a file name or a URL: `s3://bucket/x` -> `/s3:/bucket/x`."""
    found = URL.fullmatch(str(name))
    return Path(f"/{found[1]}:/{found[2]}") if found else Path(name)


def url_of(path: str | Path) -> str | None:
    """Return the URL of an object, `/s3:/bucket/x` -> `s3://bucket/x`; None for a local path."""
    found = URL.fullmatch(str(path)) if str(path).startswith("/") else None
    return f"{found[1]}://{found[2]}" if found else None


def shown(path: str | Path) -> str:
    """Return a path as the user writes it."""
    return url_of(path) or str(path)


def content_hash(data: bytes | memoryview) -> int:
    """Return the 64-bit XXH3 of an image's bytes, as the index has it."""
    return xxhash.xxh3_64_intdigest(data)


class Range(NamedTuple):
    """Where the bytes of an image are: `size` bytes of a shard from `offset` on, and their `content_hash`."""

    shard: str
    offset: int
    size: int
    content: int


def read_range(place: Range) -> bytes:
    """Return the bytes of an image in a shard.

    Raises UserError in one line: no such shard, no credentials, cut short, other bytes than indexed.
    """
    end = place.offset + place.size
    if url := url_of(place.shard):
        data = _AHEAD.pop((url, place.offset), None) or _cached(url, place)
        if data is None:
            data = request(url, "cat_file", start=place.offset, end=end)
            _keep(url, place, data)
    else:
        data = _local_range(place)
        if content_hash(data) != place.content:
            _opened.cache_clear()  # perhaps the shard was replaced after it was opened
            data = _local_range(place)
    if len(data) < place.size:
        fault = f"ends at byte {place.offset + len(data):,}, within an image of the index"
        raise UserError(f"{shown(place.shard)}: {fault}; the shard is cut short, copy it again")
    if content_hash(data) != place.content:
        fault = f"the bytes from {place.offset:,} to {end:,} are not those of the index"
        remedy = "copy the shard again, or the index that belongs to it"
        raise UserError(f"{shown(place.shard)}: {fault}; {remedy}")
    return data


def fetch_ahead(ranges: Sequence[Range], objects: Sequence[str] = ()) -> None:
    """Fetch what is not cached, all at the same time, for `read_range` and `read_object` to take.

    Neighbours in a shard are fetched by one request. Ranges on disk are ignored, and what fails is left to
    these two, which try again and say why. `objects` are URLs in one bucket.
    """
    _AHEAD.clear()
    wanted = defaultdict(list)  # by scheme
    for place in ranges:
        url = url_of(place.shard)
        if url and _cached(url, place) is None:
            wanted[url.partition(":")[0]].append((url, place))
    for found in wanted.values():
        with suppress(Exception):  # see above
            _fetch_ranges(found)
    if objects:
        with suppress(Exception):
            whole = [None] * len(objects)
            several = _filesystem(objects[0]).cat_ranges(objects, whole, whole, on_error="return")
            for url, data in zip(objects, several, strict=True):
                if isinstance(data, bytes):
                    _AHEAD[url, WHOLE] = data


def _fetch_ranges(wanted: Sequence[tuple[str, Range]]) -> None:
    urls = [url for url, _ in wanted]
    starts = [place.offset for _, place in wanted]
    ends = [place.offset + place.size for _, place in wanted]
    merge = optional_module("fsspec.utils", "object storage", "storage").merge_offset_ranges
    urls, starts, ends = merge(urls, starts, ends, max_gap=GAP_BYTES, max_block=PART_BYTES)
    several = _filesystem(urls[0]).cat_ranges(urls, starts, ends, on_error="return")
    heads = list(zip(urls, starts, strict=True))
    for url, place in wanted:
        number = bisect_right(heads, (url, place.offset)) - 1
        first, data = place.offset - starts[number], several[number]
        if isinstance(data, bytes):
            data = data[first : first + place.size]
            if content_hash(data) == place.content:
                _AHEAD[url, place.offset] = data
                _keep(url, place, data)


def sizes_of(folder: str, shards: Sequence[str]) -> dict[str, int]:
    """Return the size in bytes of those of the named shards that are in a folder. Raises UserError."""
    if url := url_of(folder):
        entries = request(url, "ls", detail=True)
        found = {entry["name"].rpartition("/")[2]: entry["size"] for entry in entries}
        return {name: int(found[name]) for name in shards if found.get(name)}

    def size(name: str) -> int | None:
        with suppress(OSError):
            return os.stat(os.path.join(folder, name)).st_size
        return None

    with ThreadPoolExecutor(STAT_THREADS) as pool:  # a network disk takes milliseconds for each
        sizes = zip(shards, pool.map(size, shards), strict=True)
        return {name: size for name, size in sizes if size is not None}


def version_of(url: str, optional: bool = False) -> str:
    """Return a string that changes with an object's content; "" if there is none and it is `optional`.

    Raises UserError.
    """
    found = request(url, "info", optional=optional)
    return _version(found) if found else ""


def _version(about: dict[str, Any]) -> str:
    keys = ("ETag", "etag", "md5Hash", "size", "LastModified", "mtime", "last_modified")
    return hashlib.sha256(repr([str(about.get(key)) for key in keys]).encode()).hexdigest()[:16]


def objects_below(folder: str) -> dict[str, tuple[int, int]]:
    """Return the size in bytes, and a number that changes with the content, of each object by its URL.

    Raises UserError, but not if there is no such folder.
    """
    scheme = folder.partition(":")[0]
    found = request(folder, "find", optional=True, detail=True) or {}
    return {
        f"{scheme}://{name}": (int(about["size"]), int(_version(about)[:15], 16))
        for name, about in found.items()
    }


def read_object(url: str, **part: Any) -> bytes:
    """Return an object, or its bytes from `start` to `end`. Raises UserError."""
    ahead = None if part else _AHEAD.pop((url, WHOLE), None)
    return ahead or request(url, "cat_file", **part)


def listed(folder: str) -> list[str]:
    """Return the names of the objects in a folder, if there is one. Raises UserError."""
    names = request(folder, "ls", optional=True, detail=False) or ()
    return [name.rpartition("/")[2] for name in names]


def put(url: str, content: bytes) -> None:
    """Write an object. Raises UserError."""
    request(url, "pipe_file", content)


@contextmanager
def written(path: Path) -> Iterator[Path]:
    """Yield the local path to write a result to; files next to it go to its bucket. Raises UserError."""
    url = url_of(path)
    if url is None:
        yield path
        return
    with TemporaryDirectory(prefix="guie-") as folder:
        yield Path(folder) / path.name
        for file in sorted(Path(folder).iterdir()):
            put(f"{url.rpartition('/')[0]}/{file.name}", file.read_bytes())


@contextmanager
def copied(path: Path) -> Iterator[Path]:
    """Yield a file, or a temporary copy of an object under its name. Raises UserError."""
    url = url_of(path)
    if url is None:
        yield path
        return
    with TemporaryDirectory(prefix="guie-") as folder:
        file = Path(folder) / path.name
        request(url, "get_file", str(file))
        yield file


@lru_cache(maxsize=256)
def _opened(path: str) -> io.FileIO:
    return io.FileIO(path)


def _local_range(place: Range) -> bytes:
    try:
        # `os.pread` has no position, so processes and threads can share a file
        file, data = _opened(place.shard), b""
        while more := os.pread(file.fileno(), place.size - len(data), place.offset + len(data)):
            data += more
        return data
    except OSError as error:
        why = why_unreadable(place.shard, "shard") or f"{place.shard}: {error.strerror}"
        raise UserError(f"{why}, though the index names it; copy it there") from error


def _filesystem(url: str) -> Any:
    """Return fsspec's file system for a URL; it keeps one a process and thread."""
    scheme = url.partition(":")[0]
    optional_module(MODULES[scheme], f"{scheme}://", "storage")
    if scheme == "gs":  # it logs tracebacks of what `request` says in a line
        logging.getLogger("gcsfs").setLevel(logging.CRITICAL)
    open_scheme = partial(optional_module("fsspec", f"{scheme}://", "storage").filesystem, scheme)
    if scheme != "s3":
        return open_scheme()
    # Fail within a known time; the tries are counted here
    limits = {"connect_timeout": TIMEOUT_S, "read_timeout": TIMEOUT_S}
    tries = {"retries": {"total_max_attempts": 1}, "max_pool_connections": CONNECTIONS}
    filesystem = open_scheme(config_kwargs=limits | tries)
    filesystem.retries = 1
    return filesystem


def request(url: str, method: str, *given: Any, optional: bool = False, **options: Any) -> Any:
    """Call a method of the file system of `url`, retried with a printed line.

    Return None if there is no object and it is `optional`. Raises UserError that names the remedy.
    """
    waits_s = list(WAITS_S)
    while True:
        try:
            filesystem = _filesystem(url)
            filesystem.invalidate_cache()
            return getattr(filesystem, method)(url, *given, **options)
        except UserError:
            raise
        except Exception as error:  # botocore's errors have no common base with the others
            if optional and isinstance(error, FileNotFoundError):
                return None
            reason, again = _reason(url, error)
            if not again or not waits_s:
                raise UserError(f"{url}: {reason}") from None  # it names all there is to know
            print(f"{url}: {reason}; trying again in {waits_s[0]:g} s", file=sys.stderr, flush=True)
            time.sleep(waits_s.pop(0))


def _reason(url: str, error: Exception) -> tuple[str, bool]:
    """Return what to say about a failed request, and whether another try may succeed."""
    scheme = url.partition(":")[0]
    kind = type(error).__name__
    line = (str(error).strip().splitlines() or [kind])[0]
    if isinstance(error, FileNotFoundError):
        return "no such object; copy it there, or correct the name", False
    absent = ("NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError")
    if kind in absent or (scheme == "az" and isinstance(error, ValueError)):
        return f"no credentials; {CREDENTIALS[scheme]}", False
    denied = kind == "ClientAuthenticationError" or re.search(DENIED, str(error))
    if denied or isinstance(error, PermissionError):
        return f"access is denied ({line}); {CREDENTIALS[scheme]}", False
    if isinstance(error, TimeoutError) or "Timeout" in kind:
        return f"no answer within {TIMEOUT_S} s", True
    return f"cannot be read: {line}", scheme != "gs"  # gcsfs has tried six times


def _copy_of(url: str) -> Path:
    name = hashlib.sha256(url.encode()).hexdigest()[:24]
    return cache_folder() / "shards" / "ranges" / f"{name}.tar"


def _cached(url: str, place: Range) -> bytes | None:
    """Return a range from the cache, if it has the right bytes."""
    with suppress(OSError), _copy_of(url).open("rb") as file:
        data = os.pread(file.fileno(), place.size, place.offset)
        if content_hash(data) == place.content:
            return data
    return None


def _keep(url: str, place: Range, data: bytes) -> None:
    """Write a range into the cache; beyond its limit, the oldest copies are deleted.

    Each process looks at the whole after it has written a sixteenth of the limit, so the cache may exceed
    the limit by so much for each process. A full disk turns it off, with one line.
    """
    copy, limit_bytes = _copy_of(url), cache_limit_bytes()
    if CACHE.off or limit_bytes == 0 or content_hash(data) != place.content:
        return
    try:
        copy.parent.mkdir(parents=True, exist_ok=True)
        if CACHE.written_bytes >= limit_bytes / 16:
            _shrink(copy.parent, limit_bytes * 15 / 16)
            CACHE.written_bytes = 0
        with os.fdopen(os.open(copy, os.O_WRONLY | os.O_CREAT, 0o644), "wb") as file:
            if os.pwrite(file.fileno(), data, place.offset) < len(data):
                os.pwrite(file.fileno(), data, place.offset)  # raises the cause
        CACHE.written_bytes += len(data) + BLOCK_BYTES
    except OSError as error:
        CACHE.off = True
        why = DISK_FULL.get(error.errno or 0, error.strerror)
        line = f"{copy.parent}: {why}; shards are read without their cache from here on"
        print(line, file=sys.stderr, flush=True)


@dataclass
class CacheState:
    """Of this process: whether a full disk turned the cache off, and what was written since `_shrink`."""

    off: bool = False
    written_bytes: float = float("inf")  # look before the first write


CACHE = CacheState()


def _shrink(folder: Path, limit_bytes: float) -> None:
    """Delete the oldest copies until the others have at most so many bytes."""
    copies = []
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # another process deleted it
                state = entry.stat()
                copies.append((state.st_mtime_ns, state.st_blocks * 512, entry.path))
    held = sum(size for _, size, _ in copies)
    for _, size, path in sorted(copies):
        if held <= limit_bytes:
            break
        with suppress(FileNotFoundError):
            os.unlink(path)
        held -= size


def cache_limit_bytes() -> float:
    """Return the limit of the cache. Raises UserError if `GUIE_SHARD_CACHE_GB` is no number."""
    text = os.environ.get(LIMIT, "")
    try:
        limit_gb = float(text or LIMIT_GB)
    except ValueError:
        limit_gb = -1.0
    if not 0 <= limit_gb < float("inf"):
        raise UserError(f"{LIMIT}={text}: must be a number of gigabytes, 0 or more")
    return limit_gb * 1e9
