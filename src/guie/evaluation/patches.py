"""Compute the patch features of a vision transformer, for re-ranking by local features.

Shapes: T rows of a table, B images, S side in pixels, P patches, F features of a patch.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional

from guie.base.devices import make_accelerator
from guie.base.errors import UserError
from guie.data.manifest import Manifest
from guie.models.layers import capture_outputs
from guie.models.opening import LoadedModel, open_model
from guie.rows.embedding import embed_files

MOST_BYTES = 2**33  # of the patches that `embed_patches` returns


class PatchFeatures(nn.Module):
    """A model's backbone that returns the patches after its last block, each of unit length.

    Attributes: `patches` (P), a square grid; `dim`, P x F.

    Raises UserError for an ensemble, or a backbone that is not a plain vision transformer.
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
    """Return the patches of each row's image by a model: float32 (T, P, F).

    Args:
        word: run folder or LIBRARY:NAME:TAG.

    Raises UserError for a model without patches, or if they need more memory than MOST_BYTES.
    """
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
    patches_ND = embed_files(
        make_accelerator(),
        features,
        model.preprocess,
        files,
        manifest.sidecar.decode,
        title="patches",
    )
    return patches_ND.reshape(len(paths), features.patches, -1)[place_T]
