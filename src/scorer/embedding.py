"""Embed all images: decode ahead, embed one by one or in batches of one size, cache at once."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from tqdm import tqdm

from scorer.cache import EmbeddingCache, Kept, image_key
from scorer.contract import compare, difference, embedding, embedding_of
from scorer.decoding import Decoded, decode, decoded
from scorer.errors import UserError, Violation
from scorer.isolated.process import ModelProcess, SandboxedModel
from scorer.manifest import Manifest
from scorer.neighbours import nearest

BATCH = 16  # images of one size, with --fast
HELD_BYTES = 2**28  # images waiting for others of their size
PROVEN = 3  # batches to verify one by one
# A batch is multiplied in another order than one image, and rounds differently.
FAST_TOLERANCE = {"cpu": 1e-5, "cuda": 1e-3}
AGAIN = 64  # images that a fresh process embeds again at the end
SHARED = 0.9  # share of equal neighbours, at least: rounding may swap near ties
SECRET = random.SystemRandom()  # not predictable by a submission


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
    _check_counts(everything)
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
            self._prove(images_BHW3, embeddings)
        return [
            (image, Kept(emb_D, image.seconds, answer.seconds, image.rotated))
            for image, emb_D, answer in zip(batch, embeddings, answers, strict=True)
        ]

    def _prove(self, images_BHW3: np.ndarray, embeddings: list[np.ndarray]) -> None:
        for pixels_HW3, emb_D in zip(images_BHW3, embeddings, strict=True):
            (alone,) = self.model.embed(pixels_HW3[None])
            found = difference(embedding_of(alone), emb_D)
            self.difference = max(self.difference, found)
            if not found <= FAST_TOLERANCE[self.model.device.type]:
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


def _check_counts(kept: dict[str, Kept]) -> None:
    expected = next(iter(kept.values())).emb_D.size
    for image_path, (emb_D, *_) in kept.items():
        if emb_D.size != expected:
            message = f"{emb_D.size} numbers, {expected} for other images"
            raise Violation(f"{image_path!r}: {message}", "dimension_varies")


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
