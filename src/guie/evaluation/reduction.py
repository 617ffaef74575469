"""Principal components of embeddings, fitted without labels; and a random map as their floor.

UnED reduces off-the-shelf models so to 64 dimensions, whitened, on about 9,000 images a domain (4.1
and A.5); the challenge's 6th place trains 256 dimensions and reduces them to 64.
Shapes: N images or texts, D dimensions, R dimensions they are reduced to.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from sklearn.decomposition import PCA
from sklearn.random_projection import GaussianRandomProjection

from guie.base.errors import UserError
from guie.base.seeds import seeded_draws

PER_DOMAIN = 9000  # images that UnED fits on (4.1)
# Of the first component's variance; what lies below is the rounding of float32 embeddings.
LEAST_VARIANCE = 1e-10


@dataclass(frozen=True)
class Components:
    """(x_D - mean_D) @ weight_DR, and the variance that each of R components explains."""

    mean_D: np.ndarray  # float64
    weight_DR: np.ndarray  # float64, orthonormal columns; whitened, divided by their deviation
    share_R: np.ndarray  # of the whole variance

    def of(self, emb_ND: np.ndarray) -> np.ndarray:
        """Embeddings [N, D] in these components: float32 [N, R]."""
        return ((emb_ND - self.mean_D) @ self.weight_DR).astype(np.float32)


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
        raise UserError(f"dim {dim}: the embedding has {given} dimensions; take 1 to {given - 1}")
    if not np.isfinite(emb_ND).all():
        raise UserError("an embedding to be fitted on is not finite; look for a NaN in the model")
    if images <= dim:
        raise UserError(f"dim {dim}: needs more than {images} images or texts to be fitted on")
    # By the covariance: a deterministic solver whose time grows with D, hardly with N.
    pca = PCA(dim, svd_solver="covariance_eigh").fit(emb_ND.astype(np.float64))
    variance_R = pca.explained_variance_
    varied = int((variance_R > LEAST_VARIANCE * variance_R[0]).sum())
    if varied < dim:
        raise UserError(f"dim {dim}: what it is fitted on varies in {varied} dimensions only")
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


def random_projection(emb_ND: np.ndarray, dim: int, seed: int = 0) -> np.ndarray:
    """Embeddings [N, D] through a Gaussian matrix, float32 [N, R]: what fewer dimensions alone cost."""
    matrix = GaussianRandomProjection(dim, random_state=seed)
    return matrix.fit_transform(emb_ND.astype(np.float32)).astype(np.float32)
