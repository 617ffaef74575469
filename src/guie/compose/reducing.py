"""Fewer dimensions behind a model: principal components, a random matrix, the first of them.

Shapes: N images or texts, D dimensions, R dimensions they are reduced to.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.random_projection import GaussianRandomProjection
from torch import Tensor

from guie.base.errors import UserError
from guie.compose.samples import Fits
from guie.config.compose import FirstConfig, PcaConfig, RandomConfig
from guie.config.composition import CompositionConfig
from guie.config.model import HeadConfig
from guie.config.zero_shot import ClipConfig
from guie.evaluation.components import fit_components
from guie.evaluation.text import class_texts
from guie.model import LoadedModel, composed, rebuild
from guie.model.weights import sha256_of


def reduce_by(
    config: PcaConfig | RandomConfig | FirstConfig, model: LoadedModel, fits: Fits
) -> tuple[LoadedModel, dict[str, Any]]:
    """The model of fewer dimensions, and for record.json what that was fitted on.

    Every process must call it. Raises UserError where so many dimensions cannot be had.
    """
    given = model.embedder.dim
    if config.dim >= given:
        raise UserError(
            f"reduce: dim {config.dim}: {model.source} has {given} dimensions; take 1 to {given - 1}"
        )
    if isinstance(config, PcaConfig):
        return _by_components(config, model, fits)
    mean_D = torch.zeros(given)
    if isinstance(config, FirstConfig):
        return reduced(model, mean_D, torch.eye(given, config.dim)), {}
    drawn = GaussianRandomProjection(config.dim, random_state=config.seed)
    weight_DR = drawn.fit(np.zeros((1, given))).components_.T
    return reduced(model, mean_D, torch.tensor(weight_DR)), {}


def _by_components(
    config: PcaConfig, model: LoadedModel, fits: Fits
) -> tuple[LoadedModel, dict[str, Any]]:
    if config.images:
        emb_ND, _, basis = fits.embedded(model, config.images)
    else:
        file = Path(str(config.texts))
        emb_ND, basis = fits.from_main(lambda: _embedded_texts(model.source, file))
    found = fits.from_main(lambda: fit_components(emb_ND, config.dim, config.whiten))
    small = reduced(model, torch.tensor(found.mean_D), torch.tensor(found.weight_DR))
    return small, {"fitted_on": basis, "explained_variance": found.share_R.tolist()}


def reduced(model: LoadedModel, mean_D: Tensor, weight_DR: Tensor) -> LoadedModel:
    """The model with (x - mean) @ weight behind its embedding, brought to unit length again.

    Behind a head, or in a composition, stands a `Reduction`. A model without a head gets one that does
    the same: features of unit length through a Linear layer. What is reduced already becomes the one
    member of a composition.
    """
    dim = weight_DR.shape[1]
    map_of = {"reduction.mean_D": mean_D, "reduction.weight_DR": weight_DR}
    part = model.self_contained()
    if model.embedder.reduction:
        return composed([model], _single(map_of), reduced_dim=dim)
    if isinstance(part, CompositionConfig):
        part = part.model_copy(update={"reduced_dim": dim})
    else:
        head = part.model.head
        if head is None:
            map_of = {"head.linear.weight": weight_DR.T, "head.linear.bias": -mean_D @ weight_DR}
        with_dim = (
            HeadConfig(dim=dim) if head is None else head.model_copy(update={"reduced_dim": dim})
        )
        changed = part.model.model_copy(update={"head": with_dim})
        part = part.model_copy(update={"model": changed})
    state = model.embedder.state_dict() | _single(map_of)
    return rebuild(part, state, model.source, share=True)


def _single(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.float().contiguous() for name, value in state.items()}


def _embedded_texts(source: str, file: Path) -> tuple[np.ndarray, dict[str, Any]]:
    """Embeddings of a file's lines by a CLIP's text tower. Raises UserError for any other model."""
    if not re.fullmatch(r"open_clip:[^:]+:.+", source):
        raise UserError(
            f"reduce.texts: {source} reads no texts; make open_clip:NAME:TAG the member"
        )
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}") from None
    words = sorted({line.strip() for line in lines if line.strip()})
    if not words:
        raise UserError(f"{file}: holds no texts; write one a line")
    texts = class_texts(ClipConfig(model=source), {word: [word] for word in words})
    return texts.emb_CD, {"texts": str(file), "sha256": sha256_of(file), "lines": len(words)}
