"""Subsample the train images of a mix to target shares of its domains."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from guie.base.errors import UserError
from guie.base.seeds import seeded_draws
from guie.config.data import DomainShares
from guie.curation.features import Job
from guie.curation.pseudo_labels import guess
from guie.evaluation.text import class_texts


def match_domains(table: pd.DataFrame, shares: DomainShares, job: Job) -> pd.DataFrame:
    """Subsample the train images to the config's target shares of the domains.

    The domain of a row is the manifest's, or CLIP's prediction for train images.
    """
    domain_of_row = table["domain"].copy()
    if shares.domain_source is not None:
        train = table.index[table["split"] == "train"]
        clip, names = shares.domain_source.clip, shares.domain_source.names
        texts = class_texts(clip, names)
        features = job.embed(clip)(table["image_path"][train].tolist(), "whole")
        guesses = guess(features, texts.emb_CD, texts.scale, list(names))
        domain_of_row[train] = guesses["label"].to_numpy()
    return match_shares(table, domain_of_row, shares.shares, job.config.seed)


def match_shares(
    table: pd.DataFrame, domain_of_row: pd.Series, shares: Mapping[str, float], seed: int
) -> pd.DataFrame:
    """Drop train images until each domain has its share, keeping as many images as possible.

    The scarcest domain keeps all its images, and a domain that is not listed none. The largest classes of a
    domain lose images first: no class loses its last image while another has two. The choice of images
    depends only on the seed and their paths.

    Raises UserError if a domain in `shares` has no train image.
    """
    train = table[table["split"] == "train"]
    domain = domain_of_row[train.index]
    present = domain.value_counts().to_dict()
    if missing := sorted(set(shares) - set(present)):
        raise UserError(
            f"shares: no train image in {', '.join(missing)}; found: {', '.join(sorted(present))}"
        )
    scale = min(present[name] / share for name, share in shares.items())
    drawn = train.assign(draw=seeded_draws(seed, train["image_path"])).sort_values("draw")
    chosen = []
    for name, share in shares.items():
        # One image of each class, then a second of each, ...
        turn = drawn[domain[drawn.index] == name].groupby("label").cumcount()
        chosen.append(turn.sort_values(kind="stable").index[: round(scale * share)])
    stays = (table["split"] != "train") | table.index.isin(np.concatenate(chosen))
    return table[stays].reset_index(drop=True)
