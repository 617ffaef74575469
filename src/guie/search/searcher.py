"""Query an index with an image, a part of one, an image of the index, or a text.

Shapes: B pictures, D dimensions.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from PIL import Image

from guie.base.arguments import LOCAL, Corners, methods_of
from guie.base.devices import make_accelerator
from guie.base.errors import UserError, why_unreadable
from guie.base.files import shown
from guie.data.dataset import as_batch, image_shapes
from guie.data.images import DECODERS
from guie.evaluation.knn import unit_vectors
from guie.evaluation.opened import EmbeddingModel, load_embedding_model
from guie.evaluation.patches import PatchFeatures
from guie.evaluation.rerank import Reranker
from guie.models.pretrained import sha256_of
from guie.search.engines import Engine, among, engine_of, sure, within
from guie.search.index import (
    FLAT,
    REMEDY,
    Facts,
    Index,
    read_current,
    read_generation,
    recipe_hash,
)
from guie.search.regions import BestRegion, regions_of, vector_rows

if TYPE_CHECKING:
    from guie.evaluation.text import TextEncoder


KEPT_PATCHES = 4096  # images whose patches stay in memory: 77 MB for ViT-Ti/16 at 112 px


@dataclass(frozen=True)
class Hit:
    """A neighbour. `distance`: Euclidean, of unit vectors; `sure`: see `guie.search.engines.sure`.

    `region`: left, top, right and bottom of the nearest part, in shares of the image; None for the whole.
    """

    row: int
    image_path: str
    domain: str
    label: str
    similarity: float
    distance: float
    sure: float | None
    region: tuple[float, float, float, float] | None = None

    @property
    def description(self) -> str:
        """The line that search.py prints."""
        sure = "" if self.sure is None else f"  sure {self.sure:.2f}"
        about = f"  {self.label or self.domain}" if self.label or self.domain else ""
        part = f"  at {','.join(f'{at:.2f}' for at in self.region)}" if self.region else ""
        return f"  {self.distance:.3f}{sure}  {shown(self.image_path)}{about}{part}"


class Searcher:
    """An index and its model, which is loaded for the first query.

    Args:
        model: new path or name of the model, if it has moved.
        rerank: names of `guie.base.arguments`, which correct the order of the neighbours.

    Raises UserError for an unknown name, or if an index of regions is to be re-ranked.
    """

    def __init__(
        self,
        index: Index,
        engine: Engine,
        model: str | None = None,
        rerank: Sequence[str] = (),
    ):
        self.index, self.engine = index, engine
        self.vectors_ND = index.vectors_ND  # of regions, if the index has any
        self.regions = regions_of(index.facts.regions)
        self.rerank = methods_of(rerank)
        if self.rerank and len(self.regions) > 1:
            raise UserError(
                f"--rerank: {index.folder} has several regions of an image, which cannot be re-ranked;"
                " index the images without --regions, into another --out"
            )
        self._word = model or index.facts.model
        self._opened: EmbeddingModel | None = None
        self._encoder: TextEncoder | None = None
        self._features: PatchFeatures | None = None
        self._kept: OrderedDict[int, np.ndarray] = OrderedDict()  # patches by row
        self._patch_lock = Lock()
        self._lock = Lock()  # only one thread at a time uses the model

    @property
    def domains(self) -> list[str]:
        """The domains of the index, sorted."""
        return sorted(set(self._domain_codes[1]) - {""})

    @cached_property
    def _domain_codes(self) -> tuple[np.ndarray, pd.Index]:
        """(N,) code of each row's domain, and the domains by their codes; as numbers, rows compare fast."""
        code_N, names = pd.factorize(self.index.files["domain"])
        return code_N.astype(np.min_scalar_type(len(names))), names

    def open_model(self) -> EmbeddingModel:
        """Load the model once. Raises UserError if it is missing or is not the index's model."""
        with self._lock:
            if self._opened is None:
                facts = self.index.facts
                folder, accelerator = self.index.folder, make_accelerator()
                if self._word.endswith(".zip"):
                    # A submission contains code, so its hash is checked before it is loaded.
                    path = Path(self._word)
                    if why := why_unreadable(path, "submission"):
                        raise UserError(f"{why}; give its new path with --model")
                    self._check({"submission_sha256": sha256_of(path)})
                opened = load_embedding_model(
                    self._word, accelerator, folder, facts.size_px, facts.fit
                )
                self._check(opened.recipe)
                opened.embedder.eval()
                self._opened, self._device = opened, accelerator.device
        return self._opened

    def _check(self, recipe: dict[str, Any]) -> None:
        """Raise UserError if the index was not made with the model of this recipe.

        A query is embedded in float32, whatever the precision of the index.
        """
        facts = self.index.facts
        if "mixed_precision" in recipe:
            recipe = recipe | {"mixed_precision": facts.precision}
        if recipe_hash(recipe) != facts.recipe:
            raise UserError(
                f"{self._word}: not the model that {self.index.folder} was made with, or has other weights;"
                " vectors cannot be compared; index the images again, or give that model with --model"
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
        return unit_vectors(torch.cat(rows).numpy(), [f"image {n}" for n in range(len(rows))])

    @property
    def takes_texts(self) -> bool:
        """Whether a text can be a query: the model is a CLIP with its text encoder."""
        from guie.evaluation.text import takes_texts  # open_clip takes a second to import

        model = self.open_model().model
        return model is not None and takes_texts(model)

    def embed_text(self, text: str) -> np.ndarray:
        """Embed a text in the space of the images; return a unit vector (D).

        Raises UserError for a model without a text encoder, or an empty text.
        """
        from guie.evaluation.text import TextEncoder

        if not text.strip():
            raise UserError("the text is empty; describe what the image shows")
        model = self.open_model().model
        if model is None:
            raise UserError(f"{self._word}: a submission takes only images; query with an image")
        with self._lock:
            if self._encoder is None:
                self._encoder = TextEncoder(model)
            return self._encoder.embed([text])[0]

    def query_text(self, text: str, k: int = 10, domain: str | None = None) -> list[Hit]:
        """Return the K images nearest to a text.

        Raises UserError as `embed_text`, or for an unknown domain.
        """
        return self.near(self.embed_text(text), k, domain, is_text=True)

    def patches(self, pictures: Sequence[Image.Image]) -> np.ndarray | None:
        """Return the patches of upright RGB images (B, P, F); None without the method `local`.

        Raises UserError for a model that is not a plain vision transformer.
        """
        if LOCAL not in self.rerank:
            return None
        opened = self.open_model()
        with self._lock, torch.inference_mode():
            if self._features is None:
                if opened.model is None:
                    raise UserError("--rerank local: a submission has no patches; index a run")
                self._features = PatchFeatures(opened.model)
            rows = []
            for picture in pictures:
                image_BCHW = opened.preprocess(as_batch(np.asarray(picture))).to(self._device)
                rows.append(self._features(image_BCHW).cpu().numpy())
        return np.concatenate(rows).reshape(len(rows), self._features.patches, -1)

    def patches_of_row(self, row: int) -> np.ndarray | None:
        """Return the patches of an indexed image (1, P, F); None without the method `local`."""
        return self._patches_of(np.array([row])) if LOCAL in self.rerank else None

    def _patches_of(self, rows_C: np.ndarray) -> np.ndarray:
        """Return the patches of indexed images, computed from their files.

        An unreadable image has the patches of a black one.
        """
        with self._patch_lock:
            for row in map(int, rows_C):
                if row in self._kept:
                    continue
                path = Path(self.index.facts.root) / self.index.files["image_path"].iloc[row]
                try:
                    picture = DECODERS[self.index.facts.decode](path)
                except UserError:
                    picture = Image.new("RGB", (8, 8))
                patches_1PF = self.patches([picture])
                assert patches_1PF is not None
                self._kept[row] = patches_1PF[0].astype(np.float16)
            found = [self._kept[int(row)] for row in rows_C]
            while len(self._kept) > KEPT_PATCHES:
                self._kept.popitem(last=False)
        return np.stack(found).astype(np.float32)

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
        if not isinstance(picture, Image.Image):
            picture = DECODERS[self.index.facts.decode](picture)
        part = cropped(picture, box)
        return self.near(self.embed([part])[0], k, domain, patches_1PF=self.patches([part]))

    def like(self, row: int, k: int = 10, domain: str | None = None) -> list[Hit]:
        """Return the K images nearest to an image of the index, without itself."""
        query_D = self.vector_of_row(row)
        return self.near(query_D, k, domain, own=row, patches_1PF=self.patches_of_row(row))

    def vector_of_row(self, row: int) -> np.ndarray:
        """Return the vector (D) of a whole image of the index."""
        return np.asarray(self.vectors_ND[row * len(self.regions)])

    def near(
        self,
        query_D: np.ndarray,
        k: int = 10,
        domain: str | None = None,
        own: int | None = None,
        is_text: bool = False,
        patches_1PF: np.ndarray | None = None,
    ) -> list[Hit]:
        """Return the K images nearest to a unit vector, or the first K after re-ranking.

        Args:
            domain: only search domains whose name contains this text.
            own: a row to leave out.
            is_text: the query was a text; its neighbours have no confidence, measured on images.
            patches_1PF: result of `patches` for the query; None leaves the method `local` out.

        Raises UserError if no domain contains the text.
        """
        if not np.isfinite(query_D).all():
            if own is None:
                raise UserError(
                    "the query's embedding has a value that is not finite; check the model"
                )
            # Possible in a large index, which is not fully checked when opened
            path = self.index.data / FLAT
            raise UserError(f"{path}: row {own}: a value that is not finite; {REMEDY}")
        query_D = query_D.astype(np.float32)
        own_1 = np.array([-1 if own is None else own])
        rows_R = self._rows_of(domain) if domain else None
        if self.rerank:
            rows_K = self._reranked(query_D, k, rows_R, own_1, patches_1PF)
            score_K = self.vectors_ND[rows_K] @ query_D
        elif rows_R is not None and len(self.regions) == 1:
            rows_K, score_K = among(self.vectors_ND, rows_R, query_D, k, own)
        else:
            engine = self.engine if rows_R is None else self._best_region(rows_R)
            rows_1K, score_1K = engine.search(query_D[None], k, own_1)
            rows_K, score_K = rows_1K[0][rows_1K[0] >= 0], score_1K[0][rows_1K[0] >= 0]
        hits = [self._hit(int(r), float(s)) for r, s in zip(rows_K, score_K, strict=True)]
        if len(self.regions) > 1:
            hits = [replace(hit, region=self._region(query_D, hit.row)) for hit in hits]
        return [replace(hit, sure=None) for hit in hits] if is_text else hits

    def _best_region(self, rows_R: np.ndarray) -> BestRegion:
        """Return an exact search of some images by their regions."""
        count = len(self.regions)
        find = within(self.vectors_ND, vector_rows(rows_R, count))
        return BestRegion(lambda queries, k: find(queries, k, np.full(len(queries), -1)), count)

    def _region(self, query_D: np.ndarray, row: int) -> tuple[float, float, float, float] | None:
        first = row * len(self.regions)
        nearest = int(np.argmax(self.vectors_ND[first : first + len(self.regions)] @ query_D))
        left, top, side = self.regions[nearest]
        return (left, top, left + side, top + side) if nearest else None

    def _reranked(
        self,
        query_D: np.ndarray,
        k: int,
        rows_R: np.ndarray | None,
        own_1: np.ndarray,
        patches_1PF: np.ndarray | None,
    ) -> np.ndarray:
        """Return the first K rows after re-ranking, among all rows or some."""
        reranker = self._reranker
        if rows_R is not None:
            find = within(self.vectors_ND, rows_R)
            reranker = Reranker(self.vectors_ND, find, self.rerank, rows_R, self._patches_of)
        rows_1K, _ = reranker.search(query_D[None], k, own_1, patches_1PF)
        return rows_1K[0][rows_1K[0] >= 0]

    @cached_property
    def _reranker(self) -> Reranker:
        find = self.engine.search
        return Reranker(self.vectors_ND, find, self.rerank, patches_of=self._patches_of)

    def _rows_of(self, letters: str) -> np.ndarray:
        code_N, names = self._domain_codes
        is_wanted_C = [name != "" and letters.casefold() in name.casefold() for name in names]
        if not any(is_wanted_C):
            known = ", ".join(self.domains) or "none"
            raise UserError(f"no domain contains {letters!r}; the index has: {known}")
        return np.flatnonzero(np.array(is_wanted_C)[code_N])

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


def open_index(
    folder: str | Path, model: str | None = None, rerank: Sequence[str] = ()
) -> Searcher:
    """Open an index for queries; arguments are those of `Searcher`.

    Raises UserError if the index is missing or damaged.
    """
    folder = Path(folder)

    def opened(facts: Facts) -> Searcher:
        index = read_generation(folder, facts)
        return Searcher(index, engine_of(index), model, rerank)

    return read_current(folder, opened)


def cropped(picture: Image.Image, box: Corners | None) -> Image.Image:
    """Crop an image to a box; None keeps it whole. Raises UserError for a box outside it."""
    if box is None:
        return picture
    left, top, right, bottom = box
    if not (0 <= left < right <= picture.width and 0 <= top < bottom <= picture.height):
        raise UserError(
            f"box {','.join(map(str, box))}: is not in the image of {picture.width} x {picture.height};"
            " it is left,top,right,bottom in pixels"
        )
    return picture.crop(box)
