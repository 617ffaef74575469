"""What cleaning found, as one table: the same columns for every kind."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from guie.errors import UserError

# distance: bits of the perceptual hash between copies; 1 - cosine to the class for an outlier.
COLUMNS = [
    *("kind", "image_path", "other_path", "label", "other_label", "split", "other_split"),
    *("distance", "similarity", "action"),
]
SHOWN = 10
REMEDIES = {
    "leak": "training images are copies of val or test images; clean.leaks: drop_train leaves"
    " them out, declared keeps them",
    "conflict": "images have a copy with other labels; clean.conflicts: drop_all, keep_first or"
    " report goes on",
}


def findings(found: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """One table of several, in the order given, indexed from 0."""
    tables = [table[COLUMNS] for table in found if len(table)]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=COLUMNS)


def refuse(found: pd.DataFrame) -> None:
    """Raise UserError with the images that the config wants to stop at, if there are any."""
    for kind, remedy in REMEDIES.items():
        stops = found[(found["kind"] == kind) & (found["action"] == "stop")]
        if stops.empty:
            continue
        more = [f"and {len(stops) - SHOWN:,} more"] if len(stops) > SHOWN else []
        lines = [_line(pair) for pair in stops.head(SHOWN).to_dict("records")]
        raise UserError("\n".join([f"{len(stops):,} {remedy}:", *lines, *more]))


def dropped(found: pd.DataFrame) -> set[str]:
    """Paths of the training images that the findings leave out."""
    # where both are dropped, the other one has a finding of its own
    return set(found.loc[found["action"].isin(("dropped", "both dropped")), "image_path"])


def _line(pair: dict) -> str:
    return (
        f"{pair['image_path']} ({pair['split']}, {pair['label']}) and {pair['other_path']}"
        f" ({pair['other_split']}, {pair['other_label']}): {pair['distance']:.0f} bits,"
        f" cosine {pair['similarity']:.3f}"
    )
