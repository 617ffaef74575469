"""FGVC-Aircraft: 100 variants of aeroplanes; PUMA trains on the first 50 by name.

`data/images_variant_{trainval,test}.txt`: image number, one space, the variant, whose name may contain
more spaces and slashes (`0034309 Boeing 707-320`, `F/A-18`); images `data/images/0034309.jpg`.
Maji et al., 2013.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from guie.data.datasets.base import Dataset, Listing, first_half, images, listing
from guie.data.datasets.reading import read_pairs


def read(folder: Path, files: frozenset[str]) -> Listing:
    """Return rows of trainval, then of test; the class is the variant with `_` for spaces."""
    lists = [folder / f"images_variant_{part}.txt" for part in ("trainval", "test")]
    rows = pd.concat([read_pairs(path, ("image", "variant")) for path in lists])
    variant = rows["variant"].str.replace(
        " ", "_", regex=False
    )  # the order in which PUMA sorts them
    return Listing(listing("images/" + rows["image"] + ".jpg", variant, first_half(variant)))


AIRCRAFT = Dataset(
    name="aircraft",
    title="FGVC-Aircraft",
    domain="aircraft",
    folders=("fgvc-aircraft-2013b", "fgvc_aircraft", "aircraft"),
    markers=("images_variant_trainval.txt",),
    homepage="https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/",
    licence="non-commercial research",
    read=read,
    expected=(images("train", 5000), images("test", 5000)),
)
