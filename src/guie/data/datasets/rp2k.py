"""RP2K: retail products on shelves, in `all/{train,test}/<Chinese name>/`. Peng et al., 2020.

Made for classification, its splits share classes. UnED splits it by class: 1,074 for train, 120 for
val, 1,186 for test; its lists are in `info_files`. Our seeded split holds out as many. Depending on
its version, unzip writes the names as Chinese letters or as `#U4e2d`; the class name is the same
either way. Sources disagree on the number of classes.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from guie.data.datasets.base import Dataset, Expected, Listing, class_disjoint, listing, plain_name
from guie.data.datasets.folder import IMAGE_SUFFIXES


def read(folder: Path, files: frozenset[str], test_classes: int, seed: int) -> Listing:
    """Return every image on disk, of both folders, by path; the class is the product's name."""
    path = pd.Series(sorted(files), dtype=str)
    inside = path.str.removeprefix("all/").str.extract(r"^(?:train|test)/([^/]+)/[^/]+(\.\w+)$")
    picture = inside[1].str.lower().isin(IMAGE_SUFFIXES)
    label = inside.loc[picture, 0].map(plain_name)
    return Listing(listing(path[picture], label, class_disjoint(label, test_classes, seed)))


RP2K = Dataset(
    name="rp2k",
    title="RP2K",
    domain="retail",
    folders=("rp2k", "rp2k_dataset"),
    markers=("all/train", "train"),
    homepage="https://www.pinlandata.com/rp2k_dataset/",
    licence="non-commercial research",
    read=read,
    expected=(Expected(2233, 2388, unit="classes", source="UnED: 2,380; others: 2,233 and 2,388"),),
    options={"test_classes": 1186, "seed": 0},
)
