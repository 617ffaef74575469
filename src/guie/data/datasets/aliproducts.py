"""AliProducts (CVPR 2020 challenge): photographs of 50,030 products of Alibaba.

Thirteen archives unpack to `train/<product>/<image>` and `val/<product>/<image>`, the same products;
the classes are the folders, so the JSON lists are not needed. Layout as in public loaders of
https://tianchi.aliyun.com/competition/entrance/231780; the numbers of images are
unknown and not checked. Cheng et al., 2020.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from guie.data.datasets.base import SHARED_CLASSES, Dataset, Listing, by_folder
from guie.data.datasets.folder import IMAGE_SUFFIXES


def read(folder: Path, files: frozenset[str]) -> Listing:
    """Return images on disk by path; the class is the folder. val becomes test and shares classes."""
    pictures = sorted(file for file in files if Path(file).suffix.lower() in IMAGE_SUFFIXES)
    parts = [
        by_folder([file for file in pictures if file.startswith(f"{above}/")], above, split)
        for above, split in (("train", "train"), ("val", "test"))
    ]
    return Listing(pd.concat(parts, ignore_index=True))


ALIPRODUCTS = Dataset(
    name="aliproducts",
    title="AliProducts",
    domain="products",
    folders=("aliproducts", "alibaba_goods"),
    markers=("train",),
    homepage="https://tianchi.aliyun.com/competition/entrance/231780/introduction",
    licence="the challenge's rules: non-commercial research",
    read=read,
    declares={"products": SHARED_CLASSES},
)
