"""M4D-35k: the training list of UniFEx, 35 thousand classes of four of the winners' sets.

`m4d-35k_train.csv` (img_path, label), whose paths start at the folder with the four sets:
`products-10k/`, `google_landmark_recognition_2021/`, `deepfashion/`, `stanford_cars/`, each a domain
here. Put it next to them. https://github.com/morrisfl/UniFEx (src/datasets/DATASET.md); the list was
chosen by its score on the challenge's own test.
"""

from __future__ import annotations

from pathlib import Path

from guie.base.errors import UserError
from guie.data.datasets.base import Dataset, Listing, images, listing
from guie.data.datasets.reading import read_columns

LIST = "m4d-35k_train.csv"
DOMAINS = {
    "products-10k": "products",
    "google_landmark_recognition_2021": "landmarks",
    "deepfashion": "clothing",
    "stanford_cars": "cars",
}


def read(folder: Path, files: frozenset[str]) -> Listing:
    """Return rows in the order of the list; the class is its label."""
    rows = read_columns(folder / LIST, ("img_path", "label"))
    top = rows["img_path"].str.partition("/")[0]
    domain = top.map(DOMAINS)
    if domain.isna().any():
        line = int(domain.isna().to_numpy().argmax()) + 2
        raise UserError(
            f"{folder / LIST}:{line}: {rows['img_path'][line - 2]!r} starts with none of"
            f" {', '.join(DOMAINS)}"
        )
    return Listing(listing(rows["img_path"], rows["label"], "train").assign(domain=domain))


M4D35K = Dataset(
    name="m4d35k",
    title="M4D-35k",
    domain="several",
    folders=("m4d-35k", "m4d35k"),
    markers=(LIST,),
    homepage="https://github.com/morrisfl/UniFEx",
    licence="of the four sets it is taken from",
    read=read,
    expected=(images("train", 328_000, 329_000, source="the sum of UniFEx's rounded counts"),),
)
