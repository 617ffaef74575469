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
    "conflict": "pairs of copies have different labels; clean.conflicts: drop_all, keep_first or"
    " report goes on",
}


def findings(found: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """One table of several, in the order given, indexed from 0."""
    tables = [table[COLUMNS] for table in found if len(table)]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=COLUMNS)


def refuse(found: pd.DataFrame) -> None:
    """Raise UserError with the pairs that the config wants to stop at, if there are any."""
    for kind, remedy in REMEDIES.items():
        stops = found[(found["kind"] == kind) & (found["action"] == "stop")]
        if stops.empty:
            continue
        # of a leak the images count, of a conflict the pairs
        count = stops["image_path"].nunique() if kind == "leak" else len(stops)
        more = [f"and {len(stops) - SHOWN:,} more pairs"] if len(stops) > SHOWN else []
        lines = [_line(pair) for pair in stops.head(SHOWN).to_dict("records")]
        raise UserError("\n".join([f"{count:,} {remedy}:", *lines, *more]))


def dropped(found: pd.DataFrame) -> set[str]:
    """Paths of the training images that the findings leave out."""
    both = found["action"] == "both dropped"
    gone = found.loc[both | (found["action"] == "dropped"), "image_path"]
    return {*gone, *found.loc[both, "other_path"]}


def _line(pair: dict) -> str:
    return (
        f"{pair['image_path']} ({pair['split']}, {pair['label']}) and {pair['other_path']}"
        f" ({pair['other_split']}, {pair['other_label']}): {pair['distance']:.0f} bits,"
        f" cosine {pair['similarity']:.3f}"
    )
