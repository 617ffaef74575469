"""Food-101: 101 dishes, 750 images of each to train and 250 to test.

`meta/{train,test}.txt`: one `apple_pie/1005649` per line, without the suffix of
`images/apple_pie/1005649.jpg`; test shares its classes with train. Bossard et al., ECCV 2014.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from guie.data.datasets.base import SHARED_CLASSES, Dataset, Listing, images, listing
from guie.data.datasets.reading import read_words


def read(folder: Path, files: frozenset[str]) -> Listing:
    """Return rows in the order of the lists; the class is the dish."""
    parts = []
    for split in ("train", "test"):
        image = read_words(folder / "meta" / f"{split}.txt", ["image"])["image"]
        parts.append(listing("images/" + image + ".jpg", image.str.partition("/")[0], split))
    return Listing(pd.concat(parts, ignore_index=True))


FOOD101 = Dataset(
    name="food101",
    title="Food-101",
    domain="food",
    folders=("food-101", "food101"),
    markers=("meta/train.txt",),
    homepage="https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101/",
    licence="images of foodspotting.com; scientific fair use",
    read=read,
    expected=(images("train", 75_750), images("test", 25_250)),
    declares={"food": SHARED_CLASSES},
)
