"""Storefronts-146: shop fronts of 146 chains, from an image search.

`<chain>/google_in_london_1.jpg`; a chain's name may contain a slash and so be two folders deep
(`Apple Store/iTunes`). Layout of https://www.kaggle.com/datasets/kerrit/storefront-146 according to the
list in https://github.com/morrisfl/UniFEx (data/storefronts146_train.csv).
"""

from __future__ import annotations

from pathlib import Path

from guie.data.datasets.base import Dataset, Expected, Listing, by_folder
from guie.data.datasets.folder import IMAGE_SUFFIXES


def read(folder: Path, files: frozenset[str]) -> Listing:
    """Return images on disk by path; the class is the chain."""
    pictures = sorted(file for file in files if Path(file).suffix.lower() in IMAGE_SUFFIXES)
    return Listing(by_folder(pictures, "", "train"))


STOREFRONTS146 = Dataset(
    name="storefronts146",
    title="Storefronts-146",
    domain="storefronts",
    folders=("storefront-146", "storefronts_146"),
    markers=("7-Eleven",),
    homepage="https://www.kaggle.com/datasets/kerrit/storefront-146",
    licence="not stated; images of a web search",
    read=read,
    expected=(Expected(140, 146, unit="classes", source="146 by its name; not counted by us"),),
)
