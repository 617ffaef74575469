"""Readers of data sets of clothes: DeepFashion In-Shop and Consumer-to-Shop, Fashion200k, H&M.

Both parts of DeepFashion list their partition in `Eval/list_eval_partition.txt`: a line with the count,
a line with the column names, then columns aligned by spaces; images under `img/`, in some downloads
`Img/img/`. Liu et al., CVPR 2016.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from guie.base.errors import UserError
from guie.data.datasets.base import SHARED_CLASSES, Dataset, Listing, images, listing, present
from guie.data.datasets.reading import (
    first_present,
    prefixed,
    read_columns,
    read_pairs,
    read_words,
)

PARTITIONS = ("Eval/list_eval_partition.txt", "list_eval_partition.txt")
IMAGE_FOLDERS = ("", "Img/")
HOMEPAGE = "https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion.html"
IN_SHOP_ROLES = {"train": "train", "query": "query", "gallery": "index"}


def read_inshop(folder: Path, files: frozenset[str]) -> Listing:
    """Return train, and query and gallery as test; the class is the item.

    Columns image_name, item_id, evaluation_status (train, query, gallery).
    """
    rows = _partition(folder, ["path", "item", "status"], tuple(IN_SHOP_ROLES))
    split = rows["status"].where(rows["status"] == "train", "test")
    path = prefixed(rows["path"], files, IMAGE_FOLDERS)
    return Listing(listing(path, rows["item"], split, rows["status"].map(IN_SHOP_ROLES)))


def read_consumer_to_shop(folder: Path, files: frozenset[str]) -> Listing:
    """Return rows with consumer photographs as queries of val and test, and shop images as the index.

    Columns, according to https://github.com/open-mmlab/mmfashion (docs/dataset/CONSUMER_TO_SHOP_DATASET.md):
    image_pair_name_1 (consumer), image_pair_name_2 (shop), item_id, evaluation_status (train, val, test);
    items do not overlap between parts. An image occurs in many pairs but becomes one row. The class is the
    item's folder with its category, which is correct even if item ids repeat between categories.
    """
    columns = ["consumer", "shop", "item", "status"]
    pairs = _partition(folder, columns, ("train", "val", "test"))
    sides = [
        pairs[[side, "status"]].set_axis(["path", "status"], axis=1).assign(role=role)
        for side, role in (("consumer", "query"), ("shop", "index"))
    ]
    rows = pd.concat(sides).drop_duplicates("path", ignore_index=True)
    role = rows["role"].mask(rows["status"] == "train", "train")
    path = prefixed(rows["path"], files, IMAGE_FOLDERS)
    item = rows["path"].str.removeprefix("img/").str.rpartition("/")[0]
    return Listing(listing(path, item, rows["status"], role))


def _partition(folder: Path, columns: list[str], statuses: tuple[str, ...]) -> pd.DataFrame:
    path = first_present(folder, PARTITIONS)
    rows = read_words(path, columns, skip=2)
    unknown = ~rows["status"].isin(statuses)
    if unknown.any():
        row = int(unknown.to_numpy().argmax())
        raise UserError(
            f"{path}:{row + 3}: evaluation_status {rows['status'][row]!r}; allowed are"
            f" {', '.join(statuses)}"
        )
    return rows


INSHOP = Dataset(
    name="inshop",
    title="DeepFashion In-Shop",
    domain="clothing",
    folders=(
        "inshop",
        "deepfashion_inshop",
        "Inshop_Clothes",
        "In-shop Clothes Retrieval Benchmark",
    ),
    markers=PARTITIONS,
    homepage=HOMEPAGE,
    read=read_inshop,
    expected=(
        images("train", 25882),
        images("test", 14218, roles=("query",)),
        images("test", 12612, roles=("index",)),
    ),
)

DEEPFASHION_C2S = Dataset(
    name="deepfashion_c2s",
    title="DeepFashion Consumer-to-Shop",
    domain="clothing",
    folders=("deepfashion_c2s", "consumer_to_shop", "Consumer-to-shop Clothes Retrieval Benchmark"),
    markers=PARTITIONS,
    homepage=HOMEPAGE,
    read=read_consumer_to_shop,
)


def read_fashion200k(folder: Path, files: frozenset[str]) -> Listing:
    """Return rows list by list; an item has several views, and its number is the class.

    `labels/<kind>_{train,test}_detect_all.txt`: path, detection score and caption, separated by tabs;
    images `women/<kind>/<style>/<item>/<item>_0.jpeg`, in some copies below `pictures_only/`.
    Han et al., ICCV 2017; https://github.com/xthan/fashion-200k.
    """
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
    read=read_fashion200k,
    expected=(images("train", 172_049), images("test", 29_789)),
    declares={"clothing": SHARED_CLASSES},
)


def read_hm(folder: Path, files: frozenset[str]) -> Listing:
    """Return articles with an image in the order of the list; the class is the product_code.

    `articles.csv` (article_id with its leading 0, product_code, ...), images `images/010/<article>.jpg` by
    the first three digits. Not every article has an image; articles that differ in colour share a product.
    https://www.kaggle.com/competitions/h-and-m-personalized-fashion-recommendations/data.
    """
    rows = read_columns(folder / "articles.csv", ("article_id", "product_code"))
    article = rows["article_id"].str.zfill(10)
    path = "images/" + article.str[:3] + "/" + article + ".jpg"
    there = present(path, files)
    return Listing(listing(path[there], rows.loc[there, "product_code"], "train"))


HM = Dataset(
    name="hm",
    title="H&M",
    domain="clothing",
    folders=("hm", "hm_personalized_fashion", "h-and-m-personalized-fashion-recommendations"),
    markers=("articles.csv",),
    homepage="https://www.kaggle.com/competitions/h-and-m-personalized-fashion-recommendations",
    read=read_hm,
    expected=(
        images("train", 100_000, 105_542, source="105,542 articles, a few without an image"),
    ),
)
