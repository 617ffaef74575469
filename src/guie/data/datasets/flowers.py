"""Oxford Flowers: 102 kinds of flowers; PUMA trains on the first 51 and tests on the others.

`imagelabels.mat` (labels 1 to 102, in the order of the images), images `jpg/image_00001.jpg`.
Nilsback and Zisserman, ICVGIP 2008.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from guie.data.datasets.base import Dataset, Listing, first_half, images, listing
from guie.data.datasets.reading import read_mat

PUMA = "PUMA, table 1, which gives hundreds"


def read(folder: Path, files: frozenset[str]) -> Listing:
    """Return rows by image number; the class is its number, `001` to `102`."""
    class_id = pd.Series(read_mat(folder / "imagelabels.mat", "labels")).astype(int)
    path = pd.Series(class_id.index + 1).map("jpg/image_{:05d}.jpg".format)
    return Listing(listing(path, class_id.map("{:03d}".format), first_half(class_id)))


FLOWERS = Dataset(
    name="flowers",
    title="Oxford Flowers 102",
    domain="flowers",
    folders=("flowers", "flowers102", "flowers-102", "oxford_flowers"),
    markers=("imagelabels.mat",),
    homepage="https://www.robots.ox.ac.uk/~vgg/data/flowers/102/",
    licence="no licence stated; research",
    read=read,
    expected=(
        images("train", 3_400, 3_599, source=PUMA),
        images("test", 4_600, 4_799, source=PUMA),
    ),
)
