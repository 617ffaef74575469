"""Stanford Dogs: 120 breeds; PUMA trains on the first 60 and tests on the others.

`file_list.mat` (file_list: `n02085620-Chihuahua/n02085620_7.jpg`, labels from 1), images in
`Images/`. Khosla et al., FGVC 2011.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from guie.data.datasets.base import Dataset, Listing, first_half, images, listing
from guie.data.datasets.reading import read_mat

PUMA = "PUMA, table 1, which gives hundreds"


def read(folder: Path, files: frozenset[str]) -> Listing:
    """Return rows in the order of `file_list.mat`; the class is the folder."""
    list_file = folder / "file_list.mat"
    path = pd.Series(read_mat(list_file, "file_list"), dtype=str)
    split = first_half(pd.Series(read_mat(list_file, "labels")).astype(int))
    return Listing(listing("Images/" + path, path.str.partition("/")[0], split))


DOGS = Dataset(
    name="dogs",
    title="Stanford Dogs",
    domain="dogs",
    folders=("dogs", "stanford_dogs", "stanford-dogs-dataset"),
    markers=("file_list.mat",),
    homepage="http://vision.stanford.edu/aditya86/ImageNetDogs/",
    licence="images of ImageNet: non-commercial research",
    read=read,
    expected=(
        images("train", 10_600, 10_699, source=PUMA),
        images("test", 9_900, 9_999, source=PUMA),
    ),
)
