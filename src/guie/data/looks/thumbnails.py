"""Features without a model: what two copies of one picture have in common at 16 x 16 pixels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from guie.data.images import open_as_seen
from guie.data.looks.decoding import mapped
from guie.data.looks.views import VIEWS

SIDE_PX = 16


def thumbnails(paths: Sequence[str], view: str, root: Path, workers: int) -> np.ndarray:
    """(N, 768) float32 of unit length: the pixels of each image's view, less their mean.

    Raises UserError naming a file that cannot be decoded.
    """
    rows = list(mapped(partial(_thumbnail, Path(root), view), paths, workers))
    return np.stack(rows) if rows else np.zeros((0, 3 * SIDE_PX**2), np.float32)


def _thumbnail(root: Path, view: str, image_path: str) -> np.ndarray:
    image = VIEWS[view](open_as_seen(root / image_path))
    small = np.asarray(image.resize((SIDE_PX, SIDE_PX), reducing_gap=2.0), np.float32).ravel()
    small -= small.mean()
    return small / max(float(np.linalg.norm(small)), 1.0)  # a plain picture is like no other
