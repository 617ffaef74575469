"""Join embeddings of specialists; reduce them by PCA, fitted without labels, or by a random projection.

UnED reduces off-the-shelf models by PCA to 64 whitened dimensions, fitted on about 9,000 images a
domain (4.1 and A.5). The challenge's 6th place trains 256 dimensions and reduces them to 64.
Shapes: N images or texts, F to fit on, D dimensions, R reduced dimensions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from guie.base.errors import UserError
from guie.base.seeds import seeded_draws
from guie.evaluation.files import load_embeddings
from guie.evaluation.knn import Embeddings, unit_vectors

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
    """Fit the first `dim` principal components of unit vectors, in float64.

    `whiten` gives every component the same variance on the fitted data. Raises UserError if the vectors are
    not finite, or vary in fewer than `dim` dimensions.
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
    """Draw at most `per_domain` images of each domain, by the seed and their paths alone."""
    rows = rows.drop_duplicates("image_path")
    drawn = rows.assign(draw=seeded_draws(seed, rows["image_path"]))
    sample = drawn.sort_values("draw").groupby("domain").head(per_domain)
    return sample.sort_values("image_path").drop(columns="draw").reset_index(drop=True)


def read_embeddings(source: Path | Sequence[str], table: pd.DataFrame, join: str) -> Embeddings:
    """Read one model's embeddings [T, D], or join those of specialists (DOMAIN=E.npz). Raises UserError."""
    if isinstance(source, Path):
        return load_embeddings(source, table)
    files: dict[str, str] = {}
    for word in source:
        name, sign, path = word.partition("=")
        if not (name and sign and path) or name in files:
            raise UserError(f"{word!r}: must be DOMAIN=FILE, with each domain once")
        files[name] = path
    return joined({name: load_embeddings(path, table) for name, path in files.items()}, join)


def joined(specialists: Mapping[str, np.ndarray], join: str) -> Embeddings:
    """Join embeddings [N, D] by domain as `catalogue.JOINS` say. Raises UserError for a mean of unequal D."""
    if join == "oracle":
        return dict(specialists)
    units = [_units(emb_ND) for emb_ND in specialists.values()]
    if join == "concat":
        return np.concatenate(units, axis=1)
    dims = {name: emb_ND.shape[1] for name, emb_ND in specialists.items()}
    if len(set(dims.values())) > 1:
        message = ", ".join(f"{name} {dim}" for name, dim in dims.items())
        raise UserError(f"--join mean: the specialists' dimensions must be equal: {message}")
    return np.asarray(np.mean(units, axis=0, dtype=np.float32))


def reduced(
    given: Embeddings, fit: Embeddings | None, kind: str, dim: int, seed: int = 0
) -> Embeddings:
    """Reduce the dimension of embeddings, separately for every specialist.

    `fit` are embeddings [F, D] by the same models, for PCA. `kind` is one of REDUCTIONS in
    `guie.evaluation.protocols.catalogue`. The seed is that of a random projection.

    Raises UserError if that many dimensions cannot be fitted.
    """
    if not isinstance(given, np.ndarray):
        fits = fit if isinstance(fit, Mapping) else dict.fromkeys(given)
        each = {name: reduced(own, fits[name], kind, dim, seed) for name, own in given.items()}
        return {name: own for name, own in each.items() if isinstance(own, np.ndarray)}
    if kind == "first":
        if not 0 < dim <= given.shape[1]:
            raise UserError(f"--dim {dim}: must be 1 to the embedding's {given.shape[1]}")
        return given[:, :dim]
    if kind == "random":
        from sklearn.random_projection import GaussianRandomProjection  # see `fit_components`

        matrix = GaussianRandomProjection(dim, random_state=seed)
        return matrix.fit_transform(_units(given)).astype(np.float32)
    assert isinstance(fit, np.ndarray)
    return fit_components(_units(fit), dim, whiten=kind == "pca-whitened").of(_units(given))


def _units(emb_ND: np.ndarray) -> np.ndarray:
    return unit_vectors(emb_ND, np.arange(len(emb_ND)).astype(str))
