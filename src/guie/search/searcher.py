"""Query an index with an image, a part of one, an image of the index, or a text."""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from PIL import Image

from guie.base.arguments import LOCAL, Corners, methods_of
from guie.base.errors import UserError
from guie.data.images import DECODERS, cropped
from guie.data.shards.storage import as_path
from guie.evaluation.queries import QueryModel
from guie.evaluation.rerank import Reranker
from guie.search.engines import Domains, Exact, Hit, engine_of
from guie.search.table import Index
from guie.search.updating import recipe_hash

FRESH_S = 1.0  # between looks for a newer version


class Searcher:
    """An index at one version, and its model, which is loaded for the first query.

    Args:
        model: new path or name of the model, if it has moved.
        rerank: names of `guie.base.arguments`, which correct the order of the neighbours.
        root: new folder of the images, if they have moved.

    Raises UserError for an unknown name, or if an index of regions or an approximate one is to be re-ranked.
    """

    def __init__(
        self,
        folder: str | Path,
        model: str | None = None,
        rerank: Sequence[str] = (),
        root: str | Path | None = None,
    ):
        self._root, self.rerank, self._lock = root, methods_of(rerank), Lock()
        self.index = Index(folder)
        self.engine, self._checked_s, facts = engine_of(self.index), 0.0, self.index.facts
        if self.rerank and (facts.regions > 1 or facts.ann):
            kind = "an approximate search" if facts.ann else "several regions of an image"
            fault = f"--rerank: {self.index.name} has {kind}, which cannot be re-ranked"
            raise UserError(f"{fault}; make another index without it")
        self.model = QueryModel(model or facts.model, facts.size_px, facts.fit, self._check)

    def refresh(self) -> None:
        """Open the newest version, if an update has written one; it looks once a second.

        Raises UserError if it is gone, or has another model.
        """
        with self._lock:
            if time.monotonic() < self._checked_s + FRESH_S:
                return
            latest = Index(self.index.folder)
            if latest.stamp != self.index.stamp:
                if latest.facts.recipe != self.index.facts.recipe:
                    raise UserError(f"{latest.name}: has another model now; start again")
                self.index, self.engine = latest, engine_of(latest)
            self._checked_s = time.monotonic()

    @property
    def root(self) -> Path:
        """The folder of the images."""
        return as_path(self._root or self.index.facts.root)

    def _check(self, recipe: dict[str, Any]) -> None:
        """Raise UserError if the index was not made with the model of this recipe.

        A query is embedded in float32, whatever the precision of the index.
        """
        facts = self.index.facts
        if "mixed_precision" in recipe:
            recipe = recipe | {"mixed_precision": facts.precision}
        if recipe_hash(recipe) != facts.recipe:
            fault = f"not the model that {self.index.name} was made with, or has other weights"
            remedy = "index the images again, or give that model with --model"
            raise UserError(f"{self.model.word}: {fault}; vectors cannot be compared; {remedy}")

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
        return self.query_many([cropped(self.decoded(picture), box)], k, domain)[0]

    def query_many(
        self, pictures: Sequence[str | Path | Image.Image], k: int = 10, domain: str | None = None
    ) -> list[list[Hit]]:
        """Return the K images nearest to each of several."""
        images = [self.decoded(picture) for picture in pictures]
        patches_BPF = self.model.patches(images) if LOCAL in self.rerank else None
        return self.near(self.model.embed(images), k, domain, patches_BPF=patches_BPF)

    def query_text(self, text: str, k: int = 10, domain: str | None = None) -> list[Hit]:
        """Return the K images nearest to a text, without a confidence: that is measured on images."""
        hits = self.near(self.model.embed_text(text), k, domain)[0]
        return [replace(hit, sure=None) for hit in hits]

    def like(self, image_path: str, k: int = 10, domain: str | None = None) -> list[Hit]:
        """Return the K images nearest to an image of the index, without itself. Raises UserError."""
        own, engine, patches_BPF = [image_path], self.engine, None
        vectors_BD = engine.vectors(own)
        if not len(vectors_BD):
            raise UserError(f"{image_path}: not in the index")
        if LOCAL in self.rerank and isinstance(engine, Exact):
            patches_BPF = self._patches_of(engine, engine.rows_of(own))
        return self.near(vectors_BD, k, domain, own, patches_BPF)[0]

    def decoded(self, picture: str | Path | Image.Image) -> Image.Image:
        """Return an image as those of the index were decoded. Raises UserError."""
        if isinstance(picture, Image.Image):
            return picture
        return DECODERS[self.index.facts.decode](picture)

    def near(
        self,
        queries_BD: np.ndarray,
        k: int = 10,
        domain: str | None = None,
        own: Sequence[str] | None = None,
        patches_BPF: np.ndarray | None = None,
    ) -> list[list[Hit]]:
        """Return the K images nearest to each unit vector (B, D), or the first K after re-ranking.

        Args:
            domain: only search domains whose name contains this text.
            own: an image to leave out for each query.
            patches_BPF: of the queries; None leaves the method `local` out.

        Raises UserError if no domain contains the text, or a vector is not finite.
        """
        if not np.isfinite(queries_BD).all():
            raise UserError("the query's embedding has a value that is not finite; check the model")
        domains: Domains = None
        known = self.index.facts.domains
        if domain:
            domains = tuple(name for name in known if domain.casefold() in name.casefold())
            if not domains:
                names = ", ".join(known) or "none"
                raise UserError(f"no domain contains {domain!r}; the index has: {names}")
        queries_BD, engine = queries_BD.astype(np.float32), self.engine
        if not self.rerank or not isinstance(engine, Exact):
            return engine.near(queries_BD, k, own, domains)
        if domains not in engine.rerankers:
            find, rows_R = partial(engine.find, domains=domains), engine.search_of(domains)[1]
            patches_of = partial(self._patches_of, engine)
            settings = engine.vectors_ND, find, self.rerank, rows_R, patches_of
            engine.rerankers[domains] = Reranker(*settings)
        own_B = engine.rows_of(own or [None] * len(queries_BD))
        rows_BK, _ = engine.rerankers[domains].search(queries_BD, k, own_B, patches_BPF)
        return [
            engine.found(query_D, rows_K, engine.vectors_ND[rows_K] @ query_D)
            for query_D, rows_K in zip(queries_BD, rows_BK, strict=True)
        ]

    def _patches_of(self, engine: Exact, rows_C: np.ndarray) -> np.ndarray:
        """Return the patches of indexed images (C, P, F), from their files."""
        paths = engine.files["image_path"].to_numpy(object)[rows_C]
        return self.model.patches_of([self.root / path for path in paths], self.decoded)


open_index = Searcher  # as in `guie.open_index(folder)`
