"""What cleaning found, as one table: the same columns for every kind."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from guie.base.errors import UserError
from guie.report.pages.pairs import evidence

# copy: exact, near, or empty.
# distance: bits between the hashes of copies; how much nearer another class is than an outlier's own.
# difference: of two pictures by their pixels; limit: what it may be for that kind.
# sure: enough evidence to act upon; said: by a person. labels: that a placeholder stands under.
COLUMNS = [
    *("kind", "image_path", "other_path", "label", "other_label", "split", "other_split", "copy"),
    *("distance", "similarity", "difference", "limit", "sure", "said", "labels", "action"),
]
UNTOLD = {"copy": "", "difference": np.nan, "limit": np.nan, "sure": True, "said": False}
UNTOLD |= {"labels": 0}
SHOWN = 10
REMEDIES = {
    "leak": "training images are copies of val or test images; clean.leaks: drop_train leaves"
    " them out, declared keeps them",
    "conflict": "images have a copy with other labels; clean.conflicts: drop_all, keep_first or"
    " report goes on",
}


def findings(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """One table of several, in the order given, indexed from 0."""
    tables = []
    for table in parts:
        if len(table):
            untold = {name: value for name, value in UNTOLD.items() if name not in table}
            tables.append(table.assign(**untold)[COLUMNS])
    if not tables:
        return pd.DataFrame(columns=COLUMNS).astype({"copy": str, "sure": bool, "said": bool})
    return pd.concat(tables, ignore_index=True)


def refuse(rows: pd.DataFrame) -> None:
    """Raise UserError with the images that the config wants to stop at, if there are any."""
    for kind, remedy in REMEDIES.items():
        stops = rows[(rows["kind"] == kind) & (rows["action"] == "stop")]
        if stops.empty:
            continue
        more = [f"and {len(stops) - SHOWN:,} more"] if len(stops) > SHOWN else []
        lines = [_line(pair) for pair in stops.head(SHOWN).to_dict("records")]
        raise UserError("\n".join([f"{len(stops):,} {remedy}:", *lines, *more]))


def too_many(
    rows: pd.DataFrame, trained: pd.DataFrame, gone: pd.DataFrame, share_max: float
) -> list[str]:
    """What a rule would take of a domain's training rows, where that is more than `share_max`.

    Copies of equal pixels within a class do not count: nothing is lost with them. One image may
    always go.

    Args:
        rows: the findings of one rule.
        trained: the training rows that it was given.
        gone: those of them that it takes.
    """
    equal = rows.loc[rows["kind"] == "exact duplicate", "image_path"]
    if len(equal):
        gone = gone[~gone["image_path"].isin(equal)]
    own, lost = trained["domain"].value_counts(), gone["domain"].value_counts()
    return [
        f"{count:,} of {own[domain]:,} training images of {domain} ({count / own[domain]:.1%})"
        for domain, count in lost.items()
        if count > max(share_max * own[domain], 1)
    ]


def dropped(rows: pd.DataFrame) -> set[str]:
    """Paths of the training images that the findings leave out."""
    # where both are dropped, the other one has a finding of its own
    return set(rows.loc[rows["action"].isin(("dropped", "both dropped")), "image_path"])


def _line(pair: dict) -> str:
    return (
        f"{pair['image_path']} ({pair['split']}, {pair['label']}) and {pair['other_path']}"
        f" ({pair['other_split']}, {pair['other_label']}): {evidence(pair)}"
    )
