"""Food2K: 2,000 dishes, in folders `Food2k_complete/<0 to 1999>/`. Min et al., TPAMI 2023.

Made for classification, its splits share classes. UnED splits it by class: 900 for train, 100 for
val, 1,000 for test; its lists are in `info_files`. Our seeded split holds out as many.
"""

from __future__ import annotations

from pathlib import Path

from guie.data.datasets.base import Dataset, Expected, Listing, by_folder, class_disjoint
from guie.data.datasets.folder import IMAGE_SUFFIXES


def read(folder: Path, files: frozenset[str], test_classes: int, seed: int) -> Listing:
    """Return every image on disk by path; the class is the folder's number."""
    pictures = sorted(file for file in files if Path(file).suffix.lower() in IMAGE_SUFFIXES)
    rows = by_folder(pictures, "", "train")
    rows = rows.assign(label=rows["label"].str.rpartition("/")[2])
    split = class_disjoint(rows["label"], test_classes, seed)
    return Listing(rows.assign(split=split, role=split.map({"train": "train", "test": "both"})))


FOOD2K = Dataset(
    name="food2k",
    title="Food2K",
    domain="food",
    folders=("Food2k_complete", "food2k"),
    markers=("1999", "Food2k_complete/1999", "0", "Food2k_complete/0"),
    homepage="http://123.57.42.89/FoodProject.html",
    licence="non-commercial research; agreement with the authors",
    read=read,
    expected=(Expected(1_036_564, 1_036_564), Expected(2000, 2000, unit="classes")),
    options={"test_classes": 1000, "seed": 0},
)
