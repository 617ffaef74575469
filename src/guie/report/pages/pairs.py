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
    "placeholder": (
        "Placeholders",
        "One picture under so many labels that it says nothing of any of them.",
    ),
    "leak": (
        "Leaks",
        "A training image that is a copy of an image which the mix is validated or tested on.",
    ),
    "conflict": ("Label conflicts", "One picture under labels that have no class in common."),
    "exact duplicate": ("Exact duplicates", "Pictures with the same pixels once decoded."),
    "near duplicate": ("Near-duplicates", "Copies of one picture within a class."),
    "outlier": (
        "Outliers",
        "Training images far from their class, beside the most typical image of it.",
    ),
}
DOUBTFUL = {
    "leak": "Leaks, if these are copies",
    "conflict": "Label conflicts, if these are copies",
    "near duplicate": "Near-duplicates, if these are copies",
}
ABOUT_DOUBTFUL = (
    "No further apart than altered copies are here, but look-alikes are as near: nothing was done."
    " The nearest first; your word on them counts at the next run."
)


class Group(NamedTuple):
    """The findings of one kind, sure or doubtful; some are shown."""

    kind: str
    title: str
    about: str
    total: int
    actions: dict[str, int]  # how many pairs had which outcome
    pairs: list[dict[str, Any]]


def groups(findings: pd.DataFrame) -> list[Group]:
    """The findings by kind, what is doubtful before what is sure.

    Of the doubtful those that are most alike are shown; of the sure the least alike, for if they
    are right, the others are. Of images that are linked to each other at most three pairs.
    """
    kinds = dict.fromkeys([*ABOUT, *findings["kind"]])
    findings = findings.assign(together=_together(findings))
    found = []
    for sure in (False, True):
        for kind in kinds:
            rows = findings[(findings["kind"] == kind) & (findings["sure"] == sure)]
            if rows.empty:
                continue
            title, about = ABOUT.get(kind, (kind, ""))
            if not sure:
                title, about = DOUBTFUL.get(kind, title), ABOUT_DOUBTFUL
            found.append(
                Group(
                    kind,
                    title,
                    about,
                    total=len(rows),
                    actions=rows["action"].value_counts().sort_index().to_dict(),
                    pairs=_chosen(rows, sure).to_dict("records"),
                )
            )
    return found


def _chosen(rows: pd.DataFrame, sure: bool) -> pd.DataFrame:
    ranked = rows.sort_values(
        ["difference", "similarity", "image_path", "other_path"],
        ascending=[not sure, sure, True, True],
    )
    # one pair of pictures is one to look at, whichever of the two the finding is of
    unordered = [
        frozenset(pair) for pair in zip(ranked["image_path"], ranked["other_path"], strict=True)
    ]
    ranked = ranked[~pd.Series(unordered, ranked.index, dtype=object).duplicated()]
    return ranked[ranked.groupby("together").cumcount() < OF_ONE].head(SHOWN)


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


def evidence(pair: Mapping[str, Any]) -> str:
    """Why there is a finding, in a few words."""
    if pair["kind"] == "outlier":
        return f"cosine {pair['similarity']:.3f} to its class, {pair['distance']:+.3f} to another's"
    if pair["kind"] == "placeholder":
        return f"a picture under {pair['labels']:,} labels"
    if pair["copy"] == "exact":
        return "equal pixels"
    if pair["said"]:
        return "copies by your word"
    return (
        f"{pair['distance']:.0f} bits apart, cosine {pair['similarity']:.3f}, pixels differ by"
        f" {pair['difference']:.2f} (copies: up to {pair['limit']:.2f})"
    )
