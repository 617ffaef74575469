"""Stanford Online Products: 22,634 products of eBay, 11,318 to train and 11,316 to test.

`Ebay_train.txt` and `Ebay_test.txt` with the header `image_id class_id super_class_id path`,
separated by spaces; class ids of test continue those of train. Song et al., CVPR 2016.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from guie.data.datasets.base import Dataset, Listing, images, listing
from guie.data.datasets.reading import read_columns

SPLITS = {"train": "Ebay_train.txt", "test": "Ebay_test.txt"}


def read(folder: Path, files: frozenset[str]) -> Listing:
    """Return rows in the order of the lists; the class is its number."""
    parts = []
    for split, name in SPLITS.items():
        rows = read_columns(folder / name, ("class_id", "path"), separator=" ")
        parts.append(listing(rows["path"], rows["class_id"], split))
    return Listing(pd.concat(parts, ignore_index=True))


SOP = Dataset(
    name="sop",
    title="Stanford Online Products",
    domain="products",
    folders=("Stanford_Online_Products", "sop"),
    markers=("Ebay_train.txt",),
    homepage="https://cvgl.stanford.edu/projects/lifted_struct/",
    licence="no licence stated; images of eBay's sellers, for research",
    read=read,
    expected=(images("train", 59551), images("test", 60502)),
)
