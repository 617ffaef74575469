"""Principal components of embeddings: a linear map to fewer dimensions, fitted without labels.

UnED reduces off-the-shelf models so to 64 dimensions, whitened, on about 9,000 images a domain (4.1
and A.5); the challenge's 6th place trains 256 dimensions and reduces them to 64.
Shapes: N images or texts, D dimensions, R dimensions they are reduced to.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from sklearn.decomposition import PCA

from guie.base.errors import UserError
from guie.base.seeds import seeded_draws
from guie.config.model import HeadConfig
from guie.model import LoadedModel, rebuild

# Of the first component's variance; what lies below is the rounding of float32 embeddings.
LEAST_VARIANCE = 1e-10


@dataclass(frozen=True)
class Components:
    """(x_D - mean_D) @ weight_DR, and the variance that each of R components explains."""

    mean_D: np.ndarray  # float64
    weight_DR: np.ndarray  # float64, orthonormal columns; whitened, divided by their deviation
    share_R: np.ndarray  # of the whole variance


def fit_components(emb_ND: np.ndarray, dim: int, whiten: bool) -> Components:
    """The first `dim` principal components, in float64.

    Args:
        emb_ND: embeddings of unit length, as they are compared.
        dim: R, 1 to D - 1.
        whiten: give every component the same variance (of what it is fitted on).

    Raises:
        UserError: `emb_ND` is not finite, or does not vary in so many dimensions.
    """
    images, given = emb_ND.shape
    if not 0 < dim < given:
        raise UserError(f"--dim {dim}: the embedding has {given} dimensions; take 1 to {given - 1}")
    if not np.isfinite(emb_ND).all():
        raise UserError("an embedding to be fitted on is not finite; look for a NaN in the model")
    if images <= dim:
        raise UserError(f"--dim {dim}: needs more than {images} images or texts to be fitted on")
    # By the covariance: a deterministic solver whose time grows with D, hardly with N.
    pca = PCA(dim, svd_solver="covariance_eigh").fit(emb_ND.astype(np.float64))
    variance_R = pca.explained_variance_
    varied = int((variance_R > LEAST_VARIANCE * variance_R[0]).sum())
    if varied < dim:
        raise UserError(f"--dim {dim}: what it is fitted on varies in {varied} dimensions only")
    weight_DR = pca.components_.T
    if whiten:
        weight_DR = weight_DR / np.sqrt(variance_R)
    return Components(pca.mean_, weight_DR, pca.explained_variance_ratio_)


def balanced_sample(rows: pd.DataFrame, per_domain: int, seed: int) -> pd.DataFrame:
    """Draw at most `per_domain` images of each domain, each once.

    By the seed and the paths alone, whatever the order of the rows.
    """
    rows = rows.drop_duplicates("image_path")
    drawn = rows.assign(draw=seeded_draws(seed, rows["image_path"]))
    sample = drawn.sort_values("draw").groupby("domain").head(per_domain)
    return sample.sort_values("image_path").drop(columns="draw").reset_index(drop=True)


def reduced(model: LoadedModel, components: Components) -> LoadedModel:
    """The model with its embedding reduced. Raises UserError for one that is reduced already.

    Behind a head, or several models, stands a `Reduction`. A model without a head gets one that does
    the same: features of unit length through a Linear layer.
    """
    dim = components.weight_DR.shape[1]
    weight_DR, mean_D = torch.tensor(components.weight_DR), torch.tensor(components.mean_D)
    state = dict(model.embedder.state_dict())
    if model.embedder.reduction:
        raise UserError(f"{model.source}: is reduced already; reduce the run that it was made of")
    fitted = {"reduction.mean_D": mean_D, "reduction.weight_DR": weight_DR}
    if len(model.members) > 1:
        return rebuild(model.members, state | fitted, model.source, reduced_dim=dim)
    (member,) = model.self_contained()
    if member.model.head:
        head = member.model.head.model_copy(update={"reduced_dim": dim})
    else:
        head = HeadConfig(norm="l2", dim=dim)
        fitted = {"head.linear.weight": weight_DR.T, "head.linear.bias": -mean_D @ weight_DR}
    with_head = member.model.model_copy(update={"head": head})
    member = member.model_copy(update={"model": with_head})
    return rebuild([member], state | fitted, model.source)
