"""A model behind mteb's protocol for encoders."""

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
    """A run, several models as one, or a library's model, as mteb takes it: for images alone.

    Embeddings are those of embed.py: the same preprocessing, the same loop. What a picture looks like
    is mteb's affair: its loader turns it by its EXIF tag, which the challenge's scorer does not.

    Args:
        model: as `guie.models.open_model` gives it.
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
        """(N, D) float32 of unit length, for the N rows of mteb's loader, in their order.

        Args:
            inputs: its data set is read by as many processes as the loader has (`num_proc`).
            kwargs: `batch_size`; mteb's others say nothing here.

        Raises:
            UserError: the task asks for more than images, a text say.
        """
        asked = list(task_metadata.get_modalities(prompt_type))
        if asked != ["image"]:
            raise UserError(
                f"{task_metadata.name}: asks for embeddings of {' and '.join(asked)};"
                f" {self.model.source} embeds images alone"
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
    """The images of a task's rows, through the preprocessing that is exported."""

    def __init__(self, rows: Any, preprocess: Callable[[Tensor], Tensor]):
        self.rows, self.preprocess = rows, preprocess

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """The network's input, and the shape (3,) of the image, as `EvalDataset` has them."""
        image_1CHW = as_batch(np.asarray(self.rows[index]["image"].convert("RGB")))
        return self.preprocess(image_1CHW)[0], image_shapes(image_1CHW)[0]


def _meta(model: LoadedModel, mixed_precision: str) -> Any:
    """Who is judged. The revision stands for weights and preprocessing: mteb keeps results by it."""
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
