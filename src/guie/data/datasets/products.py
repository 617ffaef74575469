"""Readers of data sets of products, food and shops.

SOP, Products-10K, AliProducts, Shopee, RP2K, Food2K, Food-101 and Storefronts-146.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from guie.data.datasets.base import (
    SHARED_CLASSES,
    Dataset,
    Expected,
    Listing,
    by_class,
    by_folder,
    drawn_train,
    images,
    listing,
    pictures,
    plain_name,
)
from guie.data.datasets.reading import prefixed, read_columns, read_words


def read_sop(folder: Path, files: frozenset[str]) -> Listing:
    """Return rows of 22,634 products of eBay in the order of the lists; the class is its number.

    `Ebay_train.txt` and `Ebay_test.txt` with the header `image_id class_id super_class_id path`,
    separated by spaces; class ids of test continue those of train. Song et al., CVPR 2016.
    """
    parts = []
    for split in ("train", "test"):
        path = folder / f"Ebay_{split}.txt"
        rows = read_columns(path, ("class_id", "path"), separator=" ")
        parts.append(listing(rows["path"], rows["class_id"], split))
    return Listing(pd.concat(parts, ignore_index=True))


SOP = Dataset(
    name="sop",
    title="Stanford Online Products",
    domain="products",
    folders=("Stanford_Online_Products", "sop"),
    markers=("Ebay_train.txt",),
    homepage="https://cvgl.stanford.edu/projects/lifted_struct/",
    read=read_sop,
    expected=(images("train", 59551), images("test", 60502)),
)


def read_products10k(folder: Path, files: frozenset[str]) -> Listing:
    """Return rows of 9,691 products of JD.com, test if it was downloaded; the class is its number.

    `train.csv` (name, class, group) with `train/`, `test_kaggletest.csv` (name, class, and group or
    Usage) with `test/`; test shares its classes with train. It was the most valuable training set for the
    challenge's winners. Bai et al., 2020; https://www.kaggle.com/competitions/products-10k/data.
    """
    parts = []
    for split, name in (("train", "train.csv"), ("test", "test_kaggletest.csv")):
        if split == "train" or (folder / name).is_file():
            rows = read_columns(folder / name, ("name", "class"))
            path = prefixed(rows["name"], files, (f"{split}/", f"{split}/{split}/"))
            parts.append(listing(path, rows["class"], split))
    return Listing(pd.concat(parts, ignore_index=True))


PRODUCTS10K = Dataset(
    name="products10k",
    title="Products-10K",
    domain="products",
    folders=("products-10k", "products10k"),
    markers=("train.csv",),
    homepage="https://products-10k.github.io/",
    read=read_products10k,
    expected=(images("train", 141_500, 141_999, source="M4D-35k names 141.5 thousand"),),
    declares={"products": SHARED_CLASSES},
)


def read_aliproducts(folder: Path, files: frozenset[str]) -> Listing:
    """Return images of 50,030 products of Alibaba by path; the class is the folder. val becomes test.

    Thirteen archives unpack to `train/<product>/<image>` and `val/<product>/<image>`, the same products;
    the classes are the folders, so the JSON lists are not needed. Layout as in public loaders of
    https://tianchi.aliyun.com/competition/entrance/231780; the numbers of images are unknown and not
    checked. Cheng et al., 2020.
    """
    parts = [
        by_folder(pictures(files, f"{above}/"), above, split)
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
    read=read_aliproducts,
    declares={"products": SHARED_CLASSES},
)


def read_shopee(folder: Path, files: frozenset[str]) -> Listing:
    """Return one row per image, by first posting; the class is label_group, several joined by `|`.

    `train.csv` (posting_id, image, image_phash, title, label_group), images `train_images/<image>`. One
    image can be in several postings: it is one row, with all its products. The labels of the
    competition's test are not public. https://www.kaggle.com/competitions/shopee-product-matching/data.
    """
    rows = read_columns(folder / "train.csv", ("image", "label_group"))
    pairs = rows.drop_duplicates(ignore_index=True)
    groups = pairs.groupby("image", sort=False)["label_group"].agg("|".join).reset_index()
    return Listing(listing("train_images/" + groups["image"], groups["label_group"], "train"))


SHOPEE = Dataset(
    name="shopee",
    title="Shopee Product Matching",
    domain="products",
    folders=("shopee", "shopee-product-matching"),
    markers=("train_images",),
    homepage="https://www.kaggle.com/competitions/shopee-product-matching",
    read=read_shopee,
    expected=(Expected(32_412, 32_412, "train"),),
)


def read_rp2k(folder: Path, files: frozenset[str], test_classes: int, seed: int) -> Listing:
    """Return every image on disk, of both folders, by path; the class is the product's name.

    Retail products on shelves, in `all/{train,test}/<Chinese name>/`. Made for classification, its splits
    share classes. UnED splits it by class: 1,074 for train, 120 for val, 1,186 for test; its lists are in
    `info_files`. Our seeded split holds out as many. Depending on its version, unzip writes the names as
    Chinese letters or as `#U4e2d`; the class name is the same either way. Sources disagree on the number
    of classes. Peng et al., 2020.
    """
    path = pd.Series(pictures(files), dtype=str)
    name = path.str.removeprefix("all/").str.extract(r"^(?:train|test)/([^/]+)/[^/]+\.\w+$")[0]
    label = name.dropna().map(plain_name)
    return Listing(by_class(path[label.index], label, drawn_train(label, test_classes, seed)))


RP2K = Dataset(
    name="rp2k",
    title="RP2K",
    domain="retail",
    folders=("rp2k", "rp2k_dataset"),
    markers=("all/train", "train"),
    homepage="https://www.pinlandata.com/rp2k_dataset/",
    read=read_rp2k,
    expected=(Expected(2233, 2388, unit="classes", source="UnED: 2,380; others: 2,233 and 2,388"),),
    options={"test_classes": 1186, "seed": 0},
)


def read_food2k(folder: Path, files: frozenset[str], test_classes: int, seed: int) -> Listing:
    """Return every image of 2,000 dishes by path; the class is the folder's number.

    Folders `Food2k_complete/<0 to 1999>/`. Made for classification, its splits share classes. UnED splits
    it by class: 900 for train, 100 for val, 1,000 for test; its lists are in `info_files`. Our seeded
    split holds out as many. Min et al., TPAMI 2023.
    """
    rows = by_folder(pictures(files), "", "train")
    label = rows["label"].str.rpartition("/")[2]
    return Listing(by_class(rows["image_path"], label, drawn_train(label, test_classes, seed)))


FOOD2K = Dataset(
    name="food2k",
    title="Food2K",
    domain="food",
    folders=("Food2k_complete", "food2k"),
    markers=("1999", "Food2k_complete/1999", "0", "Food2k_complete/0"),
    homepage="http://123.57.42.89/FoodProject.html",
    read=read_food2k,
    expected=(Expected(1_036_564, 1_036_564), Expected(2000, 2000, unit="classes")),
    options={"test_classes": 1000, "seed": 0},
)


def read_food101(folder: Path, files: frozenset[str]) -> Listing:
    """Return rows of 101 dishes, 750 images of each to train and 250 to test; the class is the dish.

    `meta/{train,test}.txt`: one `apple_pie/1005649` per line, without the suffix of
    `images/apple_pie/1005649.jpg`; test shares its classes with train. Bossard et al., ECCV 2014.
    """
    parts = []
    for split in ("train", "test"):
        image = read_words(folder / "meta" / f"{split}.txt", ["image"])["image"]
        parts.append(listing("images/" + image + ".jpg", image.str.partition("/")[0], split))
    return Listing(pd.concat(parts, ignore_index=True))


FOOD101 = Dataset(
    name="food101",
    title="Food-101",
    domain="food",
    folders=("food-101", "food101"),
    markers=("meta/train.txt",),
    homepage="https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101/",
    read=read_food101,
    expected=(images("train", 75_750), images("test", 25_250)),
    declares={"food": SHARED_CLASSES},
)


def read_storefronts146(folder: Path, files: frozenset[str]) -> Listing:
    """Return images of shop fronts of 146 chains by path; the class is the chain.

    `<chain>/google_in_london_1.jpg`, from an image search; a chain's name may contain a slash and so be
    two folders deep (`Apple Store/iTunes`). Layout of https://www.kaggle.com/datasets/kerrit/storefront-146
    according to the list in https://github.com/morrisfl/UniFEx (data/storefronts146_train.csv).
    """
    return Listing(by_folder(pictures(files), "", "train"))


STOREFRONTS146 = Dataset(
    name="storefronts146",
    title="Storefronts-146",
    domain="storefronts",
    folders=("storefront-146", "storefronts_146"),
    markers=("7-Eleven",),
    homepage="https://www.kaggle.com/datasets/kerrit/storefront-146",
    read=read_storefronts146,
    expected=(Expected(140, 146, unit="classes", source="146 by its name; not counted by us"),),
)
