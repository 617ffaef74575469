"""Thin a mix until its domains have the shares that were wished for."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from guie.base.errors import UserError
from guie.base.seeds import seeded_draws


def match_shares(
    table: pd.DataFrame, domain_of_row: pd.Series, shares: Mapping[str, float], seed: int
) -> pd.DataFrame:
    """Drop train images until each domain has its share: the largest such mix.

    The largest classes of a domain lose images first, so that no class loses its last image while
    another has two; images are drawn by seed and path alone. Rows of val and test stay.

    Args:
        table: a manifest's rows, indexed from 0.
        domain_of_row: the domain that counts, by the table's index: its own, or one that a CLIP gives.
        shares: relative; a domain that is not named loses its train images.

    Raises:
        UserError: no train image is of a domain that should have a share.
    """
    train = table[table["split"] == "train"]
    domain = domain_of_row[train.index]
    images_of = _images(domain.value_counts().to_dict(), shares)
    chosen = [_thinned(train[domain == name], images, seed) for name, images in images_of.items()]
    stays = (table["split"] != "train") | table.index.isin(np.concatenate(chosen))
    return table[stays].reset_index(drop=True)


def _images(present: Mapping[str, int], shares: Mapping[str, float]) -> dict[str, int]:
    """Images of each domain in the largest mix of these shares; the scarcest keeps all of its."""
    missing = sorted(set(shares) - set(present))
    if missing:
        raise UserError(
            f"shares: no train image is of {', '.join(missing)}; found: {', '.join(sorted(present))}"
        )
    scale = min(present[name] / share for name, share in shares.items())
    return {name: round(scale * share) for name, share in shares.items()}


def _thinned(rows: pd.DataFrame, images: int, seed: int) -> np.ndarray:
    """Index of the rows that stay: first one image of each class, then a second of each, ..."""
    drawn = rows.assign(draw=seeded_draws(seed, rows["image_path"])).sort_values("draw")
    turn = drawn.groupby("label").cumcount()
    return turn.sort_values(kind="stable").index[:images].to_numpy()
