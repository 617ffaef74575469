"""Embed texts with CLIP's text encoder: classes, cached on disk, and queries.

Shapes: T sentences, C classes, F features, D dimensions.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch.nn import functional
from tqdm import tqdm

from guie.base.errors import UserError
from guie.base.files import replacing, save_arrays
from guie.config.data import ClipConfig
from guie.config.model import BackboneConfig
from guie.models.backbones.open_clip import Clip, create_clip, import_open_clip
from guie.models.embedder import Embedder
from guie.models.opening import LoadedModel
from guie.models.pretrained import find_weights, sha256_of

BATCH_SENTENCES = 256


class ClassTexts(NamedTuple):
    """The text side of CLIP's zero-shot classification."""

    emb_CD: np.ndarray  # float32, unit length
    scale: float  # CLIP's own inverse temperature


def class_texts(config: ClipConfig, classes: Mapping[str, Sequence[str]]) -> ClassTexts:
    """Return one embedding per class: the mean over names and templates (Radford et al. 2021, 3.1.4).

    Unit-length sentence embeddings are averaged within each name and then over the names, so that all
    names of a class weigh equally. The result is cached for each model, class list and templates.

    Raises UserError if there is no such model.
    """
    _, name, pretrained = config.model.split(":", 2)
    backbone = BackboneConfig(library="open_clip", name=name, pretrained=pretrained)
    sentences = [
        [[template.replace("{}", word) for template in config.templates] for word in words]
        for words in classes.values()
    ]
    weights = find_weights(backbone)
    assert weights is not None  # a tag or file is named
    # The weights' content is hashed, so that a retrained file of the same name gets another key.
    recipe = [name, sha256_of(weights.file), import_open_clip().__version__, sentences]
    key = hashlib.sha256(json.dumps(recipe).encode()).hexdigest()[:16]
    file = Path(config.cache) / f"{key}.npz"
    if not file.exists():
        with replacing(file) as temporary:
            save_arrays(temporary, **_encode(backbone, sentences)._asdict())
    with np.load(file, allow_pickle=False) as kept:
        return ClassTexts(kept["emb_CD"], float(kept["scale"]))


@torch.inference_mode()
def _encode(backbone: BackboneConfig, sentences: list[list[list[str]]]) -> ClassTexts:
    """Return the embedding of each class, by the sentences of each of its names."""

    def mean(units: list[torch.Tensor]) -> torch.Tensor:
        return functional.normalize(torch.stack(units).mean(dim=0), dim=-1)

    clip = _clip(backbone)
    flat = sorted({text for names in sentences for texts in names for text in texts})
    emb_TD = dict(zip(flat, _encoded(clip, backbone.name, flat, normalize=True), strict=True))
    rows = [
        mean([mean([emb_TD[text] for text in texts]) for texts in names]) for names in sentences
    ]
    return ClassTexts(torch.stack(rows).numpy(), clip.logit_scale.exp().item())


class TextEncoder:
    """The text encoder of a CLIP, loaded once.

    A trained head is applied to texts and images alike. The text encoder is the one that the image
    encoder was pretrained with, or the run's own if the run trained both.

    Raises UserError for a model without a text encoder, or a head that takes more than features.
    """

    def __init__(self, model: LoadedModel):
        self._backbone, self._embedder = _text_backbone(model)
        self._source = model.source
        self._clip = _clip(self._backbone)

    @torch.inference_mode()
    def embed(self, sentences: Sequence[str]) -> np.ndarray:
        """Embed sentences in the model's image space: float32 (T, D) of unit length. Raises UserError."""
        clip = self._clip.to(next(self._embedder.parameters()).device)
        # Text features (T, F), not normalised, like the image features that enter a head
        feat_TF = _encoded(clip, self._backbone.name, sentences)
        dim = self._embedder.backbone.dim
        if self._backbone.features != "projected" or feat_TF.shape[1] != dim:
            raise UserError(
                f"texts: {self._source} has image features of {dim} dimensions, outside its text space"
                f" of {feat_TF.shape[1]}; its config must have features: projected"
            )
        return self._embedder.embed(feat_TF).cpu().numpy()


def takes_texts(model: LoadedModel) -> bool:
    """Return whether the model has a text encoder of its image space; it is not loaded."""
    try:
        backbone, _ = _text_backbone(model)
    except UserError:
        return False
    return backbone.features == "projected"


def _text_backbone(model: LoadedModel) -> tuple[BackboneConfig, Embedder]:
    """Return the CLIP that has the text encoder, and the model's embedder. Raises UserError without one."""
    member, embedder = model.alone("texts are embedded by one of them")
    backbone = member.model.backbone
    own = Path(model.source) / "model_clip.safetensors"  # of task contrastive
    if own.is_file():
        backbone = backbone.with_file(str(own)).model_copy(
            update={"sha256": None, "revision": None}
        )
    if backbone.library != "open_clip" or not backbone.pretrained:
        raise UserError(f"texts: {model.source} is not a CLIP with a pretrained text encoder")
    if embedder.head and embedder.head.image_shape:
        raise UserError(f"texts: the head of {model.source} needs image shapes; texts have none")
    return backbone, embedder


def _clip(backbone: BackboneConfig) -> Clip:
    clip = create_clip(backbone).eval()
    if not hasattr(clip, "context_length"):
        raise UserError(f"{backbone.name}: the model has no text encoder that takes tokens")
    return clip


def _encoded(clip: Clip, name: str, sentences: Sequence[str], **settings: bool) -> torch.Tensor:
    """Encode sentences with a CLIP of that name, on its device: float32 (T, F)."""
    tokenize = import_open_clip().get_tokenizer(name, context_length=clip.context_length)
    device, starts = clip.logit_scale.device, range(0, len(sentences), BATCH_SENTENCES)
    batches = [list(sentences[start : start + BATCH_SENTENCES]) for start in starts]
    bar = tqdm(batches, "texts", leave=False, delay=2)
    return torch.cat([clip.encode_text(tokenize(b).to(device), **settings).float() for b in bar])
