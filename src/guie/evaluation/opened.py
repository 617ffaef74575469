"""Any model that embeds images, opened by one word: what `embed.py` and `search.py` work with."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from guie.base.errors import UserError
from guie.config.layers import LayersConfig
from guie.evaluation.features.computing import recipe
from guie.model import Composition, LoadedModel, open_model, with_layers
from guie.model.embedder import Embedder
from guie.model.weights import sha256_of


@dataclass(frozen=True)
class Opened:
    """A model of any kind, as it embeds.

    Attributes: `recipe`, all that an embedding depends on but the image; `batch_size`, images of a
    process and step; `model`, None where a submission was opened.
    """

    embedder: Embedder | Composition | Submission
    preprocess: nn.Module
    recipe: dict[str, Any]
    batch_size: int
    model: LoadedModel | None = None


class Submission(nn.Module):
    """A submission's model as an embedder of raw images, one at a time.

    Raises UserError where it is no submission.
    """

    def __init__(self, path: Path, device: torch.device, folder: Path):
        super().__init__()
        # Here, for whoever has the package alone, without the scorer beside it
        from scorer.archive import unpack_model
        from scorer.errors import Violation
        from scorer.loading import load

        folder.mkdir(parents=True, exist_ok=True)
        try:
            with tempfile.TemporaryDirectory(prefix=".embed-", dir=folder) as temporary:
                self.model = load(unpack_model(path, Path(temporary)), device)
        except Violation as violation:
            raise UserError(f"{path}: {violation}") from None
        probe = torch.zeros(1, 3, 8, 8, dtype=torch.uint8, device=device)
        self.dim = self.model(probe)[0].numel()

    def forward(self, images_BCHW: Tensor, shapes_B3: Tensor | None = None) -> Tensor:
        """(1, 3, H, W) uint8 -> (1, D). It sees the image's shape itself."""
        return self.model(images_BCHW)[0].reshape(1, -1)


def open_any(
    word: str,
    accelerator: Accelerator,
    folder: Path,
    size_px: int | None = None,
    fit: str = "squash",
    batch_size: int = 128,
    layers: LayersConfig | None = None,
) -> Opened:
    """The model that a word names, on the accelerator's device: a run, a submission.zip, LIBRARY:NAME:TAG.

    Args:
        folder: where a submission is unpacked for the moment; it is made if need be.
        size_px, fit: of a library's model.
        layers: of the tower, in place of the embedding.

    Raises UserError where there is no such model.
    """
    if word.endswith(".zip"):
        if layers:
            raise UserError("--layers: a submission gives its embedding alone; give the run")
        submission = Submission(Path(word), accelerator.device, folder).eval()
        made_of = {"submission_sha256": sha256_of(Path(word))}
        # Raw images differ in size: no preprocessing here, batches of one.
        return Opened(submission, nn.Identity(), made_of, batch_size=1)
    model = open_model(word, size_px, fit)
    if layers:
        model = with_layers(model, layers)
    made_of = recipe(model, accelerator.mixed_precision)
    embedder = model.embedder.to(accelerator.device)
    return Opened(embedder, model.preprocess, made_of, batch_size, model)
