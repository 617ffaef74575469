"""Met: artworks of the Metropolitan Museum, catalogue images against visitors' photographs.

`ground_truth/MET_database.json` (id, path of 397,121 catalogue images: both train set and test
index, which the sidecar declares), `mini_MET_database.json` (the index of val), `testset.json` and
`valset.json` (path; MET_id if the photograph shows an exhibit). Photographs without MET_id (test:
10,352 of other art, 7,964 of none; val: 1,168 and 868) have no positive. They are distractors for
recognition, which GAP needs. They are left out, as in UnED, or kept as queries of a class without exhibit.
Ypsilantis et al., NeurIPS 2021 (datasets track).
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from guie.data.datasets.base import Dataset, Listing, images, listing
from guie.data.datasets.reading import first_present, prefixed, read_records
from guie.data.manifest import DomainDeclaration

IMAGE_FOLDERS = ("", "images/")
NO_EXHIBIT = "no-exhibit"  # class of the distractors


def read(folder: Path, files: frozenset[str], distractors: str) -> Listing:
    """Return train, queries of val and test, and their indexes; the class is the exhibit's id."""
    catalogue = read_records(_list(folder, "MET_database.json"), ["id", "path"])
    catalogue["path"] = prefixed(catalogue["path"], files, IMAGE_FOLDERS)
    small = _list(folder, "mini_MET_database.json")
    warnings: tuple[str, ...] = ()
    if small.is_file():
        inside = read_records(small, ["path"])["path"]
        val_index = catalogue[catalogue["path"].isin(prefixed(inside, files, IMAGE_FOLDERS))]
    else:
        val_index = catalogue
        warnings = (f"Met: no {small.name}, so the index of val is the whole catalogue",)
    photographs = {
        split: _photographs(_list(folder, f"{split}set.json"), files, distractors == "keep")
        for split in ("val", "test")
    }
    parts = [
        _rows(catalogue, "train", "train"),
        _rows(photographs["val"], "val", "query"),
        _rows(val_index, "val", "index"),
        _rows(photographs["test"], "test", "query"),
        _rows(catalogue, "test", "index"),
    ]
    return Listing(pd.concat(parts, ignore_index=True), warnings)


def _rows(table: pd.DataFrame, split: str, role: str) -> pd.DataFrame:
    known = table["id"].notna()
    label = (
        table.loc[known, "id"].astype(int).astype(str).reindex(table.index, fill_value=NO_EXHIBIT)
    )
    return listing(table["path"], label, split, role)


def _photographs(path: Path, files: frozenset[str], keep: bool) -> pd.DataFrame:
    photographs = read_records(path, ["path", "MET_id"]).rename(columns={"MET_id": "id"})
    if not keep:
        photographs = photographs.dropna(subset="id")
    return photographs.assign(path=prefixed(photographs["path"], files, IMAGE_FOLDERS))


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
