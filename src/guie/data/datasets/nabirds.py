"""NABirds: 555 kinds of birds of North America.

Lists as in CUB, but image ids are dashed hexadecimal words and class ids have gaps. PUMA sorts the
ids by number, trains on the first 278 and tests on the other 277. Van Horn et al., CVPR 2015.
"""

from __future__ import annotations

from pathlib import Path

from guie.data.datasets.base import Dataset, Listing, first_half, images, listing
from guie.data.datasets.reading import read_words, whole_numbers

PUMA = "PUMA, table 1, which gives hundreds"


def read(folder: Path, files: frozenset[str]) -> Listing:
    """Return rows in the order of `images.txt`; the class is the folder, `0817`."""
    path = read_words(folder / "images.txt", ["image_id", "path"])
    labels = folder / "image_class_labels.txt"
    label = read_words(labels, ["image_id", "class_id"])
    rows = path.merge(label, on="image_id")
    split = first_half(whole_numbers(rows["class_id"], labels))
    return Listing(listing("images/" + rows["path"], rows["path"].str.partition("/")[0], split))


NABIRDS = Dataset(
    name="nabirds",
    title="NABirds",
    domain="birds",
    folders=("nabirds",),
    markers=("image_class_labels.txt",),
    homepage="https://dl.allaboutbirds.org/nabirds",
    licence="non-commercial research and education; terms accepted at download",
    read=read,
    expected=(
        images("train", 22_900, 22_999, source=PUMA),
        images("test", 25_600, 25_699, source=PUMA),
    ),
)
