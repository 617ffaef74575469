"""Embed all images: decode ahead, embed one by one or in batches of one size, save every ten minutes.

Shape legend: B images of one size, H height, W width, N all images, D dimension of an embedding.
"""

from __future__ import annotations

import hashlib
import os
import random
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import ExifTags, Image
from tqdm import tqdm

from scorer.contract import compare, difference, embedding, embedding_of
from scorer.errors import UserError, Violation, one_line
from scorer.manifest import Manifest
from scorer.process import ModelProcess, UnpackedModel
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
SAVE_SECONDS = 600


class Decoded(NamedTuple):
    """A decoded image, or why decoding failed."""

    image_path: str
    pixels_HW3: np.ndarray | None
    rotated: bool = False  # has an EXIF orientation, which the host ignores
    seconds: float = 0.0
    fault: str = ""


class Embedding(NamedTuple):
    """The embedding of one image, and its time."""

    emb_D: np.ndarray
    decode_seconds: float
    model_seconds: float
    rotated: bool


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
            return Decoded(image_path, None, fault=one_line(error))
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


class Progress:
    """The embeddings so far, in an .npz file from which an interrupted scoring resumes.

    Args:
        key: all else that embeddings depend on: submission, version of torch, device. Embeddings of
            another key are dropped.

    As a context it saves at the end, also where it is interrupted. If the submission breaks the contract,
    it removes the file, except after `too_slow`.

    Raises UserError if the file is none of this kind.
    """

    def __init__(self, path: Path, key: str) -> None:
        self.path, self.key, self.saved = path, key, time.monotonic()
        self.images: dict[str, Embedding] = {}  # by `image_key`
        if not path.exists():
            return
        try:
            with np.load(path) as file:
                if str(file["key"]) == key:
                    columns = (file["emb_ND"], *file["seconds_2N"].tolist(), file["rotated_N"])
                    rows = map(Embedding, *columns)
                    self.images = dict(zip(file["images_N"].tolist(), rows, strict=True))
        except Exception as error:  # NumPy raises many types
            raise UserError(
                f"{path}: not written by score.py; move it ({one_line(error)})"
            ) from error

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: object, fault: BaseException | None, trace: object) -> None:
        if isinstance(fault, Violation) and fault.verdict != "too_slow":
            self.path.unlink(missing_ok=True)
        else:
            self.save()

    def add(self, image: str, embedding: Embedding) -> None:
        """Keep the embedding of one image; save all if the last time is SAVE_SECONDS ago."""
        self.images[image] = embedding
        if time.monotonic() - self.saved > SAVE_SECONDS:
            self.save()

    def save(self) -> None:
        """Write the file, if there is an embedding, by a temporary one."""
        if not self.images:
            return
        emb_ND, decode_N, model_N, rotated_N = zip(*self.images.values(), strict=True)
        temporary = self.path.with_suffix(".tmp.npz")
        np.savez(
            temporary,
            key=self.key,
            images_N=list(self.images),
            emb_ND=np.stack(emb_ND),
            seconds_2N=[decode_N, model_N],
            rotated_N=rotated_N,
        )
        os.replace(temporary, self.path)
        self.saved = time.monotonic()


def image_key(root: Path, image_path: str) -> str:
    """Return a digest of an image's name, size and modification time; in shards, of its content."""
    if place := range_of(root / image_path):
        words = f"{image_path}\0{place.size}\0{place.content}"
    else:
        known = os.stat(root / image_path)
        words = f"{image_path}\0{known.st_size}\0{known.st_mtime_ns}"
    return hashlib.sha256(words.encode()).hexdigest()


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
    model: UnpackedModel,
    process: ModelProcess,
    manifest: Manifest,
    progress: Progress,
    fast: bool = False,
) -> Embedded:
    """Embed every image of the manifest; rows in the order of `manifest.images()`.

    The model gets images in a secret order, because the manifest's order groups related images. A fresh
    process embeds some again in another order. Answers differ there if the model remembers anything.

    Args:
        process: with the loaded model.
        progress: its images are not embedded again; new ones are added.
        fast: use batches of one size, after checking the first ones against single images.

    Raises:
        UserError: images cannot be decoded (all are named), or batches give other answers.
        Violation: the model fails on an image, an embedding breaks the contract, a fresh process
            gives other answers, or the model has changed.
    """
    rows = manifest.images()
    keys = {image_path: image_key(manifest.root, image_path) for image_path in rows}
    todo = [image_path for image_path in rows if keys[image_path] not in progress.images]
    SECRET.shuffle(todo)
    before, embedder, faults = process.ask("state"), _Embedder(process, fast), {}
    with tqdm(total=len(rows), initial=len(rows) - len(todo), desc="embed", unit="image") as bar:
        for batch in _batches(decoded(manifest.root, todo), embedder.size):
            for image in batch:
                if image.pixels_HW3 is None:
                    message = f"image {image.image_path!r} cannot be decoded ({image.fault})"
                    faults[image.image_path] = f"{rows[image.image_path]}: {message}"
            if not faults:  # otherwise only look for more bad files; there is no score
                for image, embedding in zip(batch, embedder.embed(batch), strict=True):
                    progress.add(keys[image.image_path], embedding)
            bar.update(len(batch))
    manifest.refuse([faults[image_path] for image_path in rows if image_path in faults])
    after = process.ask("state")
    process.end()  # frees memory for the next process
    everything = [progress.images[keys[image_path]] for image_path in rows]
    emb_ND = np.stack([one.emb_D for one in everything])
    with model.process() as fresh:
        fresh.ask("load")
        _check_again(fresh, manifest, emb_ND, fast)
    if after != before:
        raise Violation("the model changed while it answered", "changes_itself")
    return Embedded(
        emb_ND,
        sum(one.decode_seconds for one in everything),
        sum(one.model_seconds for one in everything),
        sum(bool(one.rotated) for one in everything),
        len(rows) - len(todo),
        embedder.difference if fast else None,
    )


class _Embedder:
    """Embed batches of one size; check the first of them image by image."""

    def __init__(self, process: ModelProcess, fast: bool) -> None:
        self.process, self.size = process, BATCH if fast else 1
        self.to_prove = PROVEN if fast else 0
        self.difference = 0.0
        self.dimension = 0  # of the first embedding

    def embed(self, batch: list[Decoded]) -> list[Embedding]:
        """Embed a batch. Raises Violation naming the image; UserError if a batch answers differently."""
        first = batch[0].image_path
        images_BHW3 = np.stack([one.pixels_HW3 for one in batch if one.pixels_HW3 is not None])
        try:
            answers = self.process.embed(images_BHW3)
            embeddings = [embedding_of(answer) for answer in answers]
        except Violation as fault:
            if len(batch) > 1 and fault.verdict in ("", "wrong_dimension"):
                raise UserError(f"--fast: {fault}; score without it, one by one") from fault
            raise Violation(f"{first!r}: {fault}", fault.verdict) from fault
        if len(batch) > 1 and self.to_prove:
            self.to_prove -= 1
            self._prove(images_BHW3, embeddings)
        for image, emb_D in zip(batch, embeddings, strict=True):
            self.dimension = self.dimension or len(emb_D)
            if len(emb_D) != self.dimension:
                message = f"{len(emb_D)} numbers, {self.dimension} for other images"
                raise Violation(f"{image.image_path!r}: {message}", "dimension_varies")
        return [
            Embedding(emb_D, image.seconds, answer.seconds, image.rotated)
            for image, emb_D, answer in zip(batch, embeddings, answers, strict=True)
        ]

    def _prove(self, images_BHW3: np.ndarray, embeddings: list[np.ndarray]) -> None:
        for pixels_HW3, emb_D in zip(images_BHW3, embeddings, strict=True):
            found = difference(embedding(self.process, pixels_HW3), emb_D)
            self.difference = max(self.difference, found)
            if not found <= FAST_TOLERANCE[self.process.device]:
                raise UserError(
                    f"--fast: an image alone and in a batch differ by {found:.3g} of the"
                    " embedding's scale; score without it, one by one"
                )


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


def _check_again(fresh: ModelProcess, manifest: Manifest, emb_ND: np.ndarray, fast: bool) -> None:
    """Embed a secret sample of images again, one by one. Raises Violation if an answer differs."""
    image_paths = list(manifest.images())
    own_R = np.array(SECRET.sample(range(len(emb_ND)), min(AGAIN, len(emb_ND))))
    again_RD = np.empty((len(own_R), emb_ND.shape[1]), np.float32)
    for i, row in enumerate(own_R):
        pixels_HW3, _ = decode(manifest.root / image_paths[row])
        again_D = embedding(fresh, pixels_HW3)
        if not fast or not difference(emb_ND[row], again_D) <= FAST_TOLERANCE[fresh.device]:
            what = (
                f"{image_paths[row]!r}: its answers among the other images and in a fresh process"
            )
            compare(emb_ND[row], again_D, what, fresh.device, "depends_on_order")
        again_RD[i] = again_D
    # With one large constant dimension, all informative differences could pass as rounding.
    found_RK, again_RK = (nearest(emb_RD, emb_ND, own_R)[0] for emb_RD in (emb_ND[own_R], again_RD))
    shared = np.mean([np.isin(a, b).mean() for a, b in zip(found_RK, again_RK, strict=True)])
    if shared < SHARED:
        message = f"{1 - shared:.0%} of the neighbours of images differ in a fresh process"
        raise Violation(message, "depends_on_order")
