"""Readers of data sets of animals and plants: CUB, NABirds, Stanford Dogs, Oxford Flowers, iNaturalist."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from guie.data.datasets.base import Dataset, Listing, by_class, first_half, images, listing
from guie.data.datasets.reading import first_present, read_mat, read_words, whole_numbers

PUMA = "PUMA, table 1, which gives hundreds"
INAT_IMAGES = "train_val2018/"


def _birds(folder: Path) -> tuple[pd.Series, pd.Series]:
    """Return path and class number of each image, in the order of `images.txt`.

    Lists are separated by spaces, without a header: `images.txt` (id, path), `image_class_labels.txt`
    (id, class).
    """
    path = read_words(folder / "images.txt", ["image_id", "path"])
    labels = folder / "image_class_labels.txt"
    rows = path.merge(read_words(labels, ["image_id", "class_id"]), on="image_id")
    return rows["path"], whole_numbers(rows["class_id"], labels)


def read_cub(folder: Path, files: frozenset[str]) -> Listing:
    """Return rows of 200 species; the class is the folder, `001.Black_footed_Albatross`.

    Metric learning trains on the first 100. Wah et al., CNS-TR-2011-001; split of Song et al., CVPR 2016.
    """
    path, class_id = _birds(folder)
    return Listing(by_class("images/" + path, path.str.partition("/")[0], class_id <= 100))


CUB = Dataset(
    name="cub",
    title="CUB-200-2011",
    domain="birds",
    folders=("CUB_200_2011", "cub", "cub2002011"),
    markers=("image_class_labels.txt",),
    homepage="https://www.vision.caltech.edu/datasets/cub_200_2011/",
    read=read_cub,
    expected=(images("train", 5864), images("test", 5924)),
)


def read_nabirds(folder: Path, files: frozenset[str]) -> Listing:
    """Return rows of 555 kinds of birds of North America; the class is the folder, `0817`.

    Image ids are dashed hexadecimal words and class ids have gaps. PUMA sorts the ids by number, trains
    on the first 278 and tests on the other 277. Van Horn et al., CVPR 2015.
    """
    path, class_id = _birds(folder)
    return Listing(by_class("images/" + path, path.str.partition("/")[0], first_half(class_id)))


NABIRDS = Dataset(
    name="nabirds",
    title="NABirds",
    domain="birds",
    folders=("nabirds",),
    markers=("image_class_labels.txt",),
    homepage="https://dl.allaboutbirds.org/nabirds",
    read=read_nabirds,
    expected=(
        images("train", 22_900, 22_999, source=PUMA),
        images("test", 25_600, 25_699, source=PUMA),
    ),
)


def read_dogs(folder: Path, files: frozenset[str]) -> Listing:
    """Return rows of 120 breeds in the order of `file_list.mat`; the class is the folder.

    `file_list.mat` (file_list: `n02085620-Chihuahua/n02085620_7.jpg`, labels from 1), images in
    `Images/`. PUMA trains on the first 60 and tests on the others. Khosla et al., FGVC 2011.
    """
    list_file = folder / "file_list.mat"
    path = pd.Series(read_mat(list_file, "file_list"), dtype=str)
    class_id = pd.Series(read_mat(list_file, "labels")).astype(int)
    return Listing(by_class("Images/" + path, path.str.partition("/")[0], first_half(class_id)))


DOGS = Dataset(
    name="dogs",
    title="Stanford Dogs",
    domain="dogs",
    folders=("dogs", "stanford_dogs", "stanford-dogs-dataset"),
    markers=("file_list.mat",),
    homepage="http://vision.stanford.edu/aditya86/ImageNetDogs/",
    read=read_dogs,
    expected=(
        images("train", 10_600, 10_699, source=PUMA),
        images("test", 9_900, 9_999, source=PUMA),
    ),
)


def read_flowers(folder: Path, files: frozenset[str]) -> Listing:
    """Return rows of 102 kinds by image number; the class is its number, `001` to `102`.

    `imagelabels.mat` (labels 1 to 102, in the order of the images), images `jpg/image_00001.jpg`. PUMA
    trains on the first 51 and tests on the others. Nilsback and Zisserman, ICVGIP 2008.
    """
    class_id = pd.Series(read_mat(folder / "imagelabels.mat", "labels")).astype(int)
    path = pd.Series(class_id.index + 1).map("jpg/image_{:05d}.jpg".format)
    return Listing(by_class(path, class_id.map("{:03d}".format), first_half(class_id)))


FLOWERS = Dataset(
    name="flowers",
    title="Oxford Flowers 102",
    domain="flowers",
    folders=("flowers", "flowers102", "flowers-102", "oxford_flowers"),
    markers=("imagelabels.mat",),
    homepage="https://www.robots.ox.ac.uk/~vgg/data/flowers/102/",
    read=read_flowers,
    expected=(
        images("train", 3_400, 3_599, source=PUMA),
        images("test", 4_600, 4_799, source=PUMA),
    ),
)


def read_inat2018(folder: Path, files: frozenset[str]) -> Listing:
    """Return rows in the order of the lists of Smooth-AP; the class is `<kingdom>/<species>`.

    `Inaturalist_train_set1.txt` and `Inaturalist_test_set1.txt`, one path per line, in
    `Inat_dataset_splits/` or next to the images; images in `train_val2018/<kingdom>/<species>/`. Species
    of test are not in train. Van Horn et al., CVPR 2018; Brown et al., ECCV 2020.
    """
    parts = []
    for split in ("train", "test"):
        name = f"Inaturalist_{split}_set1.txt"
        path = read_words(first_present(folder, (f"Inat_dataset_splits/{name}", name)), ["path"])
        inside = path["path"].str.rpartition(INAT_IMAGES)[2]  # some copies start at another folder
        parts.append(listing(INAT_IMAGES + inside, inside.str.rpartition("/")[0], split))
    return Listing(pd.concat(parts, ignore_index=True))


INAT2018 = Dataset(
    name="inat2018",
    title="iNaturalist 2018",
    domain="nature",
    folders=("inat2018", "inaturalist2018", "inaturalist"),
    markers=("Inat_dataset_splits", "Inaturalist_train_set1.txt"),
    homepage="https://github.com/visipedia/inat_comp/tree/master/2018",
    read=read_inat2018,
    expected=(images("train", 325846), images("test", 136093)),
)
