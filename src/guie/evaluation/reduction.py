"""Reduce embeddings by PCA, fitted without labels, or by a random projection as a baseline.

UnED reduces off-the-shelf models this way to 64 whitened dimensions, fitted on about 9,000 images a
domain (4.1 and A.5). The challenge's 6th place trains 256 dimensions and reduces them to 64.
Shapes: N images or texts, D dimensions, R reduced dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from guie.base.errors import UserError
from guie.base.seeds import seeded_draws

PER_DOMAIN = 9000  # images that UnED fits on (4.1)
# Relative to the first component's variance; smaller variances are float32 rounding errors.
LEAST_VARIANCE = 1e-10


@dataclass(frozen=True)
class Components:
    """The map (x_D - mean_D) @ weight_DR, and the variance that each of R components explains."""

    mean_D: np.ndarray  # float64
    weight_DR: np.ndarray  # float64, orthonormal columns; if whitened, divided by their deviation
    share_R: np.ndarray  # fraction of the total variance

    def of(self, emb_ND: np.ndarray) -> np.ndarray:
        """Project embeddings [N, D] onto these components: float32 [N, R]."""
        return ((emb_ND - self.mean_D) @ self.weight_DR).astype(np.float32)


def fit_components(emb_ND: np.ndarray, dim: int, whiten: bool) -> Components:
    """Fit the first `dim` principal components, in float64.

    Args:
        emb_ND: embeddings of unit length, as they are compared.
        dim: R, 1 to D - 1.
        whiten: give every component the same variance on the fitted data.

    Raises:
        UserError: `emb_ND` is not finite, or varies in fewer than `dim` dimensions.
    """
    from sklearn.decomposition import PCA  # takes a second, and is seldom needed

    images, given = emb_ND.shape
    if not 0 < dim < given:
        raise UserError(f"dim {dim}: the embedding has {given} dimensions; take 1 to {given - 1}")
    if not np.isfinite(emb_ND).all():
        raise UserError("an embedding to fit on is not finite; check the model for NaN")
    if images <= dim:
        raise UserError(f"dim {dim}: fitting needs more than {dim} images or texts, got {images}")
    # The covariance solver is deterministic, and its time grows with D, hardly with N.
    pca = PCA(dim, svd_solver="covariance_eigh").fit(emb_ND.astype(np.float64))
    variance_R = pca.explained_variance_
    varied = int((variance_R > LEAST_VARIANCE * variance_R[0]).sum())
    if varied < dim:
        raise UserError(f"dim {dim}: the data to fit on vary in {varied} dimensions; lower dim")
    weight_DR = pca.components_.T
    if whiten:
        weight_DR = weight_DR / np.sqrt(variance_R)
    return Components(pca.mean_, weight_DR, pca.explained_variance_ratio_)


def balanced_sample(rows: pd.DataFrame, per_domain: int, seed: int) -> pd.DataFrame:
    """Draw at most `per_domain` images of each domain, each once.

    The sample depends only on the seed and the paths, not on the order of the rows.
    """
    rows = rows.drop_duplicates("image_path")
    drawn = rows.assign(draw=seeded_draws(seed, rows["image_path"]))
    sample = drawn.sort_values("draw").groupby("domain").head(per_domain)
    return sample.sort_values("image_path").drop(columns="draw").reset_index(drop=True)


def random_projection(emb_ND: np.ndarray, dim: int, seed: int = 0) -> np.ndarray:
    """Project embeddings [N, D] by a Gaussian matrix, float32 [N, R]: a baseline for reduction."""
    from sklearn.random_projection import GaussianRandomProjection  # see `fit_components`

    matrix = GaussianRandomProjection(dim, random_state=seed)
    return matrix.fit_transform(emb_ND.astype(np.float32)).astype(np.float32)
