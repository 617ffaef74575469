"""Readers of data sets of landmarks and artworks: Google Landmarks v2, Revisited Oxford and Paris, Met."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from guie.base.errors import UserError
from guie.data.datasets.base import SHARED_CLASSES, Dataset, Listing, images, listing
from guie.data.datasets.reading import (
    first_present,
    prefixed,
    read_columns,
    read_mat,
    read_records,
)
from guie.data.manifest import DomainDeclaration


def read_gldv2(folder: Path, files: frozenset[str], train_list: str) -> Listing:
    """Return train and, if the index was downloaded, queries and index of test.

    81,313 landmarks to train (cleaned), an index of 761,757 images, 1,129 queries. `train_clean.csv`
    (landmark_id, images: ids joined by spaces) or all of `train.csv` (id, url, landmark_id: 4,132,914
    images, much noise), `index_image_to_landmark.csv` (id, landmark_id), `retrieval_solution_v2.1.csv`
    (id, images of the index joined by spaces or "None", Usage), next to the images or in `metadata/`;
    images at `<part>/a/b/c/<id>.jpg`. The index has other landmark ids than train, though many landmarks
    are the same. So classes are named `train-<id>` and `index-<id>`, and the sidecar declares shared
    classes. Weyand et al., CVPR 2020; https://github.com/cvdfoundation/google-landmark.
    """

    def list_file(name: str) -> Path:
        names = (name, f"metadata/{name}", f"train/{name}", f"index/{name}")
        return first_present(folder, names)

    if train_list == "clean":
        rows = read_columns(list_file("train_clean.csv"), ("landmark_id", "images"))
        rows = rows.assign(id=rows["images"].str.split(" ")).explode("id", ignore_index=True)
    else:
        rows = read_columns(list_file("train.csv"), ("id", "landmark_id"))
    train = listing(_path("train", rows["id"]), "train-" + rows["landmark_id"], "train")
    if not list_file("index_image_to_landmark.csv").is_file():
        return Listing(
            train, ("Google Landmarks v2: no list of the index, so it has only a train split",)
        )
    index = read_columns(list_file("index_image_to_landmark.csv"), ("id", "landmark_id"))
    index["landmark_id"] = "index-" + index["landmark_id"]
    queries, warnings = _queries(list_file("retrieval_solution_v2.1.csv"), index)
    parts = [
        train,
        listing(_path("test", queries["id"]), queries["landmark_id"], "test", "query"),
        listing(_path("index", index["id"]), index["landmark_id"], "test", "index"),
    ]
    return Listing(pd.concat(parts, ignore_index=True), warnings)


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
    read=read_gldv2,
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
PROTOCOLS = {"medium": ("easy", "hard"), "easy": ("easy",), "hard": ("hard",)}
GRADES = ("easy", "hard", "junk")
WARNING = (
    "with class labels, junk counts as wrong, and queries are not cropped: for the official numbers crop"
    " with embed.py --boxes and score with validate.py --protocol revisited"
)


def ground_truth(folder: Path, name: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the authors' boxes and grades of `name`, roxford5k or rparis6k.

    `gnd_roxford5k.mat` or `gnd_rparis6k.mat` (imlist, qimlist, and gnd: easy, hard and junk count from
    1 into imlist, bbx is the query's box) in the folder of `jpg/<name>.jpg` or above. The `.pkl` with the
    same content is not read: a pickle can run code. Radenovic et al., CVPR 2018; format as read by
    https://github.com/tensorflow/models (research/delf, datasets/revisited_op).

    Returns: boxes (query, x1_px, y1_px, x2_px, y2_px), one row per query; grades (query, image, grade),
    one row per graded pair, grade easy, hard or junk. Names are without folder and suffix.
    """
    path = _file(folder, name)
    index_images = read_mat(path, "imlist").astype(str)
    queries = read_mat(path, "qimlist").astype(str)
    gnd = read_mat(path, "gnd", ("bbx", *GRADES))
    sides = ["x1_px", "y1_px", "x2_px", "y2_px"]
    boxes = pd.DataFrame([np.asarray(box, dtype=float) for box in gnd["bbx"]], columns=sides)
    boxes.insert(0, "query", queries)
    grades = [
        pd.DataFrame(
            {
                "query": query,
                "image": index_images[np.atleast_1d(entry[grade]).astype(int) - 1],
                "grade": grade,
            }
        )
        for query, entry in zip(queries, gnd, strict=True)
        for grade in GRADES
    ]
    return boxes, pd.concat(grades, ignore_index=True)


def read_revisited(folder: Path, files: frozenset[str], protocol: str, name: str) -> Listing:
    """Return the 70 queries, then the whole index, distractors included.

    A manifest distinguishes only relevant from irrelevant. So each query is a class of its own, and an
    index image has the classes of all queries that it answers under the protocol in the option. The three
    official protocols use the grades of the companion `relevance`, regardless of that option, and queries
    that embed.py crops to their `boxes`.
    """
    boxes, grades = ground_truth(folder, name)
    relevant = grades[grades["grade"].isin(PROTOCOLS[protocol])]
    classes = relevant.groupby("image")["query"].agg("|".join)
    index = pd.Series(read_mat(_file(folder, name), "imlist").astype(str))
    label = index.map(classes).fillna("no-query")  # index images that answer none
    path = partial(prefixed, files=files, prefixes=("jpg/", "", "../jpg/"))
    query_paths, index_paths = path(boxes["query"] + ".jpg"), path(index + ".jpg")
    rows = [
        listing(query_paths, boxes["query"], "test", "query"),
        listing(index_paths, label, "test", "index"),
    ]
    query_path = dict(zip(boxes["query"], query_paths, strict=True))
    index_path = dict(zip(index, index_paths, strict=True))
    companions = {
        "relevance": grades.assign(
            query=grades["query"].map(query_path), image=grades["image"].map(index_path)
        ),
        "boxes": boxes.drop(columns="query").assign(image_path=query_paths),
    }
    return Listing(pd.concat(rows, ignore_index=True), companions=companions)


def _file(folder: Path, name: str) -> Path:
    path = first_present(folder, (f"gnd_{name}.mat", f"../gnd_{name}.mat"))
    if not path.is_file() and (folder / f"gnd_{name}.pkl").is_file():
        raise UserError(
            f"{folder / f'gnd_{name}.pkl'}: a pickle can run code and is not read; download"
            f" {path.name} from the same page"
        )
    return path


def _revisited(name: str, title: str, index_images: int) -> Dataset:
    return Dataset(
        name=name,
        title=title,
        domain="landmarks",
        folders=(name,),
        markers=(f"gnd_{name}.mat", f"gnd_{name}.pkl"),
        homepage="http://cmp.felk.cvut.cz/revisitop/",
        read=partial(read_revisited, name=name),
        expected=(
            images("test", 70, roles=("query",)),
            images("test", index_images, roles=("index",)),
        ),
        options={"protocol": "medium"},
        choices={"protocol": tuple(PROTOCOLS)},
        warnings=(f"{title}: {WARNING}",),
    )


ROXFORD5K = _revisited("roxford5k", "Revisited Oxford", 4993)
RPARIS6K = _revisited("rparis6k", "Revisited Paris", 6322)
MET_FOLDERS = ("", "images/")
NO_EXHIBIT = "no-exhibit"  # class of the distractors


def read_met(folder: Path, files: frozenset[str], distractors: str) -> Listing:
    """Return train, queries of val and test, and their indexes; the class is the exhibit's id.

    Catalogue images of the Metropolitan Museum against visitors' photographs.
    `ground_truth/MET_database.json` (id, path of 397,121 catalogue images: both train set and test
    index, which the sidecar declares), `mini_MET_database.json` (the index of val), `testset.json` and
    `valset.json` (path; MET_id if the photograph shows an exhibit). Photographs without MET_id (test:
    10,352 of other art, 7,964 of none; val: 1,168 and 868) have no positive. They are distractors for
    recognition, which GAP needs. They are left out, as in UnED, or kept as queries of a class without
    exhibit. Ypsilantis et al., NeurIPS 2021 (datasets track).
    """
    catalogue = read_records(_list(folder, "MET_database.json"), ["id", "path"])
    catalogue["path"] = prefixed(catalogue["path"], files, MET_FOLDERS)
    small = _list(folder, "mini_MET_database.json")
    warnings: tuple[str, ...] = ()
    if small.is_file():
        inside = read_records(small, ["path"])["path"]
        val_index = catalogue[catalogue["path"].isin(prefixed(inside, files, MET_FOLDERS))]
    else:
        val_index = catalogue
        warnings = (f"Met: no {small.name}, so the index of val is the whole catalogue",)
    photographs = {
        split: _photographs(_list(folder, f"{split}set.json"), files, distractors == "keep")
        for split in ("val", "test")
    }
    parts = [
        _exhibits(catalogue, "train", "train"),
        _exhibits(photographs["val"], "val", "query"),
        _exhibits(val_index, "val", "index"),
        _exhibits(photographs["test"], "test", "query"),
        _exhibits(catalogue, "test", "index"),
    ]
    return Listing(pd.concat(parts, ignore_index=True), warnings)


def _exhibits(table: pd.DataFrame, split: str, role: str) -> pd.DataFrame:
    known = table["id"].notna()
    label = (
        table.loc[known, "id"].astype(int).astype(str).reindex(table.index, fill_value=NO_EXHIBIT)
    )
    return listing(table["path"], label, split, role)


def _photographs(path: Path, files: frozenset[str], keep: bool) -> pd.DataFrame:
    photographs = read_records(path, ["path", "MET_id"]).rename(columns={"MET_id": "id"})
    if not keep:
        photographs = photographs.dropna(subset="id")
    return photographs.assign(path=prefixed(photographs["path"], files, MET_FOLDERS))


def _list(folder: Path, name: str) -> Path:
    return first_present(folder, (f"ground_truth/{name}", name))


MET = Dataset(
    name="met",
    title="Met",
    domain="artworks",
    folders=("met", "met_dataset"),
    markers=("ground_truth/MET_database.json", "MET_database.json"),
    homepage="http://cmp.felk.cvut.cz/met/",
    read=read_met,
    expected=(
        images("train", 397121),
        images("val", 129, roles=("query",), where=("distractors", "leave_out")),
        images("val", 129 + 1168 + 868, roles=("query",), where=("distractors", "keep")),
        images("test", 1003, roles=("query",), where=("distractors", "leave_out")),
        images("test", 1003 + 10_352 + 7964, roles=("query",), where=("distractors", "keep")),
        images("test", 397121, roles=("index",)),
    ),
    options={"distractors": "leave_out"},
    choices={"distractors": ("leave_out", "keep")},
    declares={"artworks": DomainDeclaration(index_is_train=True)},
)
