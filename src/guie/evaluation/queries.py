"""Embed single images and texts as queries, by one model that several threads share.

Shapes: B images, D dimensions, P patches of an image, F features of a patch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from guie.base.devices import make_accelerator
from guie.base.errors import UserError, why_unreadable
from guie.base.files import cache_folder
from guie.data.dataset import as_batch, image_shapes
from guie.evaluation.knn import unit_vectors
from guie.evaluation.opened import EmbeddingModel, PatchFeatures, load_embedding_model
from guie.models.opening import LoadedModel
from guie.models.pretrained import sha256_of

if TYPE_CHECKING:
    from guie.evaluation.text import TextEncoder

KEPT = 4096  # images whose patches stay in memory: 77 MB for ViT-Ti/16 at 112 px


class QueryModel:
    """A model that is loaded for the first query, by `load_embedding_model`.

    `check` raises UserError for the recipe of a model that is not the expected one.
    """

    def __init__(
        self, word: str, size_px: int | None, fit: str, check: Callable[[dict[str, Any]], None]
    ):
        self.word, self._settings, self._check = word, (size_px, fit), check
        self._kept = lru_cache(KEPT)(self._patches)
        self._lock = RLock()  # only one thread at a time uses the model

    @cached_property
    def opened(self) -> EmbeddingModel:
        """The model. Raises UserError if it is missing or not the expected one."""
        if self.word.endswith(".zip"):
            # A submission contains code, so its hash is checked before it is loaded.
            path = Path(self.word)
            if why := why_unreadable(path, "submission"):
                raise UserError(f"{why}; give its new path with --model")
            self._check({"submission_sha256": sha256_of(path)})
        accelerator = make_accelerator()
        self._device = accelerator.device
        try:
            opened = load_embedding_model(self.word, accelerator, cache_folder(), *self._settings)
        except UserError as error:
            raise UserError(f"{error}; if it has moved, give its new path with --model") from None
        self._check(opened.recipe)
        opened.embedder.eval()
        return opened

    def embed(self, images: Sequence[Image.Image]) -> np.ndarray:
        """Embed upright RGB images; return unit vectors (B, D)."""
        with self._lock:
            emb_BD = self._outputs(images, self.opened.embedder)
        return unit_vectors(emb_BD, [f"image {n}" for n in range(len(images))])

    @torch.inference_mode()
    def _outputs(self, images: Sequence[Image.Image], module: nn.Module) -> np.ndarray:
        """Return what a module gives for each preprocessed image, float32."""
        rows = []
        for image in images:
            image_1CHW = as_batch(np.asarray(image))
            inputs = self.opened.preprocess(image_1CHW), image_shapes(image_1CHW)
            output = module(*(part.to(self._device) for part in inputs))
            rows.append(output.float().cpu().numpy())
        return np.concatenate(rows)

    @property
    def takes_texts(self) -> bool:
        """Whether a text can be a query: the model is a CLIP with its text encoder."""
        from guie.evaluation.text import takes_texts  # open_clip takes a second to import

        with self._lock:
            return self.opened.model is not None and takes_texts(self.opened.model)

    def _model(self, remedy: str) -> LoadedModel:
        if self.opened.model is None:
            raise UserError(f"{self.word}: a submission has only embeddings of images; {remedy}")
        return self.opened.model

    @cached_property
    def _encoder(self) -> TextEncoder:
        from guie.evaluation.text import TextEncoder

        return TextEncoder(self._model("query with an image"))

    def embed_text(self, text: str) -> np.ndarray:
        """Embed a text in the space of the images; return a unit vector (1, D). Raises UserError."""
        if not text.strip():
            raise UserError("the text is empty; describe what the image shows")
        with self._lock:
            return self._encoder.embed([text])

    @cached_property
    def _features(self) -> PatchFeatures:
        return PatchFeatures(self._model("for --rerank local, index a run"))

    def patches(self, images: Sequence[Image.Image]) -> np.ndarray:
        """Return the patches of upright RGB images (B, P, F). Raises UserError."""
        with self._lock:
            found = self._outputs(images, self._features)
        return found.reshape(len(images), self._features.patches, -1)

    def patches_of(
        self, files: Sequence[Path], decode: Callable[[Path], Image.Image]
    ) -> np.ndarray:
        """Return the patches of image files (B, P, F), rounded to float16; an unreadable image is black."""
        with self._lock:
            return np.stack([self._kept(file, decode) for file in files]).astype(np.float32)

    def _patches(self, file: Path, decode: Callable[[Path], Image.Image]) -> np.ndarray:
        try:
            image = decode(file)
        except UserError:
            image = Image.new("RGB", (8, 8))
        return self.patches([image])[0].astype(np.float16)
