"""What each source earned in a selection, as a table."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from guie.curation.selection.candidates import mix_name
from guie.curation.selection.greedy import Step

COLUMNS = ("step", "change", "gain", "standard_error", "score", "mix")


def earned(steps: Sequence[Step]) -> pd.DataFrame:
    """A row for each step, in order, then one for each change tried in vain, by gain.

    Columns: step (missing for what was turned down), change, gain and standard_error of the metric,
    score and mix after the step. The gain of an accepted step was measured on fresh seeds where the
    rule has any; that of a change turned down is the one that all candidates were compared by.
    """
    accepted = [step for step in steps if step.accepted]
    rows = [
        (number, step.change, step.gain, step.standard_error, step.score, mix_name(step.mix))
        for number, step in enumerate(accepted, start=1)
    ]
    refused = [step for step in steps if not step.accepted]
    for step in refused:
        tried = sorted(step.tried.items(), key=lambda item: -item[1])
        rows += [(pd.NA, change, gain, pd.NA, pd.NA, "") for change, gain in tried]
    return pd.DataFrame(rows, columns=COLUMNS).astype(
        {"step": "Int64", "gain": "float64", "standard_error": "Float64", "score": "Float64"}
    )


def render(steps: Sequence[Step]) -> str:
    """The table as a person reads it."""
    table = earned(steps).drop(columns="mix")
    return table.to_string(index=False, na_rep="-", float_format=lambda value: f"{value:.4f}")
