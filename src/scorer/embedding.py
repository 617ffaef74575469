"""The pass over the images: decode as the host does, embed one by one, keep the time."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import ExifTags, Image
from tqdm import tqdm

from scorer.archive import Violation, one_line
from scorer.contract import embed
from scorer.manifest import Manifest


@dataclass(frozen=True)
class Embedded:
    """Embeddings of all images, and what the pass cost."""

    emb_ND: np.ndarray  # float32
    decode_seconds: float  # of all images together
    model_seconds: float
    rotated: int  # images whose EXIF orientation asks for a turn that the host does not make


def decode(path: Path) -> tuple[np.ndarray, bool]:
    """Decode an image as the host does: `convert("RGB")`, no EXIF turn, 16 bits clipped.

    Returns:
        The pixels, uint8 [H, W, 3], and whether an EXIF orientation was ignored.

    Raises:
        Exception: whatever Pillow raises for a broken file, which is of many types.
    """
    with Image.open(path) as image:
        pixels_HW3 = np.array(image.convert("RGB"))
        orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    return pixels_HW3, orientation in range(2, 9)


def embed_images(
    model: torch.jit.ScriptModule, manifest: Manifest, device: torch.device
) -> Embedded:
    """Embed every image of the manifest, one call each, in the order of `manifest.images()`.

    Raises:
        UserError: images that cannot be decoded, all of them named.
        Violation: the model fails on an image, or an embedding breaks the contract.
    """
    embeddings: list[np.ndarray] = []
    faults: list[str] = []
    rotated, decode_seconds, model_seconds = 0, 0.0, 0.0
    for image_path, row in tqdm(manifest.images().items(), desc="embed", unit="image"):
        start = time.perf_counter()
        try:
            pixels_HW3, is_rotated = decode(manifest.root / image_path)
        except Exception as error:  # see decode
            faults.append(f"{row}: image {image_path!r} cannot be decoded ({one_line(error)})")
        if faults:
            continue  # there will be no score: only look for further bad files
        decoded = time.perf_counter()
        embeddings.append(_embed(model, pixels_HW3, device, image_path, embeddings))
        rotated += is_rotated
        decode_seconds += decoded - start
        model_seconds += time.perf_counter() - decoded
    manifest.refuse(faults)
    return Embedded(np.stack(embeddings), decode_seconds, model_seconds, rotated)


def _embed(
    model: torch.jit.ScriptModule,
    pixels_HW3: np.ndarray,
    device: torch.device,
    image_path: str,
    earlier: list[np.ndarray],
) -> np.ndarray:
    try:
        emb_D = embed(model, pixels_HW3, device)
        if earlier and emb_D.size != earlier[0].size:
            raise Violation(f"{emb_D.size} numbers, {earlier[0].size} for earlier images")
    except Violation as violation:
        raise Violation(f"{image_path!r}: {violation}") from violation
    return emb_D
