"""Embed all images one by one: decode ahead, embed, save every ten minutes.

Shape legend: H height, W width, N all images, D dimension of an embedding.
"""

import io
import os
import random
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import ExifTags, Image
from tqdm import tqdm

from scorer import contract
from scorer.contract import compare, embedding, embedding_of
from scorer.errors import Violation, one_line
from scorer.manifest import Manifest
from scorer.process import ModelProcess
from scorer.retrieval import nearest

AHEAD = 8  # images
# Excludes Pillow's readers that start programs (EPS) or that are little reviewed.
FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF")
AGAIN = 64  # images that a fresh process embeds again at the end
SHARED = 0.9  # share of equal neighbours, at least: rounding may swap near ties
SECRET = random.SystemRandom()  # not predictable by a submission
SAVE_SECONDS = 600
COSTS = 3  # numbers after an embedding: seconds of decoding, seconds of the model, is rotated


class Decoded(NamedTuple):
    """A decoded image."""

    image_path: str
    pixels_HW3: np.ndarray
    rotated: bool  # has an EXIF orientation, which the host ignores
    seconds: float


def decode(file: str | Path | io.BytesIO) -> tuple[np.ndarray, bool]:
    """Decode an image of FORMATS as the host does: `convert("RGB")`, no EXIF turn, 16 bits clipped.

    Returns the pixels, uint8 [H, W, 3], and whether an EXIF orientation was ignored. Pillow raises many
    types of exceptions for broken files.
    """
    Image.init()  # fills OPEN with the formats that this Pillow knows
    with Image.open(file, formats=[name for name in FORMATS if name in Image.OPEN]) as image:
        pixels_HW3 = np.array(image.convert("RGB"))
        orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    return pixels_HW3, orientation in range(2, 9)


def decoded(
    manifest: Manifest, image_paths: list[str], faults: dict[str, str]
) -> Iterator[Decoded | None]:
    """Yield images in order, decoded by a thread a few ahead; None for each that goes to `faults`."""

    def one(image_path: str) -> Decoded | None:
        began = time.perf_counter()
        try:
            pixels_HW3, rotated = decode(manifest.open(image_path))
        except Exception as error:  # see decode
            faults[image_path] = one_line(error)
            return None
        return Decoded(image_path, pixels_HW3, rotated, time.perf_counter() - began)

    waiting: deque[Future[Decoded | None]] = deque()
    with ThreadPoolExecutor(1, "decode") as pool:
        for image_path in image_paths:
            waiting.append(pool.submit(one, image_path))
            if len(waiting) > AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


class Progress:
    """The embeddings so far and their costs, in an .npz file from which a stopped scoring resumes.

    `key` is all that embeddings depend on, except the image. A file with another key is ignored.
    """

    def __init__(self, path: Path, key: str) -> None:
        self.path, self.key, self.saved = path, key, time.monotonic()
        self.rows: dict[str, np.ndarray] = {}  # by `Manifest.key`: (D + COSTS,), float64
        if path.exists():
            with np.load(path) as file:
                if str(file["key"]) == key:
                    self.rows = dict(zip(file["images"].tolist(), file["rows"], strict=True))

    def save(self) -> None:
        """Write the file, by a temporary one; remove it if there is no row."""
        if not self.rows:
            self.path.unlink(missing_ok=True)
            return
        temporary = self.path.with_suffix(".tmp.npz")
        images, rows = list(self.rows), list(self.rows.values())
        np.savez(temporary, key=self.key, images=images, rows=rows)
        os.replace(temporary, self.path)
        self.saved = time.monotonic()


def embed_images(
    path: Path, process: ModelProcess, manifest: Manifest, progress: Progress
) -> tuple[np.ndarray, dict[str, Any]]:
    """Embed every image of the manifest: float32 [N, D], in the order of `manifest.images`; and the costs.

    The model gets images in a secret order, because the manifest's order groups related images. A fresh
    process embeds some again in another order. Answers differ there if the model remembers anything.

    Args:
        path: of the model, for the fresh process.
        process: with the loaded model.
        progress: its images are not embedded again; new ones are added and saved, also on an
            interruption. The file is removed if the submission breaks the contract.

    Raises UserError if images cannot be decoded (all are named), and Violation if the submission breaks the
    contract.
    """
    keys = {image_path: manifest.key(image_path) for image_path in manifest.images}
    resumed = sum(key in progress.rows for key in keys.values())
    before = process.call("state")
    try:
        _embed_missing(process, manifest, progress, keys)
        rows_N = np.stack([progress.rows[key] for key in keys.values()])
        emb_ND = rows_N[:, :-COSTS].astype(np.float32)
        after = process.call("state")
        process.end()  # frees memory for the next process
        with ModelProcess(path, process.limits) as fresh:
            fresh.call("load")
            _check_again(fresh, manifest, emb_ND)
        if after != before:
            raise Violation("the model changed while it answered", "changes_itself")
    except Violation as fault:
        if fault.verdict != "too_slow":
            progress.rows.clear()
        raise
    finally:
        progress.save()
    decode, model, _ = rows_N[:, -COSTS:].mean(axis=0)
    return emb_ND, {
        "dimension": emb_ND.shape[1],
        "seconds_per_image": {"decode": decode, "model": model, "total": decode + model},
        "projected_hours": (decode + model) * contract.CHALLENGE_IMAGES / 3600,
        "limit_hours": contract.LIMIT_HOURS,
        "peak_memory_mb": process.peak_bytes / 2**20,
        "images": len(emb_ND),
        "images_with_exif_rotation": int(rows_N[:, -1].sum()),
        "images_resumed": resumed,
    }


def _embed_missing(
    process: ModelProcess, manifest: Manifest, progress: Progress, keys: dict[str, str]
) -> None:
    """Add the rows of missing images to `progress`. Raises UserError and Violation as embed_images."""
    todo = [image_path for image_path, key in keys.items() if key not in progress.rows]
    SECRET.shuffle(todo)
    faults: dict[str, str] = {}
    known = next(iter(progress.rows.values()), None)
    dimension = 0 if known is None else len(known) - COSTS
    with tqdm(total=len(keys), initial=len(keys) - len(todo), desc="embed", unit="image") as bar:
        for image in decoded(manifest, todo, faults):
            bar.update()
            if image is None or faults:  # only look for more of them; there is no score
                continue
            try:
                kind, numbers_D, seconds = process.embed(image.pixels_HW3)
                emb_D = embedding_of(kind, numbers_D)
            except Violation as fault:
                raise Violation(f"{image.image_path!r}: {fault}", fault.verdict) from fault
            dimension = dimension or len(emb_D)
            if len(emb_D) != dimension:
                message = f"{len(emb_D)} numbers, {dimension} for other images"
                raise Violation(f"{image.image_path!r}: {message}", "dimension_varies")
            row = np.array([*emb_D, image.seconds, seconds, image.rotated])
            progress.rows[keys[image.image_path]] = row
            if time.monotonic() - progress.saved > SAVE_SECONDS:
                progress.save()
    wrong = [(path, row["row"]) for path, row in manifest.images.items() if path in faults]
    manifest.refuse([f"{row}: image {p!r} cannot be decoded ({faults[p]})" for p, row in wrong])


def _check_again(fresh: ModelProcess, manifest: Manifest, emb_ND: np.ndarray) -> None:
    """Embed a secret sample of images again. Raises Violation if an answer differs."""
    image_paths = list(manifest.images)
    own_R = np.array(SECRET.sample(range(len(emb_ND)), min(AGAIN, len(emb_ND))))
    again_RD = np.empty((len(own_R), emb_ND.shape[1]), np.float32)
    for i, row in enumerate(own_R):
        pixels_HW3, _ = decode(manifest.open(image_paths[row]))
        again_D = embedding(fresh, pixels_HW3)
        what = f"{image_paths[row]!r}: answers among other images and in a fresh process"
        compare(emb_ND[row], again_D, what, fresh.device, "depends_on_order")
        again_RD[i] = again_D
    # With one large constant dimension, all informative differences could pass as rounding.
    found_RK, again_RK = (nearest(emb_RD, emb_ND, own_R)[0] for emb_RD in (emb_ND[own_R], again_RD))
    shared = np.mean([np.isin(a, b).mean() for a, b in zip(found_RK, again_RK, strict=True)])
    if shared < SHARED:
        message = f"{1 - shared:.0%} of the neighbours of images differ in a fresh process"
        raise Violation(message, "depends_on_order")
