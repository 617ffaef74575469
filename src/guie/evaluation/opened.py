"""Load any model that embeds images by its name; embed texts, patches, and the weights of prompts.

Shapes: N files, T rows of a table, B images, D dimensions, P patches, F features of a patch, M prompts.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn import functional

from guie.base.devices import make_accelerator
from guie.base.errors import UserError
from guie.base.files import refuse_special
from guie.config.model import LayersConfig
from guie.data.manifest import Manifest
from guie.data.manifest.companions import read_companion
from guie.models.adapters.prompts import Pool
from guie.models.backbones.base import Backbone
from guie.models.embedder import Embedder
from guie.models.ensemble import Ensemble
from guie.models.layers import capture_outputs
from guie.models.opening import LoadedModel, open_model, trained_precision, with_layers
from guie.models.pretrained import sha256_of
from guie.rows.embedding import embed_files, recipe
from scorer.archive import MODEL_NAME, unpack_model
from scorer.contract import embedding_of
from scorer.errors import one_line
from scorer.runtime import refuse_file_access

MOST_BYTES = 2**33  # of the patches that `embed_patches` returns


@dataclass(frozen=True)
class EmbeddingModel:
    """A model of any kind, ready to embed."""

    embedder: Embedder | Ensemble | Submission
    preprocess: nn.Module
    recipe: dict[str, Any]  # all that an embedding depends on except the image
    batch_size: int  # images per process and step
    model: LoadedModel | None = None  # None for a submission


class Submission(nn.Module):
    """A submission's model that embeds raw images, one at a time, as the challenge's scorer does.

    Open trusted files only: its code runs in this process. Code that names an operator which reads or
    writes files is refused. The file is unpacked in `folder` until it is loaded.

    Raises UserError if the file is not a submission, or the model fails or varies its dimension.
    """

    def __init__(self, path: Path, device: torch.device, folder: Path):
        super().__init__()
        refuse_special(path)
        self.path, self.device = path, device
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".embed-", dir=folder) as temporary:
            unpacked = Path(temporary, MODEL_NAME)
            with self._refusals(), warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*torch.jit.*")  # it is deprecated
                unpack_model(path, unpacked)
                refuse_file_access(unpacked)
                self.module = torch.jit.load(str(unpacked), map_location=device).eval()
        self.dim = self._embedding(torch.zeros(1, 3, 8, 8, dtype=torch.uint8)).numel()

    def forward(self, images_BCHW: Tensor, shapes_B3: Tensor | None = None) -> Tensor:
        """Map (1, 3, H, W) uint8 to (1, D). The model reads the image's shape itself."""
        embedding_D = self._embedding(images_BCHW)
        if len(embedding_D) != self.dim:
            raise UserError(
                f"{self.path}: {len(embedding_D)} dimensions for one image, and {self.dim} for another; a"
                " submission must return as many for every image"
            )
        return embedding_D[None]

    def _embedding(self, image_1CHW: Tensor) -> Tensor:
        """Return the first row of the output in fp32, (D), on the CPU."""
        # In the memory layout of the challenge's scorer, and without a precision of ours
        image_1CHW = image_1CHW.to(self.device).contiguous(memory_format=torch.channels_last)
        with self._refusals(), torch.no_grad(), torch.autocast(self.device.type, enabled=False):
            row_D = torch.flatten(self.module(image_1CHW)[0]).cpu()
            embedding_of(str(row_D.dtype), row_D.float().numpy())  # raises Violation
        return row_D.float()

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # PyTorch raises many types
            raise UserError(f"{self.path}: {one_line(error)}") from error


def embedding_precision(word: str, chosen: str | None) -> str | None:
    """Return the precision of autocast to embed with, for `make_accelerator`.

    The default is the run's own on a GPU, and full precision on a CPU. None leaves it to `accelerate launch
    --mixed_precision`, which is `no` by default.
    """
    if chosen or not torch.cuda.is_available():
        return chosen
    return trained_precision(word)


def load_embedding_model(
    word: str,
    accelerator: Accelerator,
    folder: Path,
    size_px: int | None = None,
    fit: str = "squash",
    batch_size: int = 128,
    layers: LayersConfig | None = None,
) -> EmbeddingModel:
    """Load a run folder, a submission.zip or LIBRARY:NAME:TAG onto the accelerator's device.

    Args:
        folder: of a `Submission`; created if needed.
        size_px, fit: of a library's model.
        layers: of the backbone, returned in place of the embedding.

    Raises UserError if there is no such model.
    """
    if word.endswith(".zip"):
        if layers:
            raise UserError("--layers: a submission returns only its embedding; give the run")
        submission = Submission(Path(word), accelerator.device, folder).eval()
        made_of = {"submission_sha256": sha256_of(Path(word))}
        # Raw images differ in size, so there is no preprocessing here and batches have one image.
        return EmbeddingModel(submission, nn.Identity(), made_of, batch_size=1)
    model = open_model(word, size_px, fit)
    if layers:
        model = with_layers(model, layers)
    made_of = recipe(model, accelerator.mixed_precision)
    embedder = model.embedder.to(accelerator.device)
    return EmbeddingModel(embedder, model.preprocess, made_of, batch_size, model)


def open_in_actor(
    precision: str | None, word: str, *settings: Any
) -> tuple[Accelerator, Embedder | Ensemble | Submission, nn.Module]:
    """Open a model as `load_embedding_model` does, in an actor of Ray."""
    accelerator = make_accelerator(mixed_precision=precision)
    opened = load_embedding_model(word, accelerator, *settings)
    return accelerator, opened.embedder, opened.preprocess


def embed_texts(path: str | None, opened: EmbeddingModel) -> np.ndarray:
    """Return the embeddings of the texts in a file: float32 (T, D), none without a file. Raises UserError."""
    if path is None:
        return np.zeros((0, opened.embedder.dim), np.float32)
    if opened.model is None:
        raise UserError(
            "--texts: a submission takes only images; give the run that it was made from"
        )
    # Imported here, as it imports open_clip, which a model of timm does not need.
    from guie.evaluation.text import TextEncoder

    return TextEncoder(opened.model).embed(read_companion(Path(path), "texts")["text"].tolist())


class PatchFeatures(nn.Module):
    """A model's backbone that returns the patches after its last block, each of unit length.

    Attributes: `patches` (P), a square grid; `dim`, P x F. Raises UserError for an ensemble, or a backbone
    that is not a plain vision transformer.
    """

    def __init__(self, model: LoadedModel):
        super().__init__()
        _, embedder = model.alone("patches come from one of them")
        self.backbone = embedder.backbone
        structure = self.backbone.structure()
        if structure is None or self.backbone.prompts is not None:
            raise UserError(
                f"--rerank local: {model.source}: its backbone is not a plain vision transformer"
            )
        self._prefix = structure.prefix
        names = {module: name for name, module in self.backbone.tower.named_modules()}
        self._last = names[structure.blocks[-1].module]
        side, device = self.backbone.size_px, next(self.backbone.parameters()).device
        with torch.inference_mode():
            probed_1PF = self._patches(torch.zeros(1, 3, side, side, device=device))
        self.patches, self.dim = probed_1PF.shape[1], probed_1PF[0].numel()

    def forward(self, images_BCHW: Tensor, shapes_B3: Tensor | None = None) -> Tensor:
        """Map preprocessed images (B, 3, S, S) to float32 (B, P x F)."""
        return self._patches(images_BCHW).flatten(1)

    def _patches(self, images_BCHW: Tensor) -> Tensor:
        with capture_outputs(self.backbone.tower, [self._last]) as heard:
            self.backbone.tower(images_BCHW)
        return functional.normalize(heard[self._last][:, self._prefix :].float(), dim=-1)


def embed_patches(word: str, manifest: Manifest, table: pd.DataFrame) -> np.ndarray:
    """Return the patches of each row's image by the model `word`: float32 (T, P, F). Raises UserError."""
    model = open_model(word)
    features = PatchFeatures(model)
    paths, place_T = np.unique(table["image_path"].to_numpy(str), return_inverse=True)
    needed = 4 * len(paths) * features.dim
    if needed > MOST_BYTES:
        raise UserError(
            f"--rerank local: the patches of {len(paths):,} images need {needed / 2**30:.0f} GB; at most"
            f" {MOST_BYTES / 2**30:.0f} GB are used; use search.py, or a smaller split"
        )
    files = [manifest.file(path) for path in paths]
    inputs = make_accelerator(), features, model.preprocess, files, manifest.sidecar.decode
    patches_ND = embed_files(*inputs, title="patches")
    return patches_ND.reshape(len(paths), features.patches, -1)[place_T]


class PromptWeights(nn.Module):
    """A backbone that returns the weights of its M prompts in place of features."""

    def __init__(self, backbone: Backbone):
        super().__init__()
        self.backbone, self.dim = backbone, backbone.prompts.config.size

    def forward(self, images_BCHW: Tensor, shapes_B3: Tensor | None = None) -> Tensor:
        """Map (B, 3, S, S) preprocessed images to cosines (B, M)."""
        with capture_outputs(self.backbone, ["prompts.weighing"]) as heard:
            self.backbone(images_BCHW)
        return heard["prompts.weighing"]


def prompt_weights(
    model: LoadedModel, manifest: Manifest, split: str = "test", workers: int | None = None
) -> pd.DataFrame:
    """Return each prompt's mean weight (column) over each domain's images (row). Raises UserError."""
    embedder = model.embedder
    if not isinstance(embedder, Embedder) or not isinstance(embedder.backbone.prompts, Pool):
        raise UserError(f"{model.source}: the model has no prompt pool")
    rows = manifest.split(split).drop_duplicates("image_path")
    files = [manifest.file(path) for path in rows["image_path"]]
    weigher = PromptWeights(embedder.backbone)
    inputs = make_accelerator(), weigher, model.preprocess, files, manifest.sidecar.decode
    weights_NM = embed_files(*inputs, workers=workers, title="weights")
    return pd.DataFrame(weights_NM).groupby(rows["domain"].to_numpy()).mean()
