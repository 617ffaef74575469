"""Backbone and head as one module, and how a trained run is loaded again.

Shapes: B images, F backbone features, D dimensions of the embedding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from guie.config import RunConfig, load_config
from guie.config.model import ModelConfig
from guie.errors import UserError
from guie.files import replacing
from guie.model.backbone import Backbone, build_backbone
from guie.model.head import Head
from guie.model.preprocess import Preprocess
from guie.model.reduction import Reduction
from guie.model.scored import Scored


class Embedder(nn.Module):
    """images -> embedding of unit length. Without a head: the backbone's features, normalised.

    Attributes: `dim` (D).
    """

    def __init__(self, backbone: Backbone, head: Head | None, reduction: Reduction | None = None):
        super().__init__()
        self.backbone, self.head, self.reduction = backbone, head, reduction
        self.dim = (reduction or head or backbone).dim

    def forward(self, images_BCHW: Tensor, shapes_B3: Tensor | None = None) -> Tensor:
        """(B, 3, S, S) preprocessed images -> (B, D) float32 embeddings of unit length.

        Args:
            shapes_B3: `image_shapes` of the original images, for a head that takes them.
        """
        return self.embed(self.backbone(images_BCHW), shapes_B3)

    def embed(self, feat_BF: Tensor, shapes_B3: Tensor | None = None) -> Tensor:
        """The head's part alone: (B, F) features -> as `forward`."""
        emb_BD = self.head(feat_BF, shapes_B3) if self.head else feat_BF
        emb_BD = functional.normalize(emb_BD.float(), dim=-1)
        if self.reduction:
            emb_BD = functional.normalize(self.reduction(emb_BD).float(), dim=-1)
        return emb_BD


@dataclass(frozen=True)
class LoadedModel:
    """What embedding, validation and export need of a model."""

    embedder: Embedder
    preprocess: Preprocess
    config: ModelConfig
    source: str

    @property
    def scored(self) -> Scored:
        """Both as one module, from the image to its embedding."""
        return Scored(self.preprocess, self.embedder)


def build_embedder(config: ModelConfig, weights: bool = True) -> Embedder:
    """Embedder as configured, the backbone pretrained unless `weights` is False."""
    backbone = build_backbone(config.backbone, config.image.size_px, weights)
    return attach_head(backbone, config)


def attach_head(backbone: Backbone, config: ModelConfig) -> Embedder:
    """Put the configured head, if any, on a backbone."""
    head = config.head
    if head is None:
        return Embedder(backbone, None)
    reduction = Reduction(head.dim, head.reduced_dim) if head.reduced_dim else None
    return Embedder(backbone, Head(head, backbone.dim), reduction)


def build_preprocess(config: ModelConfig, backbone: Backbone, size_px: int) -> Preprocess:
    """The one preprocessing: of training, validation, embedding and the submission."""
    image = config.image
    return Preprocess(size_px, image.mean or backbone.mean, image.std or backbone.std, image.fit)


def load_model(run: str | Path, weights: str = "model.safetensors") -> LoadedModel:
    """Load a trained run by its folder: the best weights, or those of another file there.

    Raises UserError if the folder is no run.
    """
    run = Path(run)
    if not (run / "config.yaml").is_file():
        raise UserError(f"{run}: not a run folder (no config.yaml)")
    if not (run / weights).is_file():
        raise UserError(f"{run}: no {weights}; has the training reached its first validation?")
    config = load_config(run / "config.yaml", RunConfig)
    state, size_px, stride_px = _read(run / weights)
    return rebuild(config.model, state, size_px, stride_px, str(run))


def rebuild(
    config: ModelConfig,
    state: Mapping[str, Tensor],
    size_px: int,
    stride_px: int | None,
    source: str,
) -> LoadedModel:
    """A trained model from its config and weights, to be scored: branches of the head are folded.

    Args:
        state: the embedder's weights.
        size_px, stride_px: what they were trained at last; their stage may differ from `config`.
    """
    at = {
        "image": config.image.model_copy(update={"size_px": size_px}),
        "backbone": config.backbone.model_copy(update={"stride_px": stride_px}),
    }
    config = config.model_copy(update=at)
    embedder = build_embedder(config, weights=False)
    embedder.load_state_dict(state)
    if config.head and config.head.branches:
        embedder.head.fold()
        plain = config.head.model_copy(update={"branches": None})
        config = config.model_copy(update={"head": plain})
    preprocess = build_preprocess(config, embedder.backbone, size_px)
    return LoadedModel(embedder.eval(), preprocess, config, source)


def save_model(embedder: Embedder, path: Path, size_px: int | None = None) -> None:
    """Write the weights, and the image size and stride they are for, atomically.

    Args:
        size_px: None: the backbone's.
    """
    backbone = embedder.backbone
    size = str(size_px or backbone.size_px)
    # One entry: several are written in any order, and the same run would not give the same file.
    metadata = {"size_px": f"{size}/{backbone.stride_px}" if backbone.stride_px else size}
    state = {k: v.detach().cpu().contiguous() for k, v in embedder.state_dict().items()}
    with replacing(path) as temporary:
        save_file(state, temporary, metadata=metadata)


def _read(path: Path) -> tuple[dict[str, Tensor], int, int | None]:
    """Weights, image size and stride; a file without a stride is of patches side by side."""
    with safe_open(path, framework="pt") as file:
        state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        metadata = file.metadata()
    size_px, _, stride_px = metadata["size_px"].partition("/")
    return state, int(size_px), int(stride_px) if stride_px else None
