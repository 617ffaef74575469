"""DeepFashion's two retrieval benchmarks: In-Shop and Consumer-to-Shop. Liu et al., CVPR 2016.

Both list their partition in `Eval/list_eval_partition.txt`: a line with the count, a line with the
column names, then columns aligned by spaces; images under `img/`, in some downloads `Img/img/`.
In-Shop: image_name, item_id, evaluation_status (train, query, gallery). Consumer-to-Shop, according to
https://github.com/open-mmlab/mmfashion (docs/dataset/CONSUMER_TO_SHOP_DATASET.md):
image_pair_name_1 (consumer), image_pair_name_2 (shop), item_id, evaluation_status (train, val,
test); items do not overlap between parts.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from guie.base.errors import UserError
from guie.data.datasets.base import Dataset, Listing, images, listing
from guie.data.datasets.reading import first_present, prefixed, read_words

PARTITIONS = ("Eval/list_eval_partition.txt", "list_eval_partition.txt")
IMAGE_FOLDERS = ("", "Img/")
LICENCE = "non-commercial research; agreement and password from the authors"
HOMEPAGE = "https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion.html"
IN_SHOP_ROLES = {"train": "train", "query": "query", "gallery": "index"}
SHOP_ROLE, CONSUMER_ROLE = "index", "query"


def read_inshop(folder: Path, files: frozenset[str]) -> Listing:
    """Return train, and query and gallery as test; the class is the item."""
    rows = _partition(folder, ["path", "item", "status"], IN_SHOP_ROLES)
    split = rows["status"].where(rows["status"] == "train", "test")
    path = prefixed(rows["path"], files, IMAGE_FOLDERS)
    return Listing(listing(path, rows["item"], split, rows["status"].map(IN_SHOP_ROLES)))


def read_consumer_to_shop(folder: Path, files: frozenset[str]) -> Listing:
    """Return rows with consumer photographs as queries of val and test, and shop images as the index.

    An image occurs in many pairs but becomes one row. The class is the item's folder with its category,
    which is correct even if item ids repeat between categories.
    """
    columns = ["consumer", "shop", "item", "status"]
    pairs = _partition(folder, columns, {"train": "", "val": "", "test": ""})
    sides = [
        pairs[[side, "status"]].set_axis(["path", "status"], axis=1).assign(role=role)
        for side, role in (("consumer", CONSUMER_ROLE), ("shop", SHOP_ROLE))
    ]
    rows = pd.concat(sides).drop_duplicates("path", ignore_index=True)
    role = rows["role"].mask(rows["status"] == "train", "train")
    path = prefixed(rows["path"], files, IMAGE_FOLDERS)
    item = rows["path"].str.removeprefix("img/").str.rpartition("/")[0]
    return Listing(listing(path, item, rows["status"], role))


def _partition(folder: Path, columns: list[str], statuses: dict[str, str]) -> pd.DataFrame:
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
    licence=LICENCE,
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
    licence=LICENCE,
    read=read_consumer_to_shop,
)
