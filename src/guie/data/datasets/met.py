"""Met: artworks of the Metropolitan Museum, catalogue images against visitors' photographs.

`ground_truth/MET_database.json` (id, path of 397,121 catalogue images: they train and are the test
index, which the sidecar declares), `mini_MET_database.json` (the index of val), `testset.json` and
`valset.json` (path; MET_id where the photograph shows an exhibit). Photographs without MET_id are
distractors for recognition, have no positive and are left out, as UnED does.
Ypsilantis et al., NeurIPS 2021 (datasets track).
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from guie.data.datasets.base import Dataset, Listing, images, listing
from guie.data.datasets.lists import first_present, prefixed, read_records
from guie.data.manifest import DomainDeclaration

IMAGE_FOLDERS = ("", "images/")


def read(folder: Path, files: frozenset[str]) -> Listing:
    """Train, queries of val and test, and their indexes; the class is the exhibit's id."""
    catalogue = read_records(_list(folder, "MET_database.json"), ["id", "path"])
    catalogue["path"] = prefixed(catalogue["path"], files, IMAGE_FOLDERS)
    small = _list(folder, "mini_MET_database.json")
    warnings: tuple[str, ...] = ()
    if small.is_file():
        inside = read_records(small, ["path"])["path"]
        val_index = catalogue[catalogue["path"].isin(prefixed(inside, files, IMAGE_FOLDERS))]
    else:
        val_index = catalogue
        warnings = (f"Met: no {small.name}, so that val has the whole catalogue as its index",)
    parts = [
        _rows(catalogue, "train", "train"),
        _rows(_photographs(folder, "valset.json", files), "val", "query"),
        _rows(val_index, "val", "index"),
        _rows(_photographs(folder, "testset.json", files), "test", "query"),
        _rows(catalogue, "test", "index"),
    ]
    return Listing(pd.concat(parts, ignore_index=True), warnings)


def _rows(table: pd.DataFrame, split: str, role: str) -> pd.DataFrame:
    return listing(table["path"], table["id"].astype(int).astype(str), split, role)


def _photographs(folder: Path, name: str, files: frozenset[str]) -> pd.DataFrame:
    photographs = read_records(_list(folder, name), ["path", "MET_id"]).dropna(subset="MET_id")
    path = prefixed(photographs["path"], files, IMAGE_FOLDERS)
    return pd.DataFrame({"path": path, "id": photographs["MET_id"]})


def _list(folder: Path, name: str) -> Path:
    return first_present(folder, (f"ground_truth/{name}", name))


MET = Dataset(
    name="met",
    title="Met",
    domain="artworks",
    folders=("met", "met_dataset"),
    markers=("ground_truth/MET_database.json", "MET_database.json"),
    homepage="http://cmp.felk.cvut.cz/met/",
    licence="images: open access of the museum (CC0); annotations: see the page",
    read=read,
    expected=(
        images("train", 397121),
        images("val", 129, roles=("query",)),
        images("test", 1003, roles=("query",)),
        images("test", 397121, roles=("index",)),
    ),
    declares={"artworks": DomainDeclaration(index_is_train=True)},
)
