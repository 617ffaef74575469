"""Pairs of pictures that somebody should look at: copies, outliers, classes that may be one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import yaml
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

SHOWN = 24  # pairs of a kind
OF_ONE = 3  # pairs of pictures that hang together: one placeholder must not fill the page
ABOUT = {
    "leak": (
        "Leaks",
        "A training image that is a copy of an image which the mix is validated or tested on.",
    ),
    "conflict": ("Label conflicts", "One picture under labels that have no class in common."),
    "exact duplicate": ("Exact duplicates", "Pictures with the same pixels once decoded."),
    "near duplicate": (
        "Near-duplicates",
        "Pictures with nearly the same perceptual hash, confirmed by their features.",
    ),
    "outlier": (
        "Outliers",
        "Training images far from their class, beside the most typical image of it.",
    ),
}


class Group(NamedTuple):
    """The findings of one kind; of those that are the least alike some are shown."""

    kind: str
    title: str
    about: str
    total: int
    actions: dict[str, int]  # how many pairs had which outcome
    pairs: list[dict[str, Any]]


def groups(findings: pd.DataFrame) -> list[Group]:
    """The findings by kind, in the order of ABOUT: if the least alike are right, the others are.

    Of images that are linked to each other, directly or by others, at most three pairs are shown.
    """
    kinds = dict.fromkeys([*ABOUT, *findings["kind"]])
    findings = findings.assign(together=_together(findings))
    found = []
    for kind in kinds:
        rows = findings[findings["kind"] == kind]
        if rows.empty:
            continue
        ranked = rows.sort_values(["similarity", "image_path", "other_path"])
        ranked = ranked[ranked.groupby("together").cumcount() < OF_ONE].head(SHOWN)
        found.append(
            Group(
                kind,
                *ABOUT.get(kind, (kind, "")),
                total=len(rows),
                actions=rows["action"].value_counts().sort_index().to_dict(),
                pairs=ranked.to_dict("records"),
            )
        )
    return found


def _together(pairs: pd.DataFrame) -> np.ndarray:
    """For each pair the number of the images that hang together which it is of."""
    ends, images = pd.factorize(pd.concat([pairs["image_path"], pairs["other_path"]]))
    one, other = np.split(ends, 2)
    graph = coo_matrix((np.ones(len(one)), (one, other)), shape=(len(images), len(images)))
    return connected_components(graph, directed=False)[1][one]


def accepting(merges: Sequence[Mapping[str, Any]]) -> str:
    """The lines of a config that accept merges, each a row of `suggest_merges`."""
    block = {"clean": {"merge": {merge["label"]: merge["into"] for merge in merges}}}
    return yaml.safe_dump(block, sort_keys=False, allow_unicode=True)
