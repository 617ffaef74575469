"""Fashion200k: 200 thousand photographs of clothes with captions; an item has several views.

`labels/<kind>_{train,test}_detect_all.txt`: path, detection score and caption, separated by tabs;
images `women/<kind>/<style>/<item>/<item>_0.jpeg`, in some copies below `pictures_only/`. The class
is the item. Han et al., ICCV 2017; https://github.com/xthan/fashion-200k.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from guie.base.errors import UserError
from guie.data.datasets.base import SHARED_CLASSES, Dataset, Listing, images, listing
from guie.data.datasets.reading import prefixed, read_pairs


def read(folder: Path, files: frozenset[str]) -> Listing:
    """Return rows list by list; the class is the item's number."""
    parts = []
    for split in ("train", "test"):
        lists = sorted((folder / "labels").glob(f"*_{split}_detect_all.txt"))
        if not lists:
            raise UserError(
                f"{folder / 'labels'}: no *_{split}_detect_all.txt; download the labels"
            )
        rows = pd.concat([read_pairs(path, ("path", "caption"), "\t") for path in lists])
        rows = rows.drop_duplicates("path", ignore_index=True)
        path = prefixed(rows["path"], files, ("", "pictures_only/", "pictures_only/pictures_only/"))
        parts.append(listing(path, rows["path"].str.split("/").str[-2], split))
    return Listing(pd.concat(parts, ignore_index=True))


FASHION200K = Dataset(
    name="fashion200k",
    title="Fashion200k",
    domain="clothing",
    folders=("fashion200k", "fashion-200k"),
    markers=("labels",),
    homepage="https://github.com/xthan/fashion-200k",
    licence="no licence of the images stated; research",
    read=read,
    expected=(images("train", 172_049), images("test", 29_789)),
    declares={"clothing": SHARED_CLASSES},
)
