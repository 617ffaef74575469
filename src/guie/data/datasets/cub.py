"""CUB-200-2011: 200 bird species; metric learning trains on the first 100, tests on the others.

Lists are separated by spaces, without a header: `images.txt` (id, path), `image_class_labels.txt`
(id, class from 1). Wah et al., CNS-TR-2011-001; split of Song et al., CVPR 2016.
"""

from __future__ import annotations

from pathlib import Path

from guie.data.datasets.base import Dataset, Listing, images, listing
from guie.data.datasets.reading import read_words, whole_numbers

TRAIN_CLASSES = 100


def read(folder: Path, files: frozenset[str]) -> Listing:
    """Return rows in the order of `images.txt`; the class is the folder, `001.Black_footed_Albatross`."""
    path = read_words(folder / "images.txt", ["image_id", "path"])
    labels = folder / "image_class_labels.txt"
    label = read_words(labels, ["image_id", "class_id"])
    rows = path.merge(label, on="image_id")
    train = whole_numbers(rows["class_id"], labels) <= TRAIN_CLASSES
    return Listing(
        listing(
            "images/" + rows["path"],
            rows["path"].str.partition("/")[0],
            train.map({True: "train", False: "test"}),
        )
    )


CUB = Dataset(
    name="cub",
    title="CUB-200-2011",
    domain="birds",
    folders=("CUB_200_2011", "cub", "cub2002011"),
    markers=("image_class_labels.txt",),
    homepage="https://www.vision.caltech.edu/datasets/cub_200_2011/",
    licence="images: non-commercial research and education",
    read=read,
    expected=(images("train", 5864), images("test", 5924)),
)
