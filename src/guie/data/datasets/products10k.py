"""Products-10K: 9,691 products of JD.com; the most valuable training set for the challenge's winners.

`train.csv` (name, class, group) with `train/`, `test_kaggletest.csv` (name, class, and group or
Usage) with `test/`; test shares its classes with train. Bai et al., 2020;
https://www.kaggle.com/competitions/products-10k/data.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from guie.data.datasets.base import SHARED_CLASSES, Dataset, Listing, images, listing
from guie.data.datasets.reading import prefixed, read_columns


def read(folder: Path, files: frozenset[str]) -> Listing:
    """Return rows in the order of the lists, test if it was downloaded; the class is its number."""
    parts = []
    for split, name in (("train", "train.csv"), ("test", "test_kaggletest.csv")):
        if split == "train" or (folder / name).is_file():
            rows = read_columns(folder / name, ("name", "class"))
            path = prefixed(rows["name"], files, (f"{split}/", f"{split}/{split}/"))
            parts.append(listing(path, rows["class"], split))
    return Listing(pd.concat(parts, ignore_index=True))


PRODUCTS10K = Dataset(
    name="products10k",
    title="Products-10K",
    domain="products",
    folders=("products-10k", "products10k"),
    markers=("train.csv",),
    homepage="https://products-10k.github.io/",
    licence="non-commercial research",
    read=read,
    expected=(images("train", 141_500, 141_999, source="M4D-35k names 141.5 thousand"),),
    declares={"products": SHARED_CLASSES},
)
