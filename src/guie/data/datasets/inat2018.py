"""iNaturalist 2018 with the retrieval split of Smooth-AP: species of test are not in train.

`Inaturalist_train_set1.txt` and `Inaturalist_test_set1.txt`, one path per line, in
`Inat_dataset_splits/` or next to the images; images in `train_val2018/<kingdom>/<species>/`.
Van Horn et al., CVPR 2018; Brown et al., ECCV 2020.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from guie.data.datasets.base import Dataset, Listing, images, listing
from guie.data.datasets.reading import first_present, read_words

IMAGES = "train_val2018/"


def read(folder: Path, files: frozenset[str]) -> Listing:
    """Return rows in the order of the lists; the class is `<kingdom>/<species>`."""
    parts = []
    for split in ("train", "test"):
        name = f"Inaturalist_{split}_set1.txt"
        path = read_words(first_present(folder, (f"Inat_dataset_splits/{name}", name)), ["path"])
        inside = path["path"].str.rpartition(IMAGES)[2]  # some copies start at another folder
        parts.append(listing(IMAGES + inside, inside.str.rpartition("/")[0], split))
    return Listing(pd.concat(parts, ignore_index=True))


INAT2018 = Dataset(
    name="inat2018",
    title="iNaturalist 2018",
    domain="nature",
    folders=("inat2018", "inaturalist2018", "inaturalist"),
    markers=("Inat_dataset_splits", "Inaturalist_train_set1.txt"),
    homepage="https://github.com/visipedia/inat_comp/tree/master/2018",
    licence="images: their observers', mostly CC BY-NC; non-commercial research",
    read=read,
    expected=(images("train", 325846), images("test", 136093)),
)
