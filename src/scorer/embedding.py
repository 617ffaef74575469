"""Embed all images: decode ahead, embed one by one or in batches of one size, cache at once.

The cache is a file next to the score file, from which an interrupted scoring resumes.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import random
import time
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import ExifTags, Image
from tqdm import tqdm

from scorer.contract import MAX_DIMENSION, compare, difference, embedding, embedding_of
from scorer.errors import UserError, Violation, one_line
from scorer.manifest import Manifest
from scorer.process import ModelProcess, SandboxedModel
from scorer.retrieval import nearest
from scorer.shards import range_of

AHEAD = 8  # images
# Excludes Pillow's readers that start programs (EPS) or that are little reviewed.
FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF")
BATCH = 16  # images of one size, with --fast
HELD_BYTES = 2**28  # images waiting for others of their size
PROVEN = 3  # batches to verify one by one
# A batch is multiplied in another order than one image, and rounds differently.
FAST_TOLERANCE = {"cpu": 1e-5, "cuda": 1e-3}
AGAIN = 64  # images that a fresh process embeds again at the end
SHARED = 0.9  # share of equal neighbours, at least: rounding may swap near ties
SECRET = random.SystemRandom()  # not predictable by a submission
_MAGIC = b"scorer 1"
_RECORD = np.dtype(
    [
        ("image", "V32"),
        ("decode_seconds", "<f8"),
        ("model_seconds", "<f8"),
        ("rotated", "u1"),
        ("count", "u1"),
        ("numbers", "<f4", (MAX_DIMENSION,)),
        ("crc", "<u4"),
    ]
)


@dataclass(frozen=True)
class Decoded:
    """A decoded image, or why decoding failed."""

    image_path: str
    pixels_HW3: np.ndarray | None
    rotated: bool  # has an EXIF orientation, which the host ignores
    seconds: float
    fault: str = ""


def decode(path: Path) -> tuple[np.ndarray, bool]:
    """Decode an image of FORMATS as the host does: `convert("RGB")`, no EXIF turn, 16 bits clipped.

    Returns:
        The pixels, uint8 [H, W, 3], and whether an EXIF orientation was ignored.

    Raises:
        Exception: of any type; Pillow raises many for broken files.
    """
    Image.init()  # fills OPEN with the formats that this Pillow knows
    place = range_of(path)
    file = place.read() if place else path
    with Image.open(file, formats=[name for name in FORMATS if name in Image.OPEN]) as image:
        pixels_HW3 = np.array(image.convert("RGB"))
        orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    return pixels_HW3, orientation in range(2, 9)


def decoded(root: Path, image_paths: Iterable[str]) -> Iterator[Decoded]:
    """Yield decoded images in order; a thread decodes a few of them ahead."""

    def one(image_path: str) -> Decoded:
        began = time.perf_counter()
        try:
            pixels_HW3, rotated = decode(root / image_path)
        except Exception as error:  # see decode
            return Decoded(image_path, None, False, 0.0, one_line(error))
        return Decoded(image_path, pixels_HW3, rotated, time.perf_counter() - began)

    waiting: deque[Future[Decoded]] = deque()
    with ThreadPoolExecutor(1, "decode") as pool:
        try:
            for image_path in image_paths:
                waiting.append(pool.submit(one, image_path))
                if len(waiting) > AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


class Kept(NamedTuple):
    """The embedding of one image, and its time."""

    emb_D: np.ndarray
    decode_seconds: float
    model_seconds: float
    rotated: bool


def image_key(root: Path, image_path: str) -> bytes:
    """Return 32 bytes that depend on an image's name, size and modification time, or its content."""
    place = range_of(root / image_path)
    if place:
        words = f"{image_path}\0{place.size}\0{place.content}"
    else:
        known = os.stat(root / image_path)
        words = f"{image_path}\0{known.st_size}\0{known.st_mtime_ns}"
    return hashlib.sha256(words.encode()).digest()


class EmbeddingCache:
    """A file of records of fixed length, each with a CRC; reading stops at an incomplete one.

    Args:
        key: all else that embeddings depend on: submission, version of torch, device. A file with
            another key is overwritten.

    Raises:
        UserError: another scoring writes to the file, or the file is not such a cache.
    """

    def __init__(self, path: Path, key: str) -> None:
        self.path, head = path, _MAGIC + hashlib.sha256(key.encode()).digest()
        self.file = path.open("a+b", buffering=0)
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.file.close()
            raise UserError(f"{path}: another scoring writes to it; give another --out") from None
        self.file.seek(0)
        content = self.file.read()
        if content and not content.startswith(_MAGIC):
            self.file.close()
            raise UserError(f"{path}: not written by score.py; move it, or give another --out")
        if content[: len(head)] != head:
            self.file.truncate(0)
            self.file.write(head)
        self.records: dict[bytes, Kept] = {}
        whole = self._read(content[len(head) :]) if content[: len(head)] == head else 0
        self.file.truncate(len(head) + whole * _RECORD.itemsize)

    def _read(self, content: bytes) -> int:
        """Read the records before the first damaged one; return their number."""
        count = len(content) // _RECORD.itemsize
        for row, record in enumerate(np.frombuffer(content, _RECORD, count)):
            crc = zlib.crc32(record.tobytes()[:-4])
            if crc != record["crc"] or not 1 <= record["count"] <= MAX_DIMENSION:
                return row
            self.records[record["image"].tobytes()] = Kept(
                record["numbers"][: record["count"]].copy(),
                float(record["decode_seconds"]),
                float(record["model_seconds"]),
                bool(record["rotated"]),
            )
        return count

    def add(self, image: bytes, kept: Kept) -> None:
        """Append the record of one image."""
        record = np.zeros((), _RECORD)
        record["image"] = np.void(image)
        record["decode_seconds"], record["model_seconds"] = kept.decode_seconds, kept.model_seconds
        record["rotated"], record["count"] = kept.rotated, len(kept.emb_D)
        record["numbers"][: len(kept.emb_D)] = kept.emb_D
        record["crc"] = zlib.crc32(record.tobytes()[:-4])
        self.file.write(record.tobytes())
        self.records[image] = kept

    def close(self, remove: bool) -> None:
        """Close the file; remove it, or keep it for the next scoring."""
        if remove:
            self.path.unlink(missing_ok=True)
        self.file.close()


@dataclass(frozen=True)
class Embedded:
    """Embeddings of all images, and the cost of the pass."""

    emb_ND: np.ndarray  # float32
    decode_seconds: float  # of all images
    model_seconds: float
    rotated: int  # images with an EXIF orientation, which the host ignores
    resumed: int  # images that an earlier scoring had embedded
    fast_difference: float | None  # between batches and single images; None: one by one


def embed_images(
    sandboxed: SandboxedModel,
    model: ModelProcess,
    manifest: Manifest,
    cache: EmbeddingCache,
    fast: bool = False,
) -> Embedded:
    """Embed every image of the manifest; rows in the order of `manifest.images()`.

    The model gets images in a secret order, because the manifest's order groups related images. A fresh
    process embeds some again in another order. Answers differ there if the model remembers anything.

    Args:
        model: a process with the loaded model.
        cache: cached images are not embedded again; new embeddings are cached at once.
        fast: use batches of one size, after checking the first ones against single images.

    Raises:
        UserError: images cannot be decoded (all are named), or batches give other answers.
        Violation: the model fails on an image, an embedding breaks the contract, a fresh process
            gives other answers, or the model has changed.
    """
    rows = manifest.images()
    keys = {image_path: image_key(manifest.root, image_path) for image_path in rows}
    resumed = sum(key in cache.records for key in keys.values())
    before, pass_ = model.state(), _Pass(model, fast)
    _embed_missing(pass_, manifest, keys, cache)
    everything = {image_path: cache.records[keys[image_path]] for image_path in rows}
    expected = next(iter(everything.values())).emb_D.size
    for image_path, (emb_D, *_) in everything.items():
        if emb_D.size != expected:
            message = f"{emb_D.size} numbers, {expected} for other images"
            raise Violation(f"{image_path!r}: {message}", "dimension_varies")
    if model.state() != before:
        raise Violation("the model changed while it answered", "changes_itself")
    model.end()  # frees memory for the next process
    with sandboxed.process() as fresh:
        fresh.load()
        _check_again(fresh, manifest, everything, fast)
    return Embedded(
        np.stack([kept.emb_D for kept in everything.values()]),
        sum(kept.decode_seconds for kept in everything.values()),
        sum(kept.model_seconds for kept in everything.values()),
        sum(kept.rotated for kept in everything.values()),
        resumed,
        pass_.difference if fast else None,
    )


def _embed_missing(
    pass_: _Pass, manifest: Manifest, keys: dict[str, bytes], cache: EmbeddingCache
) -> None:
    rows, faults = manifest.images(), {}
    todo = [image_path for image_path in rows if keys[image_path] not in cache.records]
    SECRET.shuffle(todo)
    with tqdm(total=len(rows), initial=len(rows) - len(todo), desc="embed", unit="image") as bar:
        for batch in _batches(decoded(manifest.root, todo), pass_.size):
            for image in batch:
                if image.pixels_HW3 is None:
                    message = f"image {image.image_path!r} cannot be decoded ({image.fault})"
                    faults[image.image_path] = f"{rows[image.image_path]}: {message}"
            if not faults:  # otherwise only look for more bad files; there is no score
                for image, kept in pass_.embed(batch):
                    cache.add(keys[image.image_path], kept)
            bar.update(len(batch))
    manifest.refuse([faults[image_path] for image_path in rows if image_path in faults])


class _Pass:
    """Embed batches of one size; check the first of them image by image."""

    def __init__(self, model: ModelProcess, fast: bool) -> None:
        self.model, self.size = model, BATCH if fast else 1
        self.to_prove = PROVEN if fast else 0
        self.difference = 0.0

    def embed(self, batch: list[Decoded]) -> list[tuple[Decoded, Kept]]:
        """Embed a batch. Raises Violation naming the image; UserError if a batch answers differently."""
        first = batch[0].image_path
        images_BHW3 = np.stack(
            [image.pixels_HW3 for image in batch if image.pixels_HW3 is not None]
        )
        try:
            answers = self.model.embed(images_BHW3)
            embeddings = [embedding_of(answer) for answer in answers]
        except Violation as fault:
            if len(batch) > 1 and fault.verdict in ("", "wrong_dimension"):
                raise UserError(f"--fast: {fault}; score without it, one by one") from fault
            raise Violation(f"{first!r}: {fault}", fault.verdict) from fault
        if len(batch) > 1 and self.to_prove:
            self.to_prove -= 1
            for pixels_HW3, emb_D in zip(images_BHW3, embeddings, strict=True):
                (alone,) = self.model.embed(pixels_HW3[None])
                found = difference(embedding_of(alone), emb_D)
                self.difference = max(self.difference, found)
                if not found <= FAST_TOLERANCE[self.model.device.type]:
                    raise UserError(
                        f"--fast: an image alone and in a batch differ by {found:.3g} of the"
                        " embedding's scale; score without it, one by one"
                    )
        return [
            (image, Kept(emb_D, image.seconds, answer.seconds, image.rotated))
            for image, emb_D, answer in zip(batch, embeddings, answers, strict=True)
        ]


def _batches(images: Iterator[Decoded], size: int) -> Iterator[list[Decoded]]:
    """Batch images by size; if too many wait, yield the fullest batch. Yield faults at once."""
    waiting: dict[tuple[int, ...], list[Decoded]] = {}
    held = 0
    for image in images:
        if image.pixels_HW3 is None:
            yield [image]
            continue
        group = waiting.setdefault(image.pixels_HW3.shape, [])
        group.append(image)
        held += image.pixels_HW3.nbytes
        if len(group) == size or held > HELD_BYTES:
            shape = max(waiting, key=lambda shape: len(waiting[shape]))
            batch = waiting.pop(shape)
            held -= len(batch) * int(np.prod(shape))
            yield batch
    yield from waiting.values()


def _check_again(
    fresh: ModelProcess, manifest: Manifest, kept: dict[str, Kept], fast: bool
) -> None:
    """Embed a secret sample of images again, one by one. Raises Violation if an answer differs."""
    image_paths, again = list(kept), []
    rows = SECRET.sample(range(len(kept)), min(AGAIN, len(kept)))
    for image_path in (image_paths[row] for row in rows):
        pixels_HW3, _ = decode(manifest.root / image_path)
        emb_D, first_D = embedding(fresh, pixels_HW3), kept[image_path].emb_D
        again.append(emb_D)
        if fast and difference(first_D, emb_D) <= FAST_TOLERANCE[fresh.device.type]:
            continue
        what = f"{image_path!r}: its answers among the other images and in a fresh process"
        compare(first_D, emb_D, what, fresh, "depends_on_order")
    # With one large constant dimension, all informative differences could pass as rounding.
    emb_ND, own_R = np.stack([k.emb_D for k in kept.values()]), np.array(rows)
    found, found_again = (
        nearest(emb_RD, emb_ND, own_R)[0] for emb_RD in (emb_ND[own_R], np.stack(again))
    )
    shared = np.mean([np.isin(a, b).mean() for a, b in zip(found, found_again, strict=True)])
    if shared < SHARED:
        message = f"{1 - shared:.0%} of the neighbours of images differ in a fresh process"
        raise Violation(message, "depends_on_order")
