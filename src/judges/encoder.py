"""Adapt a model to mteb's encoder interface."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mteb.models import ModelMeta
from mteb.models.abs_encoder import AbsEncoder
from mteb.models.model_meta import ScoringFunction
from torch import Tensor

from guie.base.devices import make_accelerator
from guie.base.errors import UserError
from guie.data.dataset import Samples, as_batch, image_shapes
from guie.evaluation.embedding import embed_dataset
from guie.evaluation.feature_cache import recipe
from guie.models import LoadedModel


class RunEncoder(AbsEncoder):
    """A run, an ensemble or a library's model as an mteb encoder, for images only.

    Embeddings equal those of embed.py: the same preprocessing and the same loop. Decoding is mteb's:
    its loader rotates an image by its EXIF tag, which the challenge's scorer does not.

    Args:
        model: the result of `guie.models.open_model`.
    """

    def __init__(self, model: LoadedModel):
        self.model = model
        self.accelerator = make_accelerator()
        model.embedder.to(self.accelerator.device)
        self.mteb_model_meta = _meta(model, self.accelerator.mixed_precision)

    def encode(
        self,
        inputs: Any,
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        prompt_type: Any = None,
        **kwargs: Any,
    ) -> np.ndarray:
        """Embed the N rows of mteb's loader in order: (N, D) float32 of unit length.

        Args:
            inputs: mteb's loader; as many processes as it has (`num_proc`) read its data set.
            kwargs: `batch_size`; mteb's other arguments are ignored.

        Raises:
            UserError: the task needs more than images, for example texts.
        """
        asked = list(task_metadata.get_modalities(prompt_type))
        if asked != ["image"]:
            raise UserError(
                f"{task_metadata.name}: needs embeddings of {' and '.join(asked)};"
                f" {self.model.source} embeds only images; choose an image task"
            )
        return embed_dataset(
            self.accelerator,
            self.model.embedder,
            TaskImages(inputs.dataset, self.model.preprocess),
            batch_size=kwargs.get("batch_size", 128),
            workers=inputs.num_workers,
            title=task_metadata.name,
        )


class TaskImages(Samples):
    """The images of a task's rows, after the preprocessing that is exported."""

    def __init__(self, rows: Any, preprocess: Callable[[Tensor], Tensor]):
        self.rows, self.preprocess = rows, preprocess

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Return the network's input and the image's shape (3,), like `EvalDataset`."""
        image_1CHW = as_batch(np.asarray(self.rows[index]["image"].convert("RGB")))
        return self.preprocess(image_1CHW)[0], image_shapes(image_1CHW)[0]


def _meta(model: LoadedModel, mixed_precision: str) -> Any:
    """Describe the model. The revision hashes weights and preprocessing: mteb caches results by it."""
    made_of = json.dumps(recipe(model, mixed_precision), sort_keys=True).encode()
    return ModelMeta.create_empty(
        {
            "name": f"guie/{Path(model.source).name.replace(':', '-')}",
            "revision": hashlib.sha256(made_of).hexdigest()[:16],
            "n_parameters": sum(weight.numel() for weight in model.embedder.parameters()),
            "embed_dim": model.embedder.dim,
            "framework": ["PyTorch"],
            "similarity_fn_name": ScoringFunction.COSINE,
            "modalities": ["image"],
        }
    )
