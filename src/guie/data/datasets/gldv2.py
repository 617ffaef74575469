"""Google Landmarks v2: 81,313 landmarks to train (cleaned), an index of 761,757 images, 1,129 queries.

`train_clean.csv` (landmark_id, images: ids joined by spaces) or all of `train.csv` (id, url,
landmark_id: 4,132,914 images, much noise), `index_image_to_landmark.csv`
(id, landmark_id), `retrieval_solution_v2.1.csv` (id, images of the index joined by spaces or
"None", Usage), next to the images or in `metadata/`; images at `<part>/a/b/c/<id>.jpg`. The index has
other landmark ids than train, though many landmarks are the same. So classes are named `train-<id>`
and `index-<id>`, and the sidecar declares shared classes.
Weyand et al., CVPR 2020; https://github.com/cvdfoundation/google-landmark.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from guie.base.errors import UserError
from guie.data.datasets.base import SHARED_CLASSES, Dataset, Listing, images, listing
from guie.data.datasets.reading import first_present, read_columns


def read(folder: Path, files: frozenset[str], train_list: str) -> Listing:
    """Return train and, if the index was downloaded, queries and index of test."""
    train = _clean(folder) if train_list == "clean" else _full(folder)
    if not _list(folder, "index_image_to_landmark.csv").is_file():
        return Listing(
            train, ("Google Landmarks v2: no list of the index, so it has only a train split",)
        )
    index = read_columns(_list(folder, "index_image_to_landmark.csv"), ("id", "landmark_id"))
    index["landmark_id"] = "index-" + index["landmark_id"]
    queries, warnings = _queries(_list(folder, "retrieval_solution_v2.1.csv"), index)
    parts = [
        train,
        listing(_path("test", queries["id"]), queries["landmark_id"], "test", "query"),
        listing(_path("index", index["id"]), index["landmark_id"], "test", "index"),
    ]
    return Listing(pd.concat(parts, ignore_index=True), warnings)


def _full(folder: Path) -> pd.DataFrame:
    rows = read_columns(_list(folder, "train.csv"), ("id", "landmark_id"))
    return listing(_path("train", rows["id"]), "train-" + rows["landmark_id"], "train")


def _clean(folder: Path) -> pd.DataFrame:
    rows = read_columns(_list(folder, "train_clean.csv"), ("landmark_id", "images"))
    rows = rows.assign(images=rows["images"].str.split(" ")).explode("images", ignore_index=True)
    return listing(_path("train", rows["images"]), "train-" + rows["landmark_id"], "train")


def _queries(path: Path, index: pd.DataFrame) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Return queries labelled with the landmarks of their solution images: `index-3|index-7`.

    Warns if these landmarks have more images in the index than the solution lists.
    """
    solution = read_columns(path, ("id", "images"))
    solution = solution[solution["images"] != "None"]  # the challenge's rules ignore them
    listed = solution.assign(image=solution["images"].str.split(" ")).explode("image")
    listed["landmark_id"] = listed["image"].map(index.set_index("id")["landmark_id"])
    unknown = listed["landmark_id"].isna()
    if unknown.any():
        first = listed[unknown].iloc[0]
        raise UserError(f"{path}: query {first['id']}: image {first['image']} is not in the index")
    pairs = listed.drop_duplicates(["id", "landmark_id"])
    sizes = pairs["landmark_id"].map(index["landmark_id"].value_counts())
    positives = sizes.groupby(pairs["id"]).sum()
    differ = int((listed.groupby("id")["image"].nunique() != positives).sum())
    queries = pairs.groupby("id", sort=False)["landmark_id"].agg("|".join).reset_index()
    warning = (
        f"{path.name}: {differ:,} queries list fewer images than their landmarks have in the index"
    )
    return queries, (warning,) if differ else ()


def _path(part: str, image_id: pd.Series) -> pd.Series:
    a, b, c = (image_id.str[place] for place in range(3))
    return f"{part}/" + a + "/" + b + "/" + c + "/" + image_id + ".jpg"


def _list(folder: Path, name: str) -> Path:
    return first_present(folder, (name, f"metadata/{name}", f"train/{name}", f"index/{name}"))


GLDV2 = Dataset(
    name="gldv2",
    title="Google Landmarks v2",
    domain="landmarks",
    folders=("gldv2", "google_landmark_v2", "google-landmark", "landmark-recognition-2021"),
    markers=tuple(
        f"{place}{name}.csv"
        for name in ("train_clean", "train")
        for place in ("", "metadata/", "train/")
    ),
    homepage="https://github.com/cvdfoundation/google-landmark",
    licence="annotations CC BY 4.0; train images CC BY, index and test CC0 or public domain",
    read=read,
    expected=(
        images("train", 1_580_470, where=("train_list", "clean")),
        images("train", 4_132_914, where=("train_list", "full")),
        images("test", 1129, roles=("query",)),
        images("test", 761_757, roles=("index",)),
    ),
    options={"train_list": "clean"},
    choices={"train_list": ("clean", "full")},
    declares={"landmarks": SHARED_CLASSES},
)
