"""Backbone and head as one module, and how a trained run is loaded again."""

from __future__ import annotations

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


class Embedder(nn.Module):
    """images -> embedding of unit length. Without a head: the backbone's features, normalised."""

    def __init__(self, backbone: Backbone, head: Head | None):
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.dim = head.linear.out_features if head else backbone.dim

    def forward(self, images_BCHW: Tensor) -> Tensor:
        """(B, 3, S, S) preprocessed images -> (B, D) float32 embeddings of unit length."""
        feat_BF = self.backbone(images_BCHW)
        emb_BD = self.head(feat_BF) if self.head else feat_BF
        return functional.normalize(emb_BD.float(), dim=-1)


@dataclass(frozen=True)
class LoadedModel:
    """What embedding, validation and export need of a model."""

    embedder: Embedder
    preprocess: Preprocess
    config: ModelConfig
    source: str


def build_embedder(config: ModelConfig, weights: bool = True) -> Embedder:
    """Embedder as configured, the backbone pretrained unless `weights` is False."""
    backbone = build_backbone(config.backbone, config.image.size_px, weights)
    return attach_head(backbone, config)


def attach_head(backbone: Backbone, config: ModelConfig) -> Embedder:
    """Put the configured head, if any, on a backbone."""
    return Embedder(backbone, Head(config.head, backbone.dim) if config.head else None)


def build_preprocess(config: ModelConfig, backbone: Backbone, size_px: int) -> Preprocess:
    """The one preprocessing: of training, validation, embedding and the submission."""
    image = config.image
    return Preprocess(size_px, image.mean or backbone.mean, image.std or backbone.std, image.fit)


def load_model(run: str | Path, weights: str = "model.safetensors") -> LoadedModel:
    """Load a trained run by its folder: the best weights, or those of another file there.

    The model is built at the last stage's image size. Raises UserError if the folder is no run.
    """
    run = Path(run)
    if not (run / "config.yaml").is_file():
        raise UserError(f"{run}: not a run folder (no config.yaml)")
    if not (run / weights).is_file():
        raise UserError(f"{run}: no {weights}; has the training reached its first validation?")
    config = load_config(run / "config.yaml", RunConfig)
    state, size_px = _read(run / weights)
    model = config.model.model_copy(
        update={"image": config.model.image.model_copy(update={"size_px": size_px})}
    )
    embedder = build_embedder(model, weights=False)
    embedder.load_state_dict(state)
    preprocess = build_preprocess(model, embedder.backbone, size_px)
    return LoadedModel(embedder.eval(), preprocess, model, str(run))


def save_model(embedder: Embedder, path: Path, size_px: int) -> None:
    """Write the weights, and the image size they are for, atomically."""
    state = {k: v.detach().cpu().contiguous() for k, v in embedder.state_dict().items()}
    with replacing(path) as temporary:
        save_file(state, temporary, metadata={"size_px": str(size_px)})


def _read(path: Path) -> tuple[dict[str, Tensor], int]:
    with safe_open(path, framework="pt") as file:
        state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        return state, int(file.metadata()["size_px"])
