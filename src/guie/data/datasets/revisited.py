"""Revisited Oxford and Paris: 70 queries each, images graded easy, hard and junk for every query.

`gnd_roxford5k.mat` or `gnd_rparis6k.mat` (imlist, qimlist, and gnd: easy, hard and junk count from
1 into imlist, bbx is the query's box) in the folder of `jpg/<name>.jpg` or above. The `.pkl` with the
same content is not read: a pickle can run code. Radenovic et al., CVPR 2018; format as read by
https://github.com/tensorflow/models (research/delf, datasets/revisited_op).

A manifest distinguishes only relevant from irrelevant. So each query is a class of its own, and an index
image has the classes of all queries that it answers under the protocol in the option. The three official
protocols use the grades of the companion `relevance`, regardless of that option, and queries that
embed.py crops to their `boxes`.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from guie.base.errors import UserError
from guie.data.datasets.base import Dataset, Listing, images, listing
from guie.data.datasets.reading import first_present, prefixed, read_mat

PROTOCOLS = {"medium": ("easy", "hard"), "easy": ("easy",), "hard": ("hard",)}
GRADES = ("easy", "hard", "junk")
BOX = ("x1_px", "y1_px", "x2_px", "y2_px")
IMAGE_FOLDERS = ("jpg/", "", "../jpg/")
NO_QUERY = "no-query"  # class of the index images that answer none
WARNING = (
    "with class labels, junk counts as wrong, and queries are not cropped: for the official numbers crop"
    " with embed.py --boxes and score with validate.py --protocol revisited"
)


def ground_truth(folder: Path, name: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the authors' boxes and grades of `name`, roxford5k or rparis6k.

    Returns: boxes (query, x1_px, y1_px, x2_px, y2_px), one row per query; grades (query, image, grade),
    one row per graded pair, grade easy, hard or junk. Names are without folder and suffix.
    """
    path = _file(folder, name)
    index_images = read_mat(path, "imlist").astype(str)
    queries = read_mat(path, "qimlist").astype(str)
    gnd = read_mat(path, "gnd", ("bbx", *GRADES))
    boxes = pd.DataFrame([np.asarray(box, dtype=float) for box in gnd["bbx"]], columns=list(BOX))
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


def read(folder: Path, files: frozenset[str], protocol: str, name: str) -> Listing:
    """Return queries, then the whole index, distractors included."""
    boxes, grades = ground_truth(folder, name)
    relevant = grades[grades["grade"].isin(PROTOCOLS[protocol])]
    classes = relevant.groupby("image")["query"].agg("|".join)
    index = pd.Series(read_mat(_file(folder, name), "imlist").astype(str))
    label = index.map(classes).fillna(NO_QUERY)
    path = partial(prefixed, files=files, prefixes=IMAGE_FOLDERS)
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


def _dataset(name: str, title: str, index_images: int) -> Dataset:
    return Dataset(
        name=name,
        title=title,
        domain="landmarks",
        folders=(name,),
        markers=(f"gnd_{name}.mat", f"gnd_{name}.pkl"),
        homepage="http://cmp.felk.cvut.cz/revisitop/",
        licence="images of Flickr's users; research",
        read=partial(read, name=name),
        expected=(
            images("test", 70, roles=("query",)),
            images("test", index_images, roles=("index",)),
        ),
        options={"protocol": "medium"},
        choices={"protocol": tuple(PROTOCOLS)},
        warnings=(f"{title}: {WARNING}",),
    )


ROXFORD5K = _dataset("roxford5k", "Revisited Oxford", 4993)
RPARIS6K = _dataset("rparis6k", "Revisited Paris", 6322)
