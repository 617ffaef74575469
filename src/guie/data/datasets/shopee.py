"""Shopee Product Matching: postings of a shop; `label_group` names the product.

`train.csv` (posting_id, image, image_phash, title, label_group), images `train_images/<image>`. One
image can be in several postings: it is one row, with all its products. The labels of the
competition's test are not public. https://www.kaggle.com/competitions/shopee-product-matching/data.
"""

from __future__ import annotations

from pathlib import Path

from guie.data.datasets.base import Dataset, Expected, Listing, listing
from guie.data.datasets.reading import read_columns

WINNERS = "the 2nd place counted 11,011 classes, the competition 11,014"


def read(folder: Path, files: frozenset[str]) -> Listing:
    """Return one row per image, by first posting; the class is label_group, several joined by `|`."""
    rows = read_columns(folder / "train.csv", ("image", "label_group"))
    pairs = rows.drop_duplicates(ignore_index=True)
    groups = pairs.groupby("image", sort=False)["label_group"].agg("|".join).reset_index()
    return Listing(listing("train_images/" + groups["image"], groups["label_group"], "train"))


SHOPEE = Dataset(
    name="shopee",
    title="Shopee Product Matching",
    domain="products",
    folders=("shopee", "shopee-product-matching"),
    markers=("train_images",),
    homepage="https://www.kaggle.com/competitions/shopee-product-matching",
    licence="the competition's rules: non-commercial",
    read=read,
    expected=(Expected(32_412, 32_412, "train"),),
)
