"""Query an index with an image, a part of one, or an image of the index.

Shapes: B pictures, D dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
from PIL import Image

from guie.base.arguments import Corners
from guie.base.devices import make_accelerator
from guie.base.errors import UserError
from guie.data.dataset import as_batch, image_shapes
from guie.data.images import open_as_seen
from guie.evaluation.embeddings import unit_vectors
from guie.evaluation.opened import EmbeddingModel, load_embedding_model
from guie.models.pretrained import sha256_of
from guie.search.engines import Engine, among, engine_of, sure
from guie.search.index import FLAT, REMEDY, Index, read_index, recipe_hash


@dataclass(frozen=True)
class Hit:
    """A neighbour. `distance`: Euclidean, of unit vectors; `sure`: see `guie.search.engines.sure`."""

    row: int
    image_path: str
    domain: str
    label: str
    similarity: float
    distance: float
    sure: float | None

    @property
    def description(self) -> str:
        """The line that search.py prints."""
        sure = "" if self.sure is None else f"  sure {self.sure:.2f}"
        about = f"  {self.label or self.domain}" if self.label or self.domain else ""
        return f"  {self.distance:.3f}{sure}  {self.image_path}{about}"


class Searcher:
    """An index and its model, which is loaded for the first query.

    Args:
        model: new path or name of the model, if it has moved.

    Raises UserError if the vectors on disk do not match the index.
    """

    def __init__(self, index: Index, engine: Engine, model: str | None = None):
        self.index, self.engine = index, engine
        self.vectors_ND = index.vectors()
        self._word = model or index.facts.model
        self._opened: EmbeddingModel | None = None
        self._lock = Lock()  # only one thread at a time uses the model

    @property
    def domains(self) -> list[str]:
        """The domains of the index, sorted."""
        return sorted(set(self.index.files["domain"]) - {""})

    def open_model(self) -> EmbeddingModel:
        """Load the model once. Raises UserError if it is missing or is not the index's model."""
        with self._lock:
            if self._opened is None:
                facts = self.index.facts
                folder, accelerator = self.index.folder, make_accelerator()
                if self._word.endswith(".zip"):
                    # A submission contains code, so its hash is checked before it is loaded.
                    path = Path(self._word)
                    if not path.is_file():
                        raise UserError(
                            f"{path}: no such submission; give its new path with --model"
                        )
                    self._check({"submission_sha256": sha256_of(path)})
                opened = load_embedding_model(
                    self._word, accelerator, folder, facts.size_px, facts.fit
                )
                self._check(opened.recipe)
                opened.embedder.eval()
                self._opened, self._device = opened, accelerator.device
        return self._opened

    def _check(self, recipe: dict[str, Any]) -> None:
        """Raise UserError if the index was not made with the model of this recipe."""
        if recipe_hash(recipe) != self.index.facts.recipe:
            raise UserError(
                f"{self._word}: not the model that {self.index.folder} was made with, or has other weights;"
                " vectors cannot be compared; index the pictures again, or give that model with --model"
            )

    @torch.inference_mode()
    def embed(self, pictures: Sequence[Image.Image]) -> np.ndarray:
        """Embed upright RGB images; return unit vectors (B, D)."""
        opened = self.open_model()
        with self._lock:
            rows = []
            for picture in pictures:
                image_1CHW = as_batch(np.asarray(picture))
                taken = opened.preprocess(image_1CHW), image_shapes(image_1CHW)
                emb_1D = opened.embedder(*(part.to(self._device) for part in taken))
                rows.append(emb_1D.float().cpu())
        return unit_vectors(torch.cat(rows).numpy(), [f"picture {n}" for n in range(len(rows))])

    def query(
        self,
        picture: str | Path | Image.Image,
        k: int = 10,
        box: Corners | None = None,
        domain: str | None = None,
    ) -> list[Hit]:
        """Return the K images nearest to this one, or to a part of it.

        Raises UserError for an image that cannot be decoded, a box outside it, or an unknown domain.
        """
        image = picture if isinstance(picture, Image.Image) else open_as_seen(picture)
        return self.near(self.embed([cropped(image, box)])[0], k, domain)

    def like(self, row: int, k: int = 10, domain: str | None = None) -> list[Hit]:
        """Return the K images nearest to an image of the index, without itself."""
        return self.near(np.asarray(self.vectors_ND[row]), k, domain, own=row)

    def near(
        self, query_D: np.ndarray, k: int = 10, domain: str | None = None, own: int | None = None
    ) -> list[Hit]:
        """Return the K images nearest to a unit vector.

        Args:
            domain: only search domains whose name contains this text.
            own: a row to leave out.

        Raises UserError if no domain contains the text.
        """
        if not np.isfinite(
            query_D
        ).all():  # possible in a large index, which is not fully checked when opened
            path = self.index.data / FLAT
            raise UserError(f"{path}: row {own}: a value that is not finite; {REMEDY}")
        if domain:
            rows_R = self._rows_of(domain)
            rows_K, score_K = among(self.vectors_ND, rows_R, query_D, k, own)
        else:
            owns = None if own is None else [own]
            rows_1K, score_1K = self.engine.search(query_D[None].astype(np.float32), k, owns)
            rows_K, score_K = rows_1K[0][rows_1K[0] >= 0], score_1K[0][rows_1K[0] >= 0]
        return [self._hit(int(r), float(s)) for r, s in zip(rows_K, score_K, strict=True)]

    def _rows_of(self, letters: str) -> np.ndarray:
        wanted = {name for name in self.domains if letters.casefold() in name.casefold()}
        if not wanted:
            known = ", ".join(self.domains) or "none"
            raise UserError(f"no domain contains {letters!r}; the index has: {known}")
        return np.flatnonzero(self.index.files["domain"].isin(wanted))

    def _hit(self, row: int, similarity: float) -> Hit:
        about = self.index.files.iloc[row]
        distance = math.sqrt(max(0.0, 2 - 2 * similarity))
        return Hit(
            row=row,
            image_path=str(about["image_path"]),
            domain=str(about["domain"]),
            label=str(about["label"]),
            similarity=similarity,
            distance=distance,
            sure=sure(self.index.facts.sureness, similarity),
        )


def open_index(folder: str | Path, model: str | None = None) -> Searcher:
    """Open an index for queries.

    Args:
        model: new path or name of its model, if that has moved.

    Raises UserError if the index is missing or damaged.
    """
    index = read_index(folder)
    return Searcher(index, engine_of(index), model)


def cropped(picture: Image.Image, box: Corners | None) -> Image.Image:
    """Crop an image to a box; None keeps it whole. Raises UserError for a box outside it."""
    if box is None:
        return picture
    left, top, right, bottom = box
    if not (0 <= left < right <= picture.width and 0 <= top < bottom <= picture.height):
        raise UserError(
            f"box {','.join(map(str, box))}: is not in the picture of {picture.width} x {picture.height};"
            " it is left,top,right,bottom in pixels"
        )
    return picture.crop(box)
