"""What a prompt pool makes of images: the weight of each prompt (PUMA, figure 4).

Shapes: B images of a batch, M prompts.
"""

from __future__ import annotations

import pandas as pd
from torch import Tensor, nn

from guie.base.devices import make_accelerator
from guie.base.errors import UserError
from guie.data.manifest import Manifest
from guie.evaluation.extract import embed_files
from guie.model import Embedder, LoadedModel
from guie.model.adapters import Pool
from guie.model.backbone import Backbone


class Weights(nn.Module):
    """A backbone that gives the weights of its prompts in the place of features. `dim`: M."""

    def __init__(self, backbone: Backbone):
        super().__init__()
        self.backbone, self.dim = backbone, backbone.prompts.config.size
        self._seen: Tensor | None = None
        backbone.prompts.weighing.register_forward_hook(self._see)

    def forward(self, images_BCHW: Tensor, shapes_B3: Tensor | None = None) -> Tensor:
        """(B, 3, S, S) preprocessed images -> cosines (B, M)."""
        self.backbone(images_BCHW)
        assert self._seen is not None
        return self._seen

    def _see(self, module: nn.Module, args: object, weights_BM: Tensor) -> None:
        self._seen = weights_BM


def prompt_weights(
    model: LoadedModel, manifest: Manifest, split: str = "test", workers: int = 2
) -> pd.DataFrame:
    """The mean weight of each prompt (column) over the images of each domain (row) of a split.

    Raises UserError for a model without a prompt pool.
    """
    embedder = model.embedder
    if not isinstance(embedder, Embedder) or not isinstance(embedder.backbone.prompts, Pool):
        raise UserError(f"{model.source}: has no prompt pool")
    rows = manifest.split(split).drop_duplicates("image_path")
    files = [manifest.file(path) for path in rows["image_path"]]
    accelerator = make_accelerator()
    weigher = Weights(embedder.to(accelerator.device).backbone)
    weights_NM = embed_files(
        accelerator, weigher, model.preprocess, files, workers=workers, title="weights"
    )
    return pd.DataFrame(weights_NM).groupby(rows["domain"].to_numpy()).mean()
