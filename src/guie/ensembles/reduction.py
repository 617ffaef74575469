"""Reduce a model's dimensions (PCA, random projection, truncation); fit a domain classifier for views."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.random_projection import GaussianRandomProjection
from torch import Tensor

from guie.base.devices import from_main
from guie.base.errors import UserError
from guie.config.data import ClipConfig
from guie.config.ensemble import FirstConfig, MemberConfig, PcaConfig, RandomConfig
from guie.config.model import HeadConfig
from guie.ensembles.samples import Fits
from guie.evaluation.reduction import fit_components
from guie.evaluation.text import class_texts
from guie.models.opening import LoadedModel, composed, rebuild
from guie.models.pretrained import sha256_of


def reduce_by(
    config: PcaConfig | RandomConfig | FirstConfig, model: LoadedModel, fits: Fits
) -> tuple[LoadedModel, dict[str, Any]]:
    """Return the model with fewer dimensions, and for record.json what the reduction was fitted on.

    Every process must call it. Raises UserError if the dimension is too large.
    """
    given, accelerator = model.embedder.dim, fits.accelerator
    if config.dim >= given:
        raise UserError(
            f"reduce: dim {config.dim}: {model.source} has {given} dimensions; use 1 to {given - 1}"
        )
    if isinstance(config, PcaConfig):
        if config.images:
            emb_ND, _, basis = fits.embedded(model, config.images)
        else:
            file = Path(str(config.texts))
            emb_ND, basis = from_main(accelerator, lambda: _embedded_texts(model.source, file))
        found = from_main(accelerator, lambda: fit_components(emb_ND, config.dim, config.whiten))
        small = reduced(model, torch.tensor(found.weight_DR), torch.tensor(found.mean_D))
        return small, {"fitted_on": basis, "explained_variance": found.share_R.tolist()}
    if isinstance(config, FirstConfig):
        return reduced(model, torch.eye(given, config.dim)), {}
    drawn = GaussianRandomProjection(config.dim, random_state=config.seed)
    return reduced(model, torch.tensor(drawn.fit(np.zeros((1, given))).components_.T)), {}


def reduced(model: LoadedModel, weight_DR: Tensor, mean_D: Tensor | None = None) -> LoadedModel:
    """Return the model with (x - mean) @ weight after its embedding, normalised to unit length again.

    A model with a head, or an ensemble, gets a `Reduction`. A model without a head gets a head that does
    the same: a Linear layer on features of unit length. A model that is already reduced becomes the only
    member of an ensemble.
    """
    mean_D = weight_DR.new_zeros(len(weight_DR)) if mean_D is None else mean_D
    dim, part = weight_DR.shape[1], model.self_contained()
    fitted = {"reduction.mean_D": mean_D, "reduction.weight_DR": weight_DR}
    if isinstance(part, MemberConfig) and part.model.head is None:
        fitted = {"head.linear.weight": weight_DR.T, "head.linear.bias": -mean_D @ weight_DR}
    fitted = {name: value.float().contiguous() for name, value in fitted.items()}
    if model.embedder.reduction:
        return composed([model], fitted, reduced_dim=dim)
    smaller: dict[str, Any] = {"reduced_dim": dim}
    if isinstance(part, MemberConfig):
        head = part.model.head
        head = head.model_copy(update={"reduced_dim": dim}) if head else HeadConfig(dim=dim)
        smaller = {"model": part.model.model_copy(update={"head": head})}
    part = part.model_copy(update=smaller)
    return rebuild(part, model.embedder.state_dict() | fitted, model.source, share=True)


def _embedded_texts(source: str, file: Path) -> tuple[np.ndarray, dict[str, Any]]:
    """Embed a file's lines with CLIP's text encoder. Raises UserError for any other model."""
    if not re.fullmatch(r"open_clip:[^:]+:.+", source):
        raise UserError(
            f"reduce.texts: {source} has no text encoder; use open_clip:NAME:TAG as the member"
        )
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    words = sorted({line.strip() for line in lines if line.strip()})
    if not words:
        raise UserError(f"{file}: holds no texts; write one text a line")
    texts = class_texts(ClipConfig(model=source), {word: [word] for word in words})
    return texts.emb_CD, {"texts": str(file), "sha256": sha256_of(file), "lines": len(words)}


HELD_OUT = 0.2  # share of the images that measures the classifier's accuracy
# Inverse strength of the penalty, weak because coordinates of unit vectors differ little
REACH = 100.0


def fit_domains(
    emb_FD: np.ndarray, domain_F: np.ndarray, wanted: set[str]
) -> tuple[list[str], dict[str, Tensor], dict[str, Any]]:
    """Return the domains in order, the weights of `guie.models.ensemble.Domains`, and its accuracy.

    Raises UserError if a wanted domain has no images, or there are too few images or domains.
    """
    names, counts = np.unique(domain_F, return_counts=True)
    missing = sorted(wanted - set(names))
    if missing:
        raise UserError(
            f"views: domain {missing[0]!r} has no images to fit the classifier on; available:"
            f" {', '.join(names)}"
        )
    if len(names) < 2 or counts.min() * HELD_OUT < 1:
        raise UserError(
            f"classifier: {counts.min()} images of {names[counts.argmin()]} and {len(names)} domains; it"
            f" needs two domains, and {round(1 / HELD_OUT)} images of each; name fewer `domains`"
        )
    emb_ID, held_ID, domain_I, held_I = train_test_split(
        emb_FD, domain_F, test_size=HELD_OUT, random_state=0, stratify=domain_F
    )
    fitted = LogisticRegression(C=REACH, max_iter=1000).fit(emb_ID, domain_I)
    weight_DN, bias_N = fitted.coef_.T, fitted.intercept_
    if len(names) == 2:  # sklearn then keeps the second domain's weights only
        weight_DN, bias_N = np.hstack([-weight_DN, weight_DN]), np.hstack([-bias_N, bias_N])
    weights = {"classifier.weight_DN": weight_DN, "classifier.bias_N": bias_N}
    state = {name: torch.tensor(value, dtype=torch.float32) for name, value in weights.items()}
    return names.tolist(), state, {"accuracy_held_out": float(fitted.score(held_ID, held_I))}
