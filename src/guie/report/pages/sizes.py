"""How many images each class has."""

from __future__ import annotations

import pandas as pd

from guie.data.manifest.memberships import memberships


def class_sizes(table: pd.DataFrame) -> pd.Series:
    """Images of each class in train and val together, by domain and label.

    Rules touch train only, and classes that move to val are not lost: so test is left out, and
    nothing else.
    """
    members = memberships(table[table["split"] != "test"])
    return members.groupby(["domain", "label"]).size()
